package plugins_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// inParts is a host whose plugin "rec" has a node part and the controllers a and b. Each part is a
// process with its own journal.
type inParts struct {
	harness.Recorded
	cfgs map[string]csitest.Config // keyed by the part's name
}

func newInParts(t *testing.T) inParts {
	t.Helper()
	h := inParts{harness.Recorded{Host: harness.NewHost(t)}, map[string]csitest.Config{}}
	self, err := os.Executable()
	h.Must(err)
	for part, more := range map[string]string{
		"node": `"type": "node"`, "a": `"type": "controller", "instance": "a"`, "b": `"type": "controller", "instance": "b"`,
	} {
		cfg := csitest.Config{
			Base: filepath.Join(h.Dir, "p", part), NodeID: "test-host", Attach: true, Stage: true, Stats: true, CreateDelete: true, AnyVolume: true, MultiWriter: true,
			NoController: part == "node", NoNode: part != "node",
		}
		h.Must(os.MkdirAll(cfg.Base, 0o755))
		h.cfgs[part] = cfg
		file, err := cfg.PluginFile("rec", self)
		h.Must(err)
		text := strings.TrimSuffix(strings.TrimSpace(string(file)), "}") + `, ` + more + `, "timeouts": {"node": "10s", "controller": "10s"}, "health": {"interval": "1h"}}`
		h.Must(os.WriteFile(filepath.Join(h.Dir, "plugins.d", part+".yaml"), []byte(text), 0o644))
	}
	h.Start("rec")
	h.Await("all parts", func() bool { // a plugin with one ready controller is already ready
		all := h.parts()
		return len(all) == 3 && !slices.ContainsFunc(slices.Collect(maps.Values(all)), func(p api.PluginPart) bool { return p.State != api.PluginReady })
	})
	t.Cleanup(func() {
		for part, cfg := range h.cfgs {
			j, err := csitest.LoadJournal(cfg.JournalPath())
			if err != nil {
				t.Error(err)
			}
			for _, v := range j.Violations {
				t.Errorf("%s: a rule of CSI was broken: %s", part, v)
			}
		}
	})
	return h
}

// parts returns the status of the plugin's parts by name.
func (h inParts) parts() map[string]api.PluginPart {
	h.T.Helper()
	var p api.Plugin
	h.Must(json.Unmarshal([]byte(h.Volctl("plugin", "status", "rec", "-o", "json")), &p))
	all := map[string]api.PluginPart{}
	for _, part := range p.Parts {
		name := part.Instance
		if name == "" {
			name = part.Type
		}
		all[name] = part
	}
	return all
}

// pids returns the pids of the parts by name.
func (h inParts) pids() map[string]int {
	h.T.Helper()
	pids := map[string]int{}
	for name, p := range h.parts() {
		pids[name] = p.PID
	}
	return pids
}

// made returns the number of calls of a method that a part received.
func (h inParts) made(part, method string) int {
	h.T.Helper()
	calls, err := csitest.ReadJournal(h.cfgs[part].JournalPath())
	h.Must(err)
	return calls.Mutating().Count(method)
}

// down stops a part of the plugin. The returned function starts the part again.
func (h inParts) down(part string) (up func()) {
	h.T.Helper()
	which := []string{"--type", "node"}
	if part != "node" {
		which = []string{"--type", "controller", "--instance", part}
	}
	pid := h.pids()[part]
	h.Volctl(append([]string{"plugin", "stop", "rec", "--force"}, which...)...)
	if !harness.ProcessEnded(pid) {
		h.T.Fatalf("process %d of %s outlived the stop", pid, part)
	}
	return func() { h.T.Helper(); h.Volctl(append([]string{"plugin", "start", "rec"}, which...)...) }
}

