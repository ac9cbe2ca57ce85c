package service

import (
	"errors"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestPluginTestTakesNoLiteral checks that a test of a plugin accepts only references to secrets.
// The agent stores these secrets without sealing them until it has cleaned up the test.
func TestPluginTestTakesNoLiteral(t *testing.T) {
	for _, s := range []api.Secret{{Literal: api.NewLiteral("hunter2")}, {Sealed: true}} {
		_, err := toAsk(api.PluginTest{Secrets: map[string]api.Secret{"key": s}})
		if !errors.Is(err, volume.ErrInvalid) || !strings.Contains(err.Error(), `secret "key" is not a reference`) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%+v: %v", s, err)
		}
	}
	ask, err := toAsk(api.PluginTest{Secrets: map[string]api.Secret{"key": {File: "/f"}}})
	if err != nil || ask.Secrets["key"] != (call.SecretRef{File: "/f"}) {
		t.Errorf("a reference: %+v, %v", ask.Secrets, err)
	}
}
