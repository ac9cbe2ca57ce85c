package main_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/volmgr/csitest"
)

// TestFusePlugin checks a plugin that serves FUSE file systems itself, so its mounts die with its
// process. After a kill of the plugin, or of the plugin and the agent, the agent repairs the
// volume. It unpublishes all claims, unstages the volume, and then stages and publishes it again.
// The claims keep their paths and their data. The agent cannot unmount a dead mount while a process
// has a file open on it. An event then names the process, and the repair continues once the process
// closes the file. The next agent recognizes the new mounts at once.
func TestFusePlugin(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10m", func(c *csitest.Config) { c.Attach, c.Fuse = false, true })
	h.register("data", "single-node-multi-writer")
	var files []string
	for _, alloc := range []string{"a", "b"} {
		files = append(files, filepath.Join(h.volctl("volume", "claim", "data", "--alloc", alloc), "file"))
	}
	if mounts := h.mounts(); strings.Count(mounts, "fuse.csitest") != 3 {
		t.Fatalf("the mounts are no FUSE:\n%s", mounts)
	}
	h.must(os.WriteFile(files[0], []byte("kept"), 0o644))
	h.exits(4, `in use, by "data"; 2 claims have FUSE mounts, which break if`, "plugin", "restart", "rec")
	killed := func() { h.must(syscall.Kill(h.pluginPID("rec"), syscall.SIGKILL)) }
	mounted := func() { // the agent also reports the claims as mounted
		t.Helper()
		for _, file := range files {
			h.await("the data to be back", func() bool {
				raw, err := os.ReadFile(file)
				return err == nil && string(raw) == "kept"
			})
		}
		h.await("the claims to be in place", func() bool { return strings.Contains(h.volctl("volume", "list"), " mounted ") })
	}

	again := []string{unpub, unpub, unst, st, pub, pub}
	mark := h.mark()
	killed()
	mounted()
	h.expect(mark, again...)

	mark, pid := h.mark(), h.pluginPID("rec")
	h.kill()
	h.must(syscall.Kill(pid, syscall.SIGKILL))
	h.start("rec")
	mounted()
	h.expect(mark, again...)

	held, err := os.OpenFile(files[1], os.O_RDWR, 0)
	h.must(err)
	killed()
	h.await("the death", func() bool { return errors.Is(held.Sync(), syscall.ENOTCONN) })
	if _, err := held.Write([]byte("x")); !errors.Is(err, syscall.ENOTCONN) {
		t.Errorf("a write to a file of the dead mount: %v", err)
	}
	h.await("the events to say who is in the way", func() bool {
		return strings.Contains(h.volctl("events", "--volume", "data"), fmt.Sprintf("device or resource busy, held by pid %d", os.Getpid()))
	})
	_ = held.Close() // the flush fails, because no process serves the file system
	mounted()

	log, mounts, mark := h.writer(filepath.Dir(files[0])), h.mounts(), h.mark()
	h.kill()
	was := size(log)
	h.await("the writer to go on without the agent", func() bool { return size(log) > was })
	h.start("rec")
	h.await("the claims to be in place", func() bool { return strings.Contains(h.volctl("volume", "list"), " mounted ") })
	h.expect(mark)
	if got := h.mounts(); got != mounts {
		t.Errorf("the mounts changed:\n%s\nwere:\n%s", got, mounts)
	}
}

// TestAnotherServer checks a plugin that a wrapper process starts. The plugin dies, and the wrapper
// starts it again. The agent counts this as a restart, checks the plugin's volumes, and repairs
// mounts that died with the plugin.
func TestAnotherServer(t *testing.T) {
	t.Parallel()
	h := prepared(t, "10m", func(c *csitest.Config) { c.Attach, c.Fuse = false, true })
	self, err := os.Executable()
	h.must(err)
	script := filepath.Join(h.dir, "plugin")
	h.must(os.WriteFile(script, []byte("#!/bin/sh\n"+self+"\nexec "+self+"\n"), 0o755)) // the second start replaces the shell
	h.must(os.WriteFile(filepath.Join(h.dir, "plugins.d", "rec.yaml"), []byte(strings.ReplaceAll(h.files("plugins.d/rec.yaml"), self, script)), 0o644))
	h.start("rec")
	h.register("data", "single-node-writer")
	file := filepath.Join(h.volctl("volume", "claim", "data", "--alloc", "a"), "file")
	h.must(os.WriteFile(file, []byte("kept"), 0o644))

	pid, mark := h.pluginPID("rec"), h.mark()
	for _, server := range h.started() {
		if server != pid {
			h.must(syscall.Kill(server, syscall.SIGKILL))
		}
	}
	h.await("the data to be back", func() bool {
		raw, err := os.ReadFile(file)
		return err == nil && string(raw) == "kept"
	})
	h.expect(mark, unpub, unst, st, pub)
	h.volctl("wait", "--plugin", "rec", "--timeout", "10s")
	if now := h.pluginPID("rec"); now != pid {
		t.Errorf("process %d was %d", now, pid)
	}
	h.exits(0, "restarts 1", "plugin", "status", "rec")
	h.exits(0, "its process replaced its socket and kept running", "events")
}
