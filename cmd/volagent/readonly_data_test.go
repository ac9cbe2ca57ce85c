package main_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/volmgr/csitest"
)

// TestReadOnlyDataDir starts an agent after a kill while the file system of its data dir is
// read-only. The agent reports this and refuses claims, but can still detach mounted volumes.
func TestReadOnlyDataDir(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", func(c *csitest.Config) { c.Attach = false })
	h.must(h.signal(syscall.SIGTERM))
	h.stopPlugins()
	data, image := filepath.Join(h.dir, "d"), filepath.Join(h.dir, "image")
	h.must(os.RemoveAll(data))
	h.must(os.Mkdir(data, 0o711))
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
	}
	run("truncate", "-s", "64M", image)
	run("mkfs.ext4", "-q", "-F", image)
	run("mount", "-o", "loop,errors=remount-ro", image, data)
	t.Cleanup(func() { h.must(syscall.Unmount(data, syscall.MNT_DETACH)) })
	h.start("rec")
	h.register("a", "single-node-multi-writer")
	h.register("b", "single-node-writer")
	path := h.volctl("volume", "claim", "a", "--alloc", "one")
	h.volctl("volume", "claim", "a", "--alloc", "two")
	h.kill()
	run("mount", "-o", "remount,abort", data) // the kernel does the same after a disk error
	if err := os.WriteFile(filepath.Join(data, "file"), nil, 0o600); !errors.Is(err, syscall.EROFS) {
		t.Fatalf("the data dir can be written: %v", err)
	}

	h.start("rec")
	h.says("can only be read", "node", "status")
	h.refused(1, "read-only file system", "volume", "claim", "b")
	if ids := strings.Join(h.doctor().ids(), " "); !strings.Contains(ids, "db-commit:state.db") {
		t.Errorf("doctor finds %s", ids)
	}
	h.must(os.WriteFile(filepath.Join(path, "file"), []byte("x"), 0o600))
	for _, alloc := range []string{"one", "two"} {
		h.volctl("volume", "detach", "a", alloc)
	}
	if left := h.mounts(); strings.Contains(left, "/csi/") || len(h.claims()) != 0 {
		t.Errorf("claims are %q; mounted are\n%s", h.claims(), left)
	}
	h.kill()
	h.stopPlugins()
}
