package harness

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/volagent/volagent/agent/api"
)

// Notes returns the file names of all notes on the host. The agent can adopt the claims that these
// notes describe.
func Notes(h *Host) []string {
	h.T.Helper()
	found, err := filepath.Glob(filepath.Join(h.Dir, "d", "csi", "*", "meta", "*"))
	h.Must(err)
	for i, path := range found {
		found[i] = filepath.Base(path)
	}
	return found
}

// Backup creates a backup and returns its file name.
func Backup(h *Host) string {
	h.T.Helper()
	file := filepath.Join(h.Dir, "backup")
	h.ExpectExit(0, "secrets.key", "state", "backup", file, "--force")
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		h.T.Fatalf("the backup is %v, %v", info, err)
	}
	return file
}

// Restore runs volctl to restore the state from a backup file, and checks volctl's exit code. It
// returns the agent's answer, and the outcome of each restored item.
func Restore(h *Host, code int, file string, args ...string) (r api.Restore, outcomes map[string]string) {
	h.T.Helper()
	res := h.ExpectExit(code, "", append([]string{"state", "restore", file, "-o", "json"}, args...)...)
	h.Must(json.Unmarshal([]byte(res.Out), &r))
	outcomes = map[string]string{}
	for _, i := range r.Items {
		outcomes[i.Kind+" "+i.ID] = i.Outcome
	}
	return r, outcomes
}

// LoseState kills the agent, and removes the state database and the notes. The mounts remain.
func LoseState(h *Host) {
	h.T.Helper()
	h.Kill()
	meta, err := filepath.Glob(filepath.Join(h.Dir, "d", "csi", "*", "meta", "*"))
	h.Must(err)
	for _, path := range append(meta, filepath.Join(h.Dir, "d", "state.db"), filepath.Join(h.Dir, "d", "state.log")) {
		h.Must(os.Remove(path))
	}
	RemoveCopies(h)
}

// RemoveCopies removes the copies of the state database that the agent makes automatically.
func RemoveCopies(h *Host) {
	h.T.Helper()
	copies, err := filepath.Glob(filepath.Join(h.Dir, "d", "state.copy-*"))
	h.Must(err)
	for _, path := range copies {
		h.Must(os.Remove(path))
	}
}
