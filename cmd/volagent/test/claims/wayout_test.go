package claims_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// apart is a host on which the test runs the plugin. The agent cannot restart the plugin.
type apart struct {
	harness.Recorded
	plugin *exec.Cmd
}

// newApart starts the plugin, and then an agent that knows only the plugin's socket.
func newApart(t *testing.T, deadline string, tune func(*csitest.Config)) *apart {
	t.Helper()
	h := &apart{Recorded: harness.Recorded{Host: harness.NewHost(t)}}
	h.Config = csitest.Config{
		Base: filepath.Join(h.Dir, "p"), NodeID: "test-host", Stage: true, MultiWriter: true, AnyVolume: true,
	}
	if tune != nil {
		tune(&h.Config)
	}
	h.Must(os.WriteFile(filepath.Join(h.Dir, "plugins.d", "rec.yaml"), fmt.Appendf(nil,
		"id: rec\nsocket: %s\nhealth: {interval: 1s, timeout: 1s}\ntimeouts: {node: %s, controller: %s}\n", h.pluginSocket(), deadline, deadline), 0o644))
	t.Cleanup(h.ExpectNoViolations)
	h.startPlugin()
	t.Cleanup(h.killPlugin)
	h.Start("rec")
	return h
}

func (h *apart) pluginSocket() string { return filepath.Join(h.Dir, "csi.sock") }

func (h *apart) startPlugin() {
	h.T.Helper()
	env, err := h.Config.Environment()
	h.Must(err)
	h.plugin = exec.Command("/proc/self/exe")
	h.plugin.Env = append(os.Environ(), append(env, "CSI_ENDPOINT=unix://"+h.pluginSocket())...)
	h.plugin.Stderr = h.Log
	h.Must(h.plugin.Start())
}

// killPlugin kills the plugin and removes its socket.
func (h *apart) killPlugin() {
	if h.plugin == nil {
		return
	}
	h.Must(h.plugin.Process.Kill())
	_ = h.plugin.Wait() // Wait returns an error because the process was killed
	h.plugin = nil
	_ = os.Remove(h.pluginSocket()) // Remove fails if the plugin has not created its socket yet
}

// lose kills the plugin and waits until the agent notices that the plugin is not ready.
func (h *apart) lose() {
	h.T.Helper()
	h.killPlugin()
	h.Await("the agent to miss the plugin", func() bool {
		return !strings.Contains(h.Volctl("plugin", "status", "rec", "-o", "go-template={{.state}}"), "ready")
	})
}

// TestDetachWithoutPlugin checks that a claim can be detached while the plugin is down. When the
// plugin is back, the agent makes the skipped calls before it stages a volume.
func TestDetachWithoutPlugin(t *testing.T) {
	t.Parallel()
	h := newApart(t, "10s", func(c *csitest.Config) { c.Attach = true })
	h.Register("data", "single-node-multi-writer")
	for _, alloc := range []string{"a", "b"} {
		h.Volctl("volume", "claim", "data", "--alloc", alloc)
	}
	h.lose()
	h.ExpectExit(6, "is detached; volagent unmounts it when the plugin is ready", "volume", "detach", "data", "a", "--timeout", "1s")
	mark := h.Mark()

	h.ExpectExit(0, `left: pending call to plugin "rec": NodeUnpublishVolume`, "volume", "detach", "data", "a", "--without-plugin")
	if m := h.Mounts(); strings.Count(m, "\n") != 2 || strings.Contains(m, "per-alloc/a/") {
		t.Errorf("with the claim of a gone these are mounted:\n%s", m)
	}
	h.ExpectExit(0, "ControllerUnpublishVolume", "volume", "detach", "data", "b", "--without-plugin=lazy")
	if m, n := h.Mounts(), len(h.Claims()); m != "" || n != 0 {
		t.Errorf("%d claims, and these are mounted:\n%s", n, m)
	}
	h.ExpectExit(0, "pending calls (NodeUnpublishVolume, NodeUnstageVolume, ControllerUnpublishVolume)", "volume", "status", "data")
	h.ExpectCalls(mark)

	// The calls stay pending although the agent is killed.
	h.Kill()
	h.Start()
	h.Volctl("volume", "claim", "data", "--alloc", "b", "--no-wait")
	h.startPlugin()
	h.Volctl("wait", "--volume", "data", "--for", "mounted", "--timeout", "60s")
	h.ExpectCalls(mark, csitest.NodeUnpublish, csitest.NodeUnpublish, csitest.NodeUnstage,
		csitest.ControllerPublish, csitest.NodeStage, csitest.NodePublish)
	h.Volctl("volume", "detach", "data", "b")
	if calls := h.Calls(mark).Methods(); calls[len(calls)-1] != csitest.ControllerUnpublish {
		t.Errorf("the volume is not detached: %v", calls)
	}
}

