package plugins_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// TestIdlePlugin checks that a ready plugin with a mounted volume receives at most one probe per
// interval and no other call.
func TestIdlePlugin(t *testing.T) {
	t.Parallel()
	const interval, probes = 200 * time.Millisecond, 10
	h := harness.NewRecorded(t, "10s", nil)
	file := filepath.Join(h.Dir, "plugins.d", "rec.yaml")
	text := strings.TrimSuffix(strings.TrimSpace(h.ReadFiles("plugins.d/rec.yaml")), "}") + `, "health": {"interval": "` + interval.String() + `"}}`
	h.Must(os.WriteFile(file, []byte(text), 0o644))
	h.Start("rec")
	h.Register("data", "single-node-writer")
	h.Volctl("volume", "claim", "data", "--alloc", "a")

	begun, mark := time.Now(), h.Mark()
	calls, err := csitest.AwaitCalls(t.Context(), h.Config.JournalPath(), func(cs csitest.Calls) bool { return cs.Since(mark).Count(csitest.Probe) >= probes })
	h.Must(err)
	took := time.Since(begun)
	calls = calls.Since(mark)
	if most := int(took/interval) + 1; len(calls) > most || calls.Count(csitest.Probe) != len(calls) {
		t.Errorf("%d calls in %s, at most %d probes are due:\n%s", len(calls), took, most, calls)
	}
}

// TestNeverReady checks a plugin that never opens its socket. After the first start has failed, the
// node status must report the plugin as a problem, even while another start is in progress.
func TestNeverReady(t *testing.T) {
	t.Parallel()
	h := harness.NewHost(t)
	h.Must(os.WriteFile(filepath.Join(h.Dir, "plugins.d", "mute.yaml"), []byte("id: mute\nexec: {command: [sleep, \"1000\"]}\nhealth: {start_timeout: 1s}\n"), 0o644))
	h.Start("local")
	h.Await("the second start", func() bool {
		return h.Volctl("plugin", "status", "mute", "-o", "go-template={{.state}} {{.restarts}}") == "starting 1"
	})
	h.ExpectExit(0, "again, after: not ready after 1s: it has not opened its socket", "node", "status")
	h.ExpectExit(0, "it has not opened its socket", "plugin", "status", "mute")
}

// TestPluginAway checks a plugin that cannot start. A claim waits until its own timeout and then
// fails with the last lines that the plugin printed. Mounted volumes stay mounted. A detach waits,
// and completes when the plugin is ready again.
func TestPluginAway(t *testing.T) {
	t.Parallel()
	h := harness.NewRecorded(t, "10s", nil)
	self, err := os.Executable()
	h.Must(err)
	broken, script := filepath.Join(h.Dir, "broken"), filepath.Join(h.Dir, "plugin")
	h.Must(os.WriteFile(script, []byte("#!/bin/sh\n[ ! -e "+broken+" ] || { echo 'fatal: no such server' >&2; exit 1; }\nexec "+self+"\n"), 0o755))
	file := filepath.Join(h.Dir, "plugins.d", "rec.yaml")
	h.Must(os.WriteFile(file, []byte(strings.ReplaceAll(h.ReadFiles("plugins.d/rec.yaml"), self, script)), 0o644))
	h.Start("rec")
	h.Register("data", "single-node-multi-writer")
	h.Register("other", "single-node-writer")
	log := h.StartWriter(h.Volctl("volume", "claim", "data", "--alloc", "writer"))
	h.Volctl("volume", "claim", "data", "--alloc", "idle")
	mounts, mark := h.Mounts(), h.Mark()

	h.Must(os.WriteFile(broken, nil, 0o644))
	h.Must(syscall.Kill(h.PluginPID("rec"), syscall.SIGKILL))
	h.Await("the failed start", func() bool {
		return strings.Contains(h.Volctl("plugin", "status", "rec"), "process exited with status 1 before it was ready")
	})
	h.ExpectExit(6, "fatal: no such server", "volume", "claim", "other", "--alloc", "a", "--timeout", "1s")
	was := harness.FileSize(log)
	h.Await("the writer to go on", func() bool { return harness.FileSize(log) > was })
	if got := h.Mounts(); got != mounts {
		t.Errorf("the mounts changed:\n%s\nwere:\n%s", got, mounts)
	}
	detached := h.StartVolctl("volume", "detach", "data", "idle")
	h.Await("the detach to wait", func() bool { return strings.Contains(h.Volctl("claim", "list"), "unpublishing") })
	h.ExpectCalls(mark)

	h.Must(os.Remove(broken))
	h.Volctl("plugin", "start", "rec") // start the plugin without its restart delay
	if r := <-detached; r.Code != 0 {
		t.Errorf("the detach: exit %d, %s", r.Code, r.Err)
	}
	h.ExpectCalls(mark, csitest.NodeUnpublish)
}
