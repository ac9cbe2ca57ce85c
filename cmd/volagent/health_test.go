package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/csitest"
)

// TestIdlePlugin checks that a ready plugin with a mounted volume receives at most one probe per
// interval, and no other call.
func TestIdlePlugin(t *testing.T) {
	t.Parallel()
	const interval, probes = 200 * time.Millisecond, 10
	h := prepared(t, "10s", nil)
	file := filepath.Join(h.dir, "plugins.d", "rec.yaml")
	text := strings.TrimSuffix(strings.TrimSpace(h.files("plugins.d/rec.yaml")), "}") + `, "health": {"interval": "` + interval.String() + `"}}`
	h.must(os.WriteFile(file, []byte(text), 0o644))
	h.start("rec")
	h.register("data", "single-node-writer")
	h.volctl("volume", "claim", "data", "--alloc", "a")

	begun, mark := time.Now(), h.mark()
	calls, err := csitest.AwaitCalls(t.Context(), h.cfg.JournalPath(), func(cs csitest.Calls) bool { return cs.Since(mark).Count(csitest.Probe) >= probes })
	h.must(err)
	took := time.Since(begun)
	calls = calls.Since(mark)
	if most := int(took/interval) + 1; len(calls) > most || calls.Count(csitest.Probe) != len(calls) {
		t.Errorf("%d calls in %s, at most %d probes are due:\n%s", len(calls), took, most, calls)
	}
}

// TestNeverReady checks a plugin that never opens its socket. After its first start has failed, the
// node status reports the plugin as a problem, even during a later start.
func TestNeverReady(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.must(os.WriteFile(filepath.Join(h.dir, "plugins.d", "mute.yaml"), []byte("id: mute\nexec: {command: [sleep, \"1000\"]}\nhealth: {start_timeout: 1s}\n"), 0o644))
	h.start("local")
	h.await("the second start", func() bool {
		return h.volctl("plugin", "status", "mute", "-o", "go-template={{.state}} {{.restarts}}") == "starting 1"
	})
	h.exits(0, "again, after: not ready after 1s: it has not opened its socket", "node", "status")
	h.exits(0, "it has not opened its socket", "plugin", "status", "mute")
}

// TestPluginAway checks a plugin that cannot start. A claim waits until its own timeout and then
// fails with the plugin's last output. Mounted volumes stay untouched. A detach waits, and
// completes once the plugin is ready again.
func TestPluginAway(t *testing.T) {
	t.Parallel()
	h := prepared(t, "10s", nil)
	self, err := os.Executable()
	h.must(err)
	broken, script := filepath.Join(h.dir, "broken"), filepath.Join(h.dir, "plugin")
	h.must(os.WriteFile(script, []byte("#!/bin/sh\n[ ! -e "+broken+" ] || { echo 'fatal: no such server' >&2; exit 1; }\nexec "+self+"\n"), 0o755))
	file := filepath.Join(h.dir, "plugins.d", "rec.yaml")
	h.must(os.WriteFile(file, []byte(strings.ReplaceAll(h.files("plugins.d/rec.yaml"), self, script)), 0o644))
	h.start("rec")
	h.register("data", "single-node-multi-writer")
	h.register("other", "single-node-writer")
	log := h.writer(h.volctl("volume", "claim", "data", "--alloc", "writer"))
	h.volctl("volume", "claim", "data", "--alloc", "idle")
	mounts, mark := h.mounts(), h.mark()

	h.must(os.WriteFile(broken, nil, 0o644))
	h.must(syscall.Kill(h.pluginPID("rec"), syscall.SIGKILL))
	h.await("the failed start", func() bool {
		return strings.Contains(h.volctl("plugin", "status", "rec"), "process exited with status 1 before it was ready")
	})
	h.exits(6, "fatal: no such server", "volume", "claim", "other", "--alloc", "a", "--timeout", "1s")
	was := size(log)
	h.await("the writer to go on", func() bool { return size(log) > was })
	if got := h.mounts(); got != mounts {
		t.Errorf("the mounts changed:\n%s\nwere:\n%s", got, mounts)
	}
	detached := h.background("volume", "detach", "data", "idle")
	h.await("the detach to wait", func() bool { return strings.Contains(h.volctl("claim", "list"), "unpublishing") })
	h.expect(mark)

	h.must(os.Remove(broken))
	h.volctl("plugin", "start", "rec") // do not wait for the restart delay
	if r := <-detached; r.code != 0 {
		t.Errorf("the detach: exit %d, %s", r.code, r.err)
	}
	h.expect(mark, csitest.NodeUnpublish)
}