// TestDetachBusy checks that a detach does not use more force than its option allows. The error
// names the process that uses the mount, and the option that allows more force.
func TestDetachBusy(t *testing.T) {
	h := newApart(t, "10s", func(c *csitest.Config) { c.Attach = true })
	h.Register("data", "single-node-writer")
	path := h.Volctl("volume", "claim", "data", "--alloc", "a")
	holder := fmt.Sprintf("pid %d sleep", harness.StartSleeper(t, path).PID())
	h.lose()
	for _, how := range [][2]string{{"--without-plugin", "--without-plugin=force"}, {"--without-plugin=force", "--without-plugin=lazy"}} {
		r := h.ExpectExit(4, holder, "volume", "detach", "data", "a", how[0])
		if !strings.Contains(r.Err, how[1]) || !strings.Contains(h.Mounts(), path) {
			t.Errorf("%s: %s%s", how[0], r.Err, h.Mounts())
		}
	}
	h.ExpectExit(0, holder, "volume", "detach", "data", "a", "--without-plugin=lazy")
	h.ExpectNoMounts()
	h.ExpectExit(0, "was unmounted lazily", "volume", "status", "data")
	h.ExpectExit(2, "is not a way to unmount", "volume", "detach", "data", "a", "--without-plugin=fire")

	// The agent can never prove that a lazily unmounted volume is unused.
	mark := h.Mark()
	h.startPlugin()
	h.Await("the debts to be paid", func() bool { return slices.Contains(h.Calls(mark).Methods(), csitest.NodeUnstage) })
	h.Await("the detach to be refused", func() bool {
		return strings.Contains(h.Volctl("volume", "status", "data"), "nothing on this host tells whether it is still in use")
	})
	h.ExpectCalls(mark, csitest.NodeUnpublish, csitest.NodeUnstage)
}

// TestDetachFromErrors detaches a claim with --without-plugin although the plugin runs, because the
// plugin answers only with errors.
func TestDetachFromErrors(t *testing.T) {
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("data", "single-node-writer")
	h.Volctl("volume", "claim", "data", "--alloc", "a", "--at", h.Mkdir("at"))
	h.AddFaults(csitest.Fault{Method: csitest.NodeUnpublish, Code: codes.Internal, Message: "target is busy", Times: -1})
	h.ExpectExit(5, "target is busy", "volume", "detach", "data", "a", "--timeout", "1s")
	mark := h.Mark()
	h.Volctl("volume", "detach", "data", "a", "--without-plugin")
	if m, n := h.Mounts(), len(h.Claims()); m != "" || n != 0 {
		t.Errorf("%d claims, and these are mounted:\n%s", n, m)
	}
	// Once the volume is no longer mounted, the agent does not depend on the call that fails.
	h.Await("the volume to be free", func() bool { return strings.Contains(h.Volctl("volume", "list"), " free ") })
	h.ExpectCalls(mark, csitest.NodeUnpublish, csitest.NodeUnstage, csitest.ControllerUnpublish)
}

// TestDetachBlock detaches a claim of a block device while the plugin hangs. The agent must unmount
// the device and remove the file on which the device was mounted.
func TestDetachBlock(t *testing.T) {
	h := harness.NewHost(t)
	h.Start("local")
	h.Volctl("volume", "create", "disk", "--plugin", "local", "--size", "64MiB", "--param", "type=image", "--attachment-mode", "block-device")
	path := h.Volctl("volume", "claim", "disk", "--alloc", "a")
	pid := h.PluginPID("local")
	h.Must(syscall.Kill(pid, syscall.SIGSTOP))
	h.Volctl("volume", "detach", "disk", "a", "--without-plugin", "--timeout", "30s")
	if m := h.Mounts(); strings.Contains(m, path) || len(h.Claims()) != 0 {
		t.Errorf("still mounted:\n%s", m)
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the device node stays: %v", err)
	}
	h.Must(syscall.Kill(pid, syscall.SIGCONT))
	h.Volctl("wait", "--volume", "disk", "--for", "free", "--timeout", "60s")
	h.Volctl("volume", "claim", "disk", "--alloc", "a")
	h.Volctl("volume", "detach", "disk", "a")
}

