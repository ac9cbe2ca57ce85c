package provision_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

// usableMiB returns the size of the file system at a path, in MiB.
func usableMiB(h *harness.Host, path string) uint64 {
	h.T.Helper()
	var st syscall.Statfs_t
	h.Must(syscall.Statfs(path, &st))
	return st.Blocks * uint64(st.Bsize) >> 20
}

// TestExpandLocal checks that an image volume of the bundled driver grows while a process uses the
// volume. An unmounted image must grow at its next claim.
func TestExpandLocal(t *testing.T) {
	t.Parallel()
	h := harness.NewHost(t)
	// After a crash, the agent resumes an expansion only after the deadline of the interrupted
	// call. Therefore the test sets a short deadline.
	h.Must(os.WriteFile(filepath.Join(h.Dir, "plugins.d", "local.yaml"), []byte("id: local\nbuiltin: local\ntimeouts: {node: 10s, controller: 10s}\n"), 0o644))
	h.Start("local")
	// Use xfs, because growing a mounted ext4 needs a capability that test machines may lack.
	h.Volctl("volume", "create", "data", "--plugin", "local", "--size", "320MiB", "--param", "type=image", "--fs-type", "xfs")
	path := h.Volctl("volume", "claim", "data", "--alloc", "a")
	h.Must(os.WriteFile(filepath.Join(path, "file"), []byte("kept"), 0o644))
	was, small := h.Mounts(), usableMiB(h, path)
	if got := h.Volctl("volume", "expand", "data", "640MiB"); got != `expanded volume "data" to 640MiB (671088640 bytes)` {
		t.Errorf("it said %q", got)
	}
	if now := usableMiB(h, path); small > 320 || now <= 480 || h.Mounts() != was {
		t.Errorf("mounted, it has %d MiB, had %d; mounts:\n%s\nwere:\n%s", now, small, h.Mounts(), was)
	}
	h.Volctl("volume", "detach", "data", "a")
	h.Volctl("volume", "expand", "data", "960MiB")
	h.Kill()
	h.Start("local")
	path = h.Volctl("volume", "claim", "data", "--alloc", "a")
	if now := usableMiB(h, path); now <= 800 {
		t.Errorf("expanded while free, it has %d MiB", now)
	}
	if raw, err := os.ReadFile(filepath.Join(path, "file")); err != nil || string(raw) != "kept" {
		t.Errorf("it holds %q, %v", raw, err)
	}
	h.ExpectRefusal(4, `volume "data" has 960MiB and cannot shrink to 64MiB`, "volume", "expand", "data", "64MiB")
	h.ExpectRefusal(2, "does not expand volume", "volume", "expand", "data", "1000TiB")
	if got := h.Volctl("volume", "status", "data"); !strings.Contains(got, "mounted, writable") {
		t.Errorf("status:\n%s", got)
	}
}
