package plugins_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// TestFusePlugin checks a plugin that serves FUSE file systems in its own process, so its mounts
// die with the process. After a kill of the plugin, or of the plugin and the agent, the agent
// repairs the volume. It unpublishes all claims, unstages the volume, and then stages and publishes
// the volume again. The claims keep their paths and their data. While a process has a file open on
// a dead mount, the agent cannot unmount it. An event then names the process, and the repair
// continues when the process closes the file. After a restart, the agent recognizes the new mounts
// at once.
func TestFusePlugin(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10m", func(c *csitest.Config) { c.Attach, c.Fuse = false, true })
	h.Register("data", "single-node-multi-writer")
	var files []string
	for _, alloc := range []string{"a", "b"} {
		files = append(files, filepath.Join(h.Volctl("volume", "claim", "data", "--alloc", alloc), "file"))
	}
	if mounts := h.Mounts(); strings.Count(mounts, "fuse.csitest") != 3 {
		t.Fatalf("the mounts are no FUSE:\n%s", mounts)
	}
	h.Must(os.WriteFile(files[0], []byte("kept"), 0o644))
	h.ExpectExit(4, `in use, by "data"; 2 claims have FUSE mounts, which break if`, "plugin", "restart", "rec")
	killed := func() { h.Must(syscall.Kill(h.PluginPID("rec"), syscall.SIGKILL)) }
	mounted := func() { // the status must agree
		t.Helper()
		for _, file := range files {
			h.Await("the data to be back", func() bool {
				raw, err := os.ReadFile(file)
				return err == nil && string(raw) == "kept"
			})
		}
		h.Await("the claims to be in place", func() bool { return strings.Contains(h.Volctl("volume", "list"), " mounted ") })
	}

	again := []string{unpub, unpub, unst, st, pub, pub}
	mark := h.Mark()
	killed()
	mounted()
	h.ExpectCalls(mark, again...)

	mark, pid := h.Mark(), h.PluginPID("rec")
	h.Kill()
	h.Must(syscall.Kill(pid, syscall.SIGKILL))
	h.Start("rec")
	mounted()
	h.ExpectCalls(mark, again...)

	held, err := os.OpenFile(files[1], os.O_RDWR, 0)
	h.Must(err)
	killed()
	h.Await("the death", func() bool { return errors.Is(held.Sync(), syscall.ENOTCONN) })
	if _, err := held.Write([]byte("x")); !errors.Is(err, syscall.ENOTCONN) {
		t.Errorf("a write to a file of the dead mount: %v", err)
	}
	h.Await("the events to say who is in the way", func() bool {
		return strings.Contains(h.Volctl("events", "--volume", "data"), fmt.Sprintf("device or resource busy, held by pid %d", os.Getpid()))
	})
	_ = held.Close() // Close fails, because no process serves the file system
	mounted()

	log, mounts, mark := h.StartWriter(filepath.Dir(files[0])), h.Mounts(), h.Mark()
	h.Kill()
	was := harness.FileSize(log)
	h.Await("the writer to go on without the agent", func() bool { return harness.FileSize(log) > was })
	h.Start("rec")
	h.Await("the claims to be in place", func() bool { return strings.Contains(h.Volctl("volume", "list"), " mounted ") })
	h.ExpectCalls(mark)
	if got := h.Mounts(); got != mounts {
		t.Errorf("the mounts changed:\n%s\nwere:\n%s", got, mounts)
	}
}

// TestAnotherServer checks a plugin that runs as the child of a shell script. When the plugin dies,
// the script starts it again. The agent must count a restart, check the plugin's volumes, and
// repair the mounts that died with the plugin.
func TestAnotherServer(t *testing.T) {
	t.Parallel()
	h := harness.NewRecorded(t, "10m", func(c *csitest.Config) { c.Attach, c.Fuse = false, true })
	self, err := os.Executable()
	h.Must(err)
	script := filepath.Join(h.Dir, "plugin")
	// The second process replaces the shell.
	h.Must(os.WriteFile(script, []byte("#!/bin/sh\n"+self+"\nexec "+self+"\n"), 0o755))
	h.Must(os.WriteFile(filepath.Join(h.Dir, "plugins.d", "rec.yaml"), []byte(strings.ReplaceAll(h.ReadFiles("plugins.d/rec.yaml"), self, script)), 0o644))
	h.Start("rec")
	h.Register("data", "single-node-writer")
	file := filepath.Join(h.Volctl("volume", "claim", "data", "--alloc", "a"), "file")
	h.Must(os.WriteFile(file, []byte("kept"), 0o644))

	pid, mark := h.PluginPID("rec"), h.Mark()
	for _, server := range h.PluginPIDs() {
		if server != pid {
			h.Must(syscall.Kill(server, syscall.SIGKILL))
		}
	}
	h.Await("the data to be back", func() bool {
		raw, err := os.ReadFile(file)
		return err == nil && string(raw) == "kept"
	})
	h.ExpectCalls(mark, unpub, unst, st, pub)
	h.Volctl("wait", "--plugin", "rec", "--timeout", "10s")
	if now := h.PluginPID("rec"); now != pid {
		t.Errorf("process %d was %d", now, pid)
	}
	h.ExpectExit(0, "restarts 1", "plugin", "status", "rec")
	h.ExpectExit(0, "its process replaced its socket and kept running", "events")
}
