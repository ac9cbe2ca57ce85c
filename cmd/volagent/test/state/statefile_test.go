package state_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

// newFiled starts a host with the bundled driver and a claimed volume. It also returns the path of
// the state database.
func newFiled(t *testing.T) (h *harness.Host, db string) {
	h = harness.NewHost(t)
	h.Start("local")
	h.Volctl("volume", "create", "a", "--plugin", "local")
	h.Volctl("volume", "claim", "a", "--alloc", "one")
	return h, filepath.Join(h.Dir, "d", "state.db")
}

// TestStateRemoved removes the state database while the agent runs. The agent must write the
// database again with its next change. Until then, a second agent must refuse to start. After a
// restart, the agent must know all volumes and claims.
func TestStateRemoved(t *testing.T) {
	t.Parallel()
	h, db := newFiled(t)
	h.Must(os.Remove(db))
	h.Must(os.Remove(strings.TrimSuffix(db, ".db") + ".log"))
	if out := h.StartFails(); !strings.Contains(out, "another volagent uses this data dir") {
		t.Errorf("a second agent: %s", out)
	}
	h.Volctl("volume", "create", "b", "--plugin", "local")
	h.Volctl("volume", "claim", "b", "--alloc", "two")
	h.Kill()
	h.Start("local")
	if got, want := h.Claims(), []string{"a one", "b two"}; !slices.Equal(got, want) {
		t.Errorf("claims are %q, want %q", got, want)
	}
	h.Volctl("volume", "detach", "a", "one")
	h.Volctl("volume", "detach", "b", "two")
}

// TestStateReplaced replaces the state database by another file while the agent runs. The agent
// must set the other file aside and refuse changes. The status, the doctor and the log must report
// this. After a restart, the agent must know all volumes and claims.
func TestStateReplaced(t *testing.T) {
	t.Parallel()
	h, db := newFiled(t)
	h.Must(os.WriteFile(db+"x", []byte("not this one"), 0o600))
	h.Must(os.Rename(db+"x", db))
	h.ExpectExit(1, "was replaced while the agent used it", "volume", "detach", "a", "one")
	kept, err := filepath.Glob(db + ".foreign-*")
	h.Must(err)
	if len(kept) != 1 {
		t.Fatalf("set aside are %q", kept)
	}
	h.ExpectOutput(kept[0], "node", "status")
	h.ExpectOutput("systemctl restart volagent", "node", "status")
	if ids := harness.Doctor(h).IDs(); !slices.Contains(ids, "db-foreign-file:"+kept[0]) {
		t.Errorf("doctor finds %q", ids)
	}
	raw, err := os.ReadFile(h.Log.Name())
	h.Must(err)
	if !strings.Contains(string(raw), "was replaced while the agent used it") {
		t.Error("the log does not say so")
	}
	h.Kill()
	h.Start("local")
	if got, want := h.Claims(), []string{"a one"}; !slices.Equal(got, want) {
		t.Errorf("claims are %q, want %q", got, want)
	}
	h.Volctl("volume", "detach", "a", "one")
	if now, err := os.ReadFile(kept[0]); err != nil || string(now) != "not this one" {
		t.Errorf("the other file is %q, %v", now, err)
	}
}
