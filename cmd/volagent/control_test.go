package main_test

import (
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/volmgr/csitest"
)

// TestPluginControl restarts a plugin whose volume is claimed, and checks that the mounts remain.
// It also stops the plugin. A stopped plugin stays stopped until an operator starts it, even if the
// agent is killed.
func TestPluginControl(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", nil)
	h.register("data", "single-node-writer")
	at := h.mkdir("at")
	h.volctl("volume", "claim", "data", "--alloc", "a", "--at", at)
	file := h.writer(at)
	mounts, pid, mark := h.mounts(), h.pluginPID("rec"), h.mark()
	h.exits(4, `in use, by "data"; no claim has a FUSE mount`, "plugin", "stop", "rec")
	h.exits(4, "hint: volctl plugin restart rec -y", "plugin", "restart", "rec")
	h.exits(3, `near: "rec"`, "plugin", "restart", "recc")
	if now := h.pluginPID("rec"); now != pid {
		t.Errorf("a refusal made process %d of %d", now, pid)
	}

	h.exits(0, `restarted plugin "rec"`, "plugin", "restart", "rec", "-y")
	if now := h.pluginPID("rec"); now == pid || now == 0 || !ended(pid) {
		t.Errorf("restarted: process %d was %d", now, pid)
	}
	h.volctl("wait", "--volume", "data", "--for", "mounted", "--timeout", "30s")
	if got := h.mounts(); got != mounts || len(h.claims()) != 1 {
		t.Errorf("%d claims, and the mounts changed:\n%s\nwere:\n%s", len(h.claims()), got, mounts)
	}
	was := size(file)
	h.await("the writer to go on", func() bool { return size(file) > was })
	h.exits(0, " healthy", "node", "status")

	h.exits(0, `stopped plugin "rec"`, "plugin", "stop", "rec", "--force")
	h.exits(0, "→ volctl plugin start rec", "node", "status")
	was = size(file)
	h.await("the writer to go on without the plugin", func() bool { return size(file) > was })
	h.exits(0, `started plugin "rec"`, "plugin", "start", "rec")
	h.expect(mark)
}

// TestPluginStopped checks that a plugin that an operator stopped stays stopped after a kill of the
// agent and after a reload.
func TestPluginStopped(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", nil)
	h.register("data", "single-node-writer")
	h.volctl("volume", "claim", "data", "--alloc", "a")
	h.exits(4, `in use, by "data"`, "plugin", "stop", "rec")
	h.volctl("volume", "detach", "data", "a")
	pid := h.pluginPID("rec")
	h.exits(0, `stopped plugin "rec"`, "plugin", "stop", "rec")
	if !ended(pid) {
		t.Errorf("process %d outlived the stop", pid)
	}
	h.kill()
	h.start("local")
	h.must(h.cmd.Process.Signal(syscall.SIGHUP))
	h.await("the reload", func() bool { return strings.Contains(h.files("agent.log"), "reloaded") })
	mark := h.mark()
	h.exits(0, "stopped: on request; to start it: volctl plugin start rec", "plugin", "status", "rec")
	h.exits(6, "hint: volctl plugin start rec", "volume", "claim", "data", "--alloc", "a", "--timeout", "1s")
	h.exits(5, "hint: volctl plugin start rec", "wait", "--plugin", "rec", "--timeout", "1s")
	h.volctl("volume", "claim", "data", "--alloc", "a", "--no-wait")
	h.exits(0, "volctl plugin start rec", "volume", "status", "data")
	if pids := h.started("/plugins/rec/"); len(pids) > 0 {
		t.Errorf("it runs: %v", pids)
	}
	h.expect(mark)

	h.exits(0, `started plugin "rec"`, "plugin", "start", "rec")
	h.volctl("wait", "--volume", "data", "--for", "mounted", "--timeout", "30s")
	h.expect(mark, csitest.ControllerPublish, csitest.NodeStage, csitest.NodePublish)
	events := h.volctl("events")
	for _, want := range []string{"is being stopped on request", "on request; to start it: volctl plugin start rec"} {
		if !strings.Contains(events, want) {
			t.Errorf("no event says %q:\n%s", want, events)
		}
	}
	h.exits(0, `started plugin "rec"`, "plugin", "start", "rec") // the plugin is already running
}
