package apiserver

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestCodes: every kind of error has its code, whatever it is wrapped in, and
// keeps its hint and the plugin's words.
func TestCodes(t *testing.T) {
	call := &volume.CallError{Step: "NodeStageVolume", Code: "Internal", Message: "no", Retry: volume.RetryBackoff}
	down := &volume.CallError{Step: "NodeStageVolume", Code: "Unavailable", Message: "gone"}
	for name, tt := range map[string]struct {
		err  error
		code api.Code
	}{
		"invalid":            {volume.Errorf(volume.ErrInvalid, "x"), api.CodeInvalid},
		"not found":          {volume.Errorf(volume.ErrNotFound, "x"), api.CodeNotFound},
		"refused":            {volume.Errorf(volume.ErrRefused, "x"), api.CodeRefused},
		"releasing":          {volume.Errorf(volume.ErrReleasing, "x"), api.CodeRefused},
		"timeout":            {volume.Errorf(volume.ErrTimeout, "x"), api.CodeTimeout},
		"plugin":             {volume.Errorf(volume.ErrPluginUnavailable, "x"), api.CodePluginUnavailable},
		"a deadline":         {context.DeadlineExceeded, api.CodeTimeout},
		"a failed call":      {call, api.CodeFailed},
		"a plugin that died": {down, api.CodePluginUnavailable},
		"ours already":       {&api.Error{Code: api.CodePermission}, api.CodePermission},
		"anything else":      {errors.New("x"), api.CodeFailed},
	} {
		if got := toAPI(fmt.Errorf("wrapped: %w", tt.err)); got.Code != tt.code {
			t.Errorf("%s: %s, want %s", name, got.Code, tt.code)
		}
	}
	if got := toAPI(call); got.Details["grpc_code"] != "Internal" || got.Details["plugin_said"] != "no" {
		t.Errorf("a failed call: %v", got.Details)
	}
	hinted := fmt.Errorf("wrapped: %w", volume.Errorf(volume.ErrRefused, "x").WithHint("try %s", "y"))
	if got := toAPI(hinted); got.Hint != "try y" {
		t.Errorf("hint %q", got.Hint)
	}
}