// TestPartsOfAPlugin checks a plugin with a node part and two controllers. The plugin continues to
// work with the running parts, and claims survive the kill of a controller. Each step waits only
// for the part that it calls. After a restart, the agent finds all three parts.
func TestPartsOfAPlugin(t *testing.T) {
	t.Parallel()
	h := newInParts(t)
	if out := h.Volctl("plugin", "list"); !strings.Contains(strings.Join(strings.Fields(out), " "), " node+controller ready 2/2 1/1 ") {
		t.Errorf("list:\n%s", out)
	}
	h.Volctl("volume", "create", "made", "--plugin", "rec")
	for _, id := range []string{"v1", "v2", "v3", "v4"} {
		h.Register(id, "single-node-writer")
	}
	h.Volctl("volume", "claim", "v1", "--alloc", "a")
	h.Volctl("volume", "claim", "v2", "--alloc", "a")
	if a, b := h.made("a", csitest.ControllerPublish), h.made("b", csitest.ControllerPublish); a != 1 || b != 1 {
		t.Errorf("controller a attached %d volumes, b %d; they take turns", a, b)
	}

	// Kill one controller. The agent must use the other controller, and must restart the killed
	// one.
	pids := h.pids()
	h.Must(syscall.Kill(pids["a"], syscall.SIGKILL))
	h.Volctl("volume", "claim", "v3", "--alloc", "a")
	h.Await("controller a to be back", func() bool { p := h.parts()["a"]; return p.PID != pids["a"] && p.State == api.PluginReady })
	if now := h.pids(); now["node"] != pids["node"] || now["b"] != pids["b"] || h.parts()["a"].Restarts != 1 {
		t.Errorf("processes %v, were %v", now, pids)
	}

	// Stop both controllers. A detach must still make the calls of the node part.
	h.ExpectExit(4, `hint: volctl plugin restart rec --type controller -y`, "plugin", "restart", "rec", "--type", "controller")
	h.ExpectExit(0, `restarted controller "a" of plugin "rec"`, "plugin", "restart", "rec", "--type", "controller", "--instance", "a")
	upA, upB := h.down("a"), h.down("b")
	mounts := h.Mounts()
	h.ExpectExit(0, "mounted, writable, no controller available", "volume", "status", "v1")
	h.ExpectExit(6, `no controller of plugin "rec" is ready: controller a is stopped: on request`, "volume", "claim", "v4", "--alloc", "a", "--timeout", "1s")
	if now := h.Mounts(); now != mounts {
		t.Errorf("mounts:\n%s\nwere:\n%s", now, mounts)
	}
	h.ExpectExit(6, "controller b is stopped", "volume", "detach", "v1", "a", "--timeout", "2s")
	if strings.Contains(h.Mounts(), "/v1 ") || h.made("node", csitest.NodeUnstage) != 1 {
		t.Errorf("v1 was not unmounted while there was no controller:\n%s", h.Mounts())
	}
	upA()
	h.Volctl("wait", "--volume", "v1", "--for", "free", "--timeout", "30s")
	upB()

	// Stop the node part. The agent must still send ControllerPublishVolume. The mount must wait
	// for the node part.
	up := h.down("node")
	attached := func() int {
		return h.made("a", csitest.ControllerPublish) + h.made("b", csitest.ControllerPublish)
	}
	was := attached()
	h.Volctl("volume", "claim", "v4", "--alloc", "a", "--no-wait")
	h.Await("the attachment", func() bool { return attached() == was+1 })
	h.ExpectExit(6, `the node part of plugin "rec" is stopped`, "volume", "detach", "v2", "a", "--timeout", "1s")
	if !strings.Contains(h.Mounts(), "/v2 ") {
		t.Error("v2 was unmounted with no node part")
	}
	up()
	h.Volctl("wait", "--volume", "v4", "--for", "mounted", "--timeout", "30s")
	h.Volctl("wait", "--volume", "v2", "--for", "free", "--timeout", "30s")

	// Kill the node part. The agent must restart the node part, and a detach must wait for it.
	h.Must(syscall.Kill(h.pids()["node"], syscall.SIGKILL))
	h.Volctl("volume", "detach", "v3", "a")
	h.Volctl("wait", "--plugin", "rec", "--timeout", "30s")

	// The next agent must take over all three parts.
	pids = h.pids()
	h.Kill()
	h.Start("rec")
	h.Await("all parts", func() bool { return maps.Equal(h.pids(), pids) && len(pids) == 3 })
	h.Volctl("volume", "detach", "v4", "a")
	h.Volctl("volume", "delete", "made", "-y")

	events, node := h.Volctl("events", "-n", "500"), h.Volctl("node", "status")
	for _, want := range []string{"controller a is backing-off: process", "controller b is stopped: on request", "node is ready"} {
		if !strings.Contains(events, want) {
			t.Errorf("no event says %q:\n%s", want, events)
		}
	}
	if !strings.Contains(node, "Plugins  2/2 ready") {
		t.Errorf("the plugin counts once:\n%s", node)
	}
}

// TestPartsStatus checks that the status shows the properties of each part.
func TestPartsStatus(t *testing.T) {
	t.Parallel()
	h := newInParts(t)
	status := h.Volctl("plugin", "status", "rec")
	for _, want := range []string{
		"Healthy  controllers 2/2, nodes 1/1", "● controller a  ready", "● controller b  ready", "● node  ready",
		"exec.env.CSITEST_CONFIG: (a text)", h.Dir + "/run/plugins/rec~2Fcontroller~2Fa/csi.sock", "STAGE_UNSTAGE_VOLUME", "PUBLISH_UNPUBLISH_VOLUME",
	} {
		if !strings.Contains(status, want) {
			t.Errorf("status does not say %q:\n%s", want, status)
		}
	}
	logs := h.Volctl("plugin", "logs", "rec", "--type", "controller")
	if strings.Contains(logs, "node | ") {
		t.Errorf("the controllers' logs:\n%s", logs)
	}
	h.ExpectExit(3, `it has node, controller a, controller b`, "plugin", "restart", "rec", "--instance", "c")
	h.ExpectExit(2, "--type", "plugin", "restart", "rec", "--type", "driver")

	// Add a plugin file that conflicts with the file of controller b.
	text, err := os.ReadFile(filepath.Join(h.Dir, "plugins.d", "b.yaml"))
	h.Must(err)
	h.Must(os.WriteFile(filepath.Join(h.Dir, "plugins.d", "x.yaml"), text, 0o644))
	h.Await("the refusal", func() bool {
		return strings.Contains(h.Volctl("plugin", "list", "-o", "json"), "with the same type and instance is defined in "+h.Dir+"/plugins.d/b.yaml already")
	})
	if got := h.parts(); !slices.Equal(slices.Sorted(maps.Keys(got)), []string{"a", "b", "node"}) {
		t.Errorf("parts %s", fmt.Sprint(got))
	}
}
