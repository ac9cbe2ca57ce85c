package state_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// TestReadOnlyDataDir kills the agent and starts it while the file system of its data dir is
// read-only. The agent must report this and refuse claims, but must still be able to detach mounted
// volumes.
func TestReadOnlyDataDir(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", func(c *csitest.Config) { c.Attach = false })
	h.Must(h.Signal(syscall.SIGTERM))
	h.StopPlugins()
	data, image := filepath.Join(h.Dir, "d"), filepath.Join(h.Dir, "image")
	h.Must(os.RemoveAll(data))
	h.Must(os.Mkdir(data, 0o711))
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
	}
	run("truncate", "-s", "64M", image)
	run("mkfs.ext4", "-q", "-F", image)
	run("mount", "-o", "loop,errors=remount-ro", image, data)
	t.Cleanup(func() { h.Must(syscall.Unmount(data, syscall.MNT_DETACH)) })
	h.Start("rec")
	h.Register("a", "single-node-multi-writer")
	h.Register("b", "single-node-writer")
	path := h.Volctl("volume", "claim", "a", "--alloc", "one")
	h.Volctl("volume", "claim", "a", "--alloc", "two")
	h.Kill()
	run("mount", "-o", "remount,abort", data) // the kernel does the same after a disk error
	if err := os.WriteFile(filepath.Join(data, "file"), nil, 0o600); !errors.Is(err, syscall.EROFS) {
		t.Fatalf("the data dir can be written: %v", err)
	}

	h.Start("rec")
	h.ExpectOutput("can only be read", "node", "status")
	h.ExpectRefusal(1, "read-only file system", "volume", "claim", "b")
	if ids := strings.Join(harness.Doctor(h.Host).IDs(), " "); !strings.Contains(ids, "db-commit:state.db") {
		t.Errorf("doctor finds %s", ids)
	}
	h.Must(os.WriteFile(filepath.Join(path, "file"), []byte("x"), 0o600))
	for _, alloc := range []string{"one", "two"} {
		h.Volctl("volume", "detach", "a", alloc)
	}
	if left := h.Mounts(); strings.Contains(left, "/csi/") || len(h.Claims()) != 0 {
		t.Errorf("claims are %q; mounted are\n%s", h.Claims(), left)
	}
	h.Kill()
	h.StopPlugins()
}
