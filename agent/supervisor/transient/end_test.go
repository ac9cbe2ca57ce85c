package transient

import (
	"testing"

	"github.com/volagent/volagent/agent/systemd"
)

// TestEnding checks the description of each way in which a service's process can end.
func TestEnding(t *testing.T) {
	for _, tt := range []struct {
		code, status int
		result, want string
	}{
		{0, 0, "success", "ended with an unknown status"},
		{1, 0, "success", "exited with status 0"},
		{1, 3, "exit-code", "exited with status 3"},
		{1, 203, "exit-code", "could not be executed (status 203)"},
		{2, 9, "signal", "killed by signal 9 (SIGKILL)"},
		{2, 9, "oom-kill", "killed by signal 9 (SIGKILL) (oom-kill)"},
		{3, 11, "core-dump", "killed by signal 11 (SIGSEGV)"},
		{2, 6, "watchdog", "killed by signal 6 (SIGABRT) (watchdog)"},
	} {
		var s systemd.Service
		s.ExecCode, s.ExecStatus, s.Result = tt.code, tt.status, tt.result
		if got := Ending(s); got != tt.want {
			t.Errorf("code %d, status %d, result %s: %q, want %q", tt.code, tt.status, tt.result, got, tt.want)
		}
	}
}
