package plugins_test

import (
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// TestPluginControl restarts a plugin whose volume is claimed, and checks that the mounts remain.
// It also stops the plugin. A stopped plugin stays stopped until an operator starts it, even if the
// agent is killed.
func TestPluginControl(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("data", "single-node-writer")
	at := h.Mkdir("at")
	h.Volctl("volume", "claim", "data", "--alloc", "a", "--at", at)
	file := h.StartWriter(at)
	mounts, pid, mark := h.Mounts(), h.PluginPID("rec"), h.Mark()
	h.ExpectExit(4, `in use, by "data"; no claim has a FUSE mount`, "plugin", "stop", "rec")
	h.ExpectExit(4, "hint: volctl plugin restart rec -y", "plugin", "restart", "rec")
	h.ExpectExit(3, `near: "rec"`, "plugin", "restart", "recc")
	if now := h.PluginPID("rec"); now != pid {
		t.Errorf("a refusal made process %d of %d", now, pid)
	}

	h.ExpectExit(0, `restarted plugin "rec"`, "plugin", "restart", "rec", "-y")
	if now := h.PluginPID("rec"); now == pid || now == 0 || !harness.ProcessEnded(pid) {
		t.Errorf("restarted: process %d was %d", now, pid)
	}
	h.Volctl("wait", "--volume", "data", "--for", "mounted", "--timeout", "30s")
	if got := h.Mounts(); got != mounts || len(h.Claims()) != 1 {
		t.Errorf("%d claims, and the mounts changed:\n%s\nwere:\n%s", len(h.Claims()), got, mounts)
	}
	was := harness.FileSize(file)
	h.Await("the writer to go on", func() bool { return harness.FileSize(file) > was })
	h.ExpectExit(0, " healthy", "node", "status")

	h.ExpectExit(0, `stopped plugin "rec"`, "plugin", "stop", "rec", "--force")
	h.ExpectExit(0, "→ volctl plugin start rec", "node", "status")
	was = harness.FileSize(file)
	h.Await("the writer to go on without the plugin", func() bool { return harness.FileSize(file) > was })
	h.ExpectExit(0, `started plugin "rec"`, "plugin", "start", "rec")
	h.ExpectCalls(mark)
}

// TestPluginStopped checks that a plugin that an operator has stopped does not start after a kill
// of the agent or after a reload.
func TestPluginStopped(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("data", "single-node-writer")
	h.Volctl("volume", "claim", "data", "--alloc", "a")
	h.ExpectExit(4, `in use, by "data"`, "plugin", "stop", "rec")
	h.Volctl("volume", "detach", "data", "a")
	pid := h.PluginPID("rec")
	h.ExpectExit(0, `stopped plugin "rec"`, "plugin", "stop", "rec")
	if !harness.ProcessEnded(pid) {
		t.Errorf("process %d outlived the stop", pid)
	}
	h.Kill()
	h.Start("local")
	h.Must(h.Cmd.Process.Signal(syscall.SIGHUP))
	h.Await("the reload", func() bool { return strings.Contains(h.ReadFiles("agent.log"), "reloaded") })
	mark := h.Mark()
	h.ExpectExit(0, "stopped: on request; to start it: volctl plugin start rec", "plugin", "status", "rec")
	h.ExpectExit(6, "hint: volctl plugin start rec", "volume", "claim", "data", "--alloc", "a", "--timeout", "1s")
	h.ExpectExit(5, "hint: volctl plugin start rec", "wait", "--plugin", "rec", "--timeout", "1s")
	h.Volctl("volume", "claim", "data", "--alloc", "a", "--no-wait")
	h.ExpectExit(0, "volctl plugin start rec", "volume", "status", "data")
	if pids := h.PluginPIDs("/plugins/rec/"); len(pids) > 0 {
		t.Errorf("it runs: %v", pids)
	}
	h.ExpectCalls(mark)

	h.ExpectExit(0, `started plugin "rec"`, "plugin", "start", "rec")
	h.Volctl("wait", "--volume", "data", "--for", "mounted", "--timeout", "30s")
	h.ExpectCalls(mark, csitest.ControllerPublish, csitest.NodeStage, csitest.NodePublish)
	events := h.Volctl("events")
	for _, want := range []string{"is being stopped on request", "on request; to start it: volctl plugin start rec"} {
		if !strings.Contains(events, want) {
			t.Errorf("no event says %q:\n%s", want, events)
		}
	}
	// Start has no effect on a running plugin.
	h.ExpectExit(0, `started plugin "rec"`, "plugin", "start", "rec")
}