// TestDetachPending detaches claims whose volume was never mounted.
func TestDetachPending(t *testing.T) {
	t.Parallel()
	pending := func(h *apart) {
		h.Register("data", "single-node-writer")
		h.Volctl("volume", "claim", "data", "--alloc", "a", "--no-wait")
	}
	t.Run("the plugin is down, nothing was sent", func(t *testing.T) {
		h := newApart(t, "10s", nil)
		h.lose()
		pending(h)
		h.Volctl("volume", "detach", "data", "a")
		h.ExpectExit(0, " free ", "volume", "list")
		// After a normal stop, the next agent knows that no call was made, so the detach completes.
		h.Volctl("volume", "claim", "data", "--alloc", "a", "--no-wait")
		h.Must(h.Signal(syscall.SIGTERM))
		h.Start()
		h.Volctl("volume", "detach", "data", "a")
		h.ExpectCalls(0)
		// After a crash, the next agent does not know whether a call was made.
		h.Volctl("volume", "claim", "data", "--alloc", "a", "--no-wait")
		h.Kill()
		h.Start()
		h.ExpectExit(6, "unmounts it when the plugin is ready", "volume", "detach", "data", "a", "--timeout", "1s")
		h.Volctl("volume", "detach", "data", "a", "--without-plugin")
		if len(h.Claims()) != 0 {
			t.Error("the claim is still there")
		}
		h.ExpectCalls(0)
		h.startPlugin()
		h.Await("what is owed to be paid", func() bool { return len(h.Calls(0)) == 2 })
		h.ExpectCalls(0, csitest.NodeUnpublish, csitest.NodeUnstage)
	})
	t.Run("a stage hangs", func(t *testing.T) {
		h := newApart(t, "2m", nil)
		h.AddFaults(csitest.Fault{Method: csitest.NodeStage, Hang: true})
		pending(h)
		h.Await("the call", func() bool { return h.Calls(0).Count(csitest.NodeStage) == 1 })
		began := time.Now()
		h.Volctl("volume", "detach", "data", "a", "--without-plugin")
		if d := time.Since(began); d > time.Minute || len(h.Claims()) != 0 {
			t.Errorf("it took %s, and leaves %d claims", d, len(h.Claims()))
		}
		h.Must(h.Config.Faults().Clear())
	})
	t.Run("a stage fails for ever", func(t *testing.T) {
		h := newApart(t, "10s", nil)
		h.AddFaults(csitest.Fault{Method: csitest.NodeStage, Code: codes.FailedPrecondition, Times: -1})
		pending(h)
		h.Await("the call", func() bool { return h.Calls(0).Count(csitest.NodeStage) > 0 })
		h.Volctl("volume", "detach", "data", "a")
	})
	t.Run("its secret cannot be read", func(t *testing.T) {
		h := newApart(t, "10s", nil)
		file := filepath.Join(h.Dir, "data.yaml")
		h.Must(os.WriteFile(h.Dir+"/key", nil, 0o600))
		h.Must(os.WriteFile(file, []byte("id: data\nplugin_id: rec\nexternal_id: x\nsecrets:\n  key: {file: "+h.Dir+"/key}\n"), 0o644))
		h.Volctl("volume", "register", file)
		h.Must(os.Remove(h.Dir + "/key"))
		h.Volctl("volume", "claim", "data", "--alloc", "a", "--no-wait")
		h.Await("the failure", func() bool { return strings.Contains(h.Volctl("volume", "status", "data"), "cannot read secret") })
		h.Volctl("volume", "detach", "data", "a")
		h.ExpectCalls(0)
	})
}

// TestForcedDebt checks the pending calls of a forced deregister. When the plugin is back, the
// agent makes these calls without another command. If the plugin never returns, the option --forget
// discards the calls.
func TestForcedDebt(t *testing.T) {
	t.Parallel()
	h := newApart(t, "10s", nil)
	claimAndForce := func() {
		t.Helper()
		h.Register("data", "single-node-writer")
		h.Volctl("volume", "claim", "data", "--alloc", "a")
		h.lose()
		h.Volctl("volume", "detach", "data", "a", "--no-wait")
		h.ExpectExit(0, "may still be mounted", "volume", "deregister", "data", "-force", "-y")
	}
	claimAndForce()
	mounts, mark := h.Mounts(), h.Mark()
	h.ExpectExit(0, "was deregistered by force", "node", "status")
	h.ExpectExit(3, "--forget", "volume", "deregister", "data", "-force", "-y")
	h.Kill()
	h.Start()
	h.ExpectExit(0, "was deregistered by force", "node", "status")
	if m := h.Mounts(); m != mounts || strings.Count(m, "\n") != 2 {
		t.Errorf("force changed the mounts:\n%s\nwere:\n%s", m, mounts)
	}
	// A volume that is registered for the same storage, under the same id, must wait for the
	// pending calls.
	h.Register("data", "single-node-writer")
	h.Volctl("volume", "claim", "data", "--alloc", "a", "--no-wait")
	h.ExpectExit(0, "must first undo the leftovers", "volume", "status", "data")
	h.ExpectExit(0, "data", "volume", "detach", "data", "a")
	h.ExpectExit(0, "data", "volume", "deregister", "data", "-y")
	h.startPlugin()
	h.Await("the debt to be paid", func() bool { return !strings.Contains(h.Volctl("node", "status"), "by force") })
	h.ExpectCalls(mark, csitest.NodeUnpublish, csitest.NodeUnstage)
	h.ExpectNoMounts()

	h.Await("the same storage to be mounted", func() bool { return h.Try("wait", "--plugin", "rec").Code == 0 })
	claimAndForce()
	mounts = h.Mounts()
	h.ExpectExit(0, "may still be mounted", "volume", "deregister", "data", "-force", "--forget", "-y")
	if out := h.Volctl("node", "status"); strings.Contains(out, "by force") || h.Mounts() != mounts {
		t.Errorf("it is not given up, or was unmounted:\n%s%s", out, h.Mounts())
	}
	h.ExpectExit(3, "no volume", "volume", "deregister", "data", "-force", "--forget", "-y")
	h.ExpectExit(2, "-force only", "volume", "deregister", "data", "--forget", "-y")
	for _, line := range slices.Backward(strings.Split(strings.TrimSpace(mounts), "\n")) {
		h.Must(syscall.Unmount(strings.Fields(line)[4], 0))
	}
}

