package agent

import (
	"errors"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/volume"
)

// A test's record is kept until all is undone, and nothing seals it: it takes
// references alone.
func TestPluginTestTakesNoLiteral(t *testing.T) {
	for _, s := range []api.Secret{{Literal: api.NewLiteral("hunter2")}, {Sealed: true}} {
		_, err := toAsk(api.PluginTest{Secrets: map[string]api.Secret{"key": s}})
		if !errors.Is(err, volume.ErrInvalid) || !strings.Contains(err.Error(), `secret "key" is no reference`) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%+v: %v", s, err)
		}
	}
	ask, err := toAsk(api.PluginTest{Secrets: map[string]api.Secret{"key": {File: "/f"}}})
	if err != nil || ask.Secrets["key"] != (volume.SecretRef{File: "/f"}) {
		t.Errorf("a reference: %+v, %v", ask.Secrets, err)
	}
}
