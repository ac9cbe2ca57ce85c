package service

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestCodes checks that every kind of error gets its code, even if it is wrapped, and keeps its
// hint and the plugin's message.
func TestCodes(t *testing.T) {
	call := &volume.CallError{Step: "NodeStageVolume", Code: "Internal", Message: "no", Retry: volume.RetryBackoff}
	down := &volume.CallError{Step: "NodeStageVolume", Code: "Unavailable", Message: "gone"}
	for name, tt := range map[string]struct {
		err  error
		code api.Code
	}{
		"invalid":                  {volume.Errorf(volume.ErrInvalid, "x"), api.CodeInvalid},
		"not found":                {volume.Errorf(volume.ErrNotFound, "x"), api.CodeNotFound},
		"refused":                  {volume.Errorf(volume.ErrRefused, "x"), api.CodeRefused},
		"releasing":                {volume.Errorf(volume.ErrDetaching, "x"), api.CodeRefused},
		"timeout":                  {volume.Errorf(volume.ErrTimeout, "x"), api.CodeTimeout},
		"plugin":                   {volume.Errorf(volume.ErrPluginUnavailable, "x"), api.CodePluginUnavailable},
		"a deadline":               {context.DeadlineExceeded, api.CodeTimeout},
		"a failed call":            {call, api.CodeFailed},
		"a plugin that died":       {down, api.CodePluginUnavailable},
		"a call past its deadline": {&volume.CallError{Step: "NodeGetVolumeStats", Code: "DeadlineExceeded"}, api.CodeTimeout},
		"ours already":             {&api.Error{Code: api.CodePermission}, api.CodePermission},
		"anything else":            {errors.New("x"), api.CodeFailed},
	} {
		if got := APIError(fmt.Errorf("wrapped: %w", tt.err)); got.Code != tt.code {
			t.Errorf("%s: %s, want %s", name, got.Code, tt.code)
		}
	}
	if got := APIError(call); got.Details["grpc_code"] != "Internal" || got.Details["plugin_said"] != "no" {
		t.Errorf("a failed call: %v", got.Details)
	}
	at := volume.Attempt{Err: call, Tries: 3, First: time.Now(), Next: time.Now().Add(time.Hour)}
	got := APIError(&volume.Awaited{Err: volume.Errorf(volume.ErrTimeout, "timed out").WithHint("wait"), At: at})
	if got.Code != api.CodeTimeout || got.Hint != "wait" || got.Details["tries"] != "3" || got.Details["step"] != "NodeStageVolume" || got.Details["first"] == "" || got.Details["next"] == "" {
		t.Errorf("a wait in vain: %+v", got)
	}
	busy := &volume.CallError{Step: "NodeUnpublishVolume", Code: "Internal", Message: "busy", HeldBy: []string{"pid 1 init, cwd"}, Remedy: remedy.Of(remedy.EndProcess, "1")}
	if got := APIError(busy); got.Hint != "kill 1" || got.Details["held_by"] != "pid 1 init, cwd" || got.Details["plugin_said"] != "busy" || !strings.HasSuffix(got.Message, "busy, held by pid 1 init, cwd") {
		t.Errorf("held: %+v", got)
	}
	hinted := fmt.Errorf("wrapped: %w", volume.Errorf(volume.ErrRefused, "x").WithHint("try %s", "y"))
	if got := APIError(hinted); got.Hint != "try y" {
		t.Errorf("hint %q", got.Hint)
	}
}
