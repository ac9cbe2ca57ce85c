package agent

import (
	"context"
	"errors"

	"github.com/volagent/volagent/volmgr/shared"
)

type hooks struct{}

func (a *Agent) fenceHooks() hooks { return hooks{} }

func (hooks) Names() []string { return nil }
func (hooks) Off(context.Context, string, shared.Machine) (string, error) {
	return "", errors.New("no")
}
func (hooks) On(context.Context, string, shared.Machine) ([]string, error)     { return nil, nil }
func (hooks) Status(context.Context, string, shared.Machine) ([]string, error) { return nil, nil }
