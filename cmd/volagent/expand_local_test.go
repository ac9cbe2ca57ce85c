package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// usable returns the size of the file system at a path, in MiB.
func (h *host) usable(path string) uint64 {
	h.t.Helper()
	var st syscall.Statfs_t
	h.must(syscall.Statfs(path, &st))
	return st.Blocks * uint64(st.Bsize) >> 20
}

// TestExpandLocal checks that an image volume of the bundled driver grows while a process uses it.
// An unmounted image grows at its next claim.
func TestExpandLocal(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	// After a crash of the agent, an interrupted expansion waits for the deadline of the earlier
	// call. Keep this deadline short.
	h.must(os.WriteFile(filepath.Join(h.dir, "plugins.d", "local.yaml"), []byte("id: local\nbuiltin: local\ntimeouts: {node: 10s, controller: 10s}\n"), 0o644))
	h.start("local")
	// This test needs xfs, because growing ext4 in use needs a capability that test machines may
	// lack.
	h.volctl("volume", "create", "data", "--plugin", "local", "--size", "320MiB", "--param", "type=image", "--fs-type", "xfs")
	path := h.volctl("volume", "claim", "data", "--alloc", "a")
	h.must(os.WriteFile(filepath.Join(path, "file"), []byte("kept"), 0o644))
	was, small := h.mounts(), h.usable(path)
	if got := h.volctl("volume", "expand", "data", "640MiB"); got != `expanded volume "data" to 640MiB` {
		t.Errorf("it said %q", got)
	}
	if now := h.usable(path); small > 320 || now <= 480 || h.mounts() != was {
		t.Errorf("mounted, it has %d MiB, had %d; mounts:\n%s\nwere:\n%s", now, small, h.mounts(), was)
	}
	h.volctl("volume", "detach", "data", "a")
	h.volctl("volume", "expand", "data", "960MiB")
	h.kill()
	h.start("local")
	path = h.volctl("volume", "claim", "data", "--alloc", "a")
	if now := h.usable(path); now <= 800 {
		t.Errorf("expanded while free, it has %d MiB", now)
	}
	if raw, err := os.ReadFile(filepath.Join(path, "file")); err != nil || string(raw) != "kept" {
		t.Errorf("it holds %q, %v", raw, err)
	}
	h.refuses(4, `volume "data" has 960MiB and cannot shrink to 64MiB`, "volume", "expand", "data", "64MiB")
	h.refuses(2, "does not expand volume", "volume", "expand", "data", "1000TiB")
	if got := h.volctl("volume", "status", "data"); !strings.Contains(got, "mounted, writable") {
		t.Errorf("status:\n%s", got)
	}
}
