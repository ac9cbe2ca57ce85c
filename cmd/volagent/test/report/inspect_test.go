package report_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

// TestInspect checks that inspect compares the records with the mounts while no agent runs, and
// that inspect changes neither.
func TestInspect(t *testing.T) {
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("data", "single-node-multi-writer")
	path := h.Volctl("volume", "claim", "data", "--alloc", "a")
	other := h.Volctl("volume", "claim", "data", "--alloc", "b")
	says := func(code int, words ...string) {
		t.Helper()
		out, got := harness.Inspect(h.Host)
		for _, w := range words {
			if got != code || !strings.Contains(out, w) {
				t.Fatalf("exit %d instead of %d, or it does not say %q:\n%s", got, code, w, out)
			}
		}
	}
	says(0, "agent     running", path+"  as recorded (published for a)")
	h.Kill()
	db := filepath.Join(h.Dir, "d", "state.db")
	before, err := os.ReadFile(db)
	h.Must(err)
	mounts := h.Mounts()
	says(0, "agent     not running", "database  ok", `claim of "a"  mounted`, other+"  as recorded", `plugin "rec"`, "alive: true")
	out, code := harness.Inspect(h.Host, "--json")
	var in struct {
		Volumes []struct {
			ID     string
			Mounts []struct{ Path, Is string }
		}
		Findings []string
	}
	h.Must(json.Unmarshal([]byte(out), &in))
	if code != 0 || len(in.Volumes) != 1 || len(in.Volumes[0].Mounts) != 3 || len(in.Findings) != 0 {
		t.Errorf("exit %d, %+v", code, in)
	}

	// The agent tests mount propagation with a mount named .canary. If a killed agent leaves this
	// mount, inspect must not report it.
	canary := filepath.Join(h.Dir, "d", "csi", "rec", "staging", ".canary")
	h.Must(os.MkdirAll(canary, 0o700))
	h.Must(syscall.Mount("volagent-canary", canary, "tmpfs", 0, ""))
	says(0, "agent     not running")
	h.Must(syscall.Unmount(canary, 0))
	h.Must(os.Remove(canary))

	// Unmount one claim, and make another mount that has no record.
	h.Must(syscall.Unmount(other, 0))
	planted := filepath.Join(h.Dir, "d", "csi", "planted")
	h.Must(os.Mkdir(planted, 0o755))
	h.Must(syscall.Mount("none", planted, "tmpfs", 0, ""))
	says(1, other+"  missing", planted+" is mounted (tmpfs), and no record explains it", "2 findings")
	h.Must(syscall.Unmount(planted, 0))

	// inspect must not have changed the database. If the database is damaged, inspect must still
	// show the mounts.
	if after, err := os.ReadFile(db); err != nil || !bytes.Equal(after, before) {
		t.Errorf("the database was changed: %v", err)
	}
	h.Must(os.WriteFile(db, bytes.Repeat([]byte("x"), 8192), 0o600))
	says(1, "the file is damaged", path+" is mounted")
	if got := h.Mounts(); !strings.Contains(mounts, got) {
		t.Errorf("the mounts changed:\n%s\nwere:\n%s", got, mounts)
	}
	h.Must(os.WriteFile(db, before, 0o600))
}