// TestStatusWithPluginsDown checks an agent that has just restarted while its plugin hangs. Every
// status command responds at once, and all claims stay mounted.
func TestStatusWithPluginsDown(t *testing.T) {
	h := newApart(t, "2m", nil)
	h.Register("data", "single-node-writer")
	h.Volctl("volume", "claim", "data", "--alloc", "a")
	mounts, mark := h.Mounts(), h.Mark()
	h.Must(h.plugin.Process.Signal(syscall.SIGSTOP))
	h.Kill()
	h.Start()
	var slowest time.Duration
	for _, args := range [][]string{{"volume", "list"}, {"volume", "status", "data"}, {"claim", "list"}, {"node", "status"}, {"plugin", "list"}} {
		began := time.Now()
		out := h.Volctl(args...)
		slowest = max(slowest, time.Since(began))
		if args[0] == "volume" && !strings.Contains(out, "mounted") || args[0] == "claim" && !strings.Contains(out, "plugin unavailable") {
			t.Errorf("volctl %v says\n%s", args, out)
		}
	}
	t.Logf("the slowest answer took %s", slowest)
	if slowest > 5*time.Second { // the agent promises 1 s on an idle machine
		t.Errorf("the slowest answer took %s", slowest)
	}
	h.ExpectExit(0, "mounted, writable, plugin unavailable", "volume", "status", "data")
	if m := h.Mounts(); m != mounts {
		t.Errorf("the mounts changed:\n%s\nwere:\n%s", m, mounts)
	}
	h.ExpectCalls(mark)
	h.Must(h.plugin.Process.Signal(syscall.SIGCONT))
}

// TestLateUndo kills the agent during a NodeUnpublishVolume that unmounts the target only seconds
// later. The agent must not mount a new claim before the target is unmounted.
func TestLateUndo(t *testing.T) {
	t.Parallel()
	const late = 4 * time.Second
	h := newApart(t, "8s", nil)
	h.Register("data", "single-node-writer")
	h.Volctl("volume", "claim", "data", "--alloc", "a")
	h.AddFaults(csitest.Fault{Method: csitest.NodeUnpublish, Delay: late})
	mark := h.Mark()
	h.Volctl("volume", "detach", "data", "a", "--no-wait")
	h.Await("the call", func() bool { return h.Calls(mark).Count(csitest.NodeUnpublish) == 1 })
	asked := time.Now()
	h.Kill()
	h.Start()
	path := h.Volctl("volume", "claim", "data", "--alloc", "a")
	if d := time.Since(asked); d < late {
		t.Errorf("mounted %s after a call was given up that is at work for %s", d, late)
	}
	if !strings.Contains(h.Mounts(), path) {
		t.Errorf("the mount was taken away:\n%s", h.Mounts())
	}

	// After a normal stop, the next agent has no late effects to wait for.
	h.Volctl("volume", "detach", "data", "a")
	h.Must(h.Signal(syscall.SIGTERM))
	h.Start("rec")
	var v struct {
		Notes []string `json:"notes"`
	}
	h.Volctl("volume", "claim", "data", "--alloc", "a")
	h.Must(json.Unmarshal([]byte(h.Volctl("volume", "status", "data", "-o", "json")), &v))
	t.Logf("notes: %q", v.Notes)
	h.Volctl("volume", "detach", "data", "a")
}
