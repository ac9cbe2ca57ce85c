package crash_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/cmd/volagent/test/harness/crasher"
)

// TestKilledWhileAdopting kills an agent before or after the commit that stores the adopted claims.
// The next agent must find and adopt all of these claims.
func TestKilledWhileAdopting(t *testing.T) {
	for at, when := range []string{1: "before the commit", 2: "after it"} {
		if when == "" {
			continue
		}
		t.Run(when, func(t *testing.T) {
			h := harness.StartRecorded(t, "10s", nil)
			h.Register("a", "single-node-writer")
			h.Volctl("volume", "claim", "a")
			h.Kill()
			since := h.Mark()
			db := filepath.Join(h.Dir, "d", "state.db")
			h.Must(os.WriteFile(db, []byte("nonsense"), 0o600))
			told := filepath.Join(h.Dir, "told")
			h.Must(os.Mkdir(told, 0o700))
			raw, err := json.Marshal(crasher.Order{Run: 1, At: at, Agent: true, Commits: true})
			h.Must(err)
			h.Must(os.WriteFile(filepath.Join(told, "order"), raw, 0o600))
			cmd := exec.Command("/proc/self/exe", h.Args()...)
			cmd.Env, cmd.Stderr = append(h.Env, crasher.Env+"="+told), h.Log
			var exit *exec.ExitError
			if err := cmd.Run(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("the agent ended with %v", err)
			}
			h.Start("rec")
			if got := h.Claims(); !slices.Equal(got, []string{"a manual adopted"}) {
				t.Errorf("claims are %q", got)
			}
			kept, err := filepath.Glob(db + ".damaged-*")
			h.Must(err)
			if screen := h.Volctl("node", "status"); len(kept) != 1 || !strings.Contains(screen, kept[0]) {
				t.Errorf("kept are %q; node status:\n%s", kept, screen)
			}
			h.ExpectCalls(since)
			h.Volctl("volume", "detach", "a")
		})
	}
}
