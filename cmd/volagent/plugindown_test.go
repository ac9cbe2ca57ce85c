package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/volmgr/csitest"
)

// atOnce runs volctl and asserts that it fails without waiting for a plugin. The exit code must be
// 6, and the error must contain the hint.
func (h recorded) atOnce(hint string, args ...string) {
	h.t.Helper()
	begun := time.Now()
	r := h.try(args...)
	if took := time.Since(begun); r.code != 6 || !strings.Contains(r.err, hint) || took > 15*time.Second {
		h.t.Errorf("volctl %v: exit code %d after %s: %s; want 6 at once, and %q", args, r.code, took, r.err, hint)
	}
}

// TestPluginStaysDown checks a plugin that does not become ready without the operator. The agent
// refuses requests that need this plugin at once, and names the command that starts the plugin. A
// claim waits only while a plugin restarts.
func TestPluginStaysDown(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", nil)
	h.register("data", "single-node-writer")
	h.volctl("plugin", "stop", "rec")
	file := filepath.Join(h.dir, "made.yaml")
	h.must(os.WriteFile(file, []byte("{id: made, plugin_id: rec}"), 0o600))
	h.atOnce("volctl plugin start rec", "volume", "claim", "data", "--timeout", "60s")
	h.atOnce("volctl plugin start rec", "volume", "create", file)
	h.atOnce("volctl plugin start rec", "volume", "validate", file)
	if out := h.volctl("claim", "list", "-q"); out != "" {
		t.Errorf("claims are left: %s", out)
	}
	h.volctl("plugin", "start", "rec")
	h.must(syscall.Kill(h.pluginPID("rec"), syscall.SIGKILL))
	h.volctl("volume", "claim", "data", "--timeout", "60s")
	h.volctl("volume", "detach", "data")

	// The agent refuses this plugin at its start, so it does not know the name of the plugin's
	// driver.
	self, err := os.Executable()
	h.must(err)
	cfg := csitest.Config{Base: filepath.Join(h.dir, "q"), DriverName: "bad.example.com", NoController: true}
	bad, err := cfg.PluginFile("bad", self)
	h.must(err)
	text := strings.TrimSuffix(strings.TrimSpace(string(bad)), "}") + `, "type": "controller"}`
	h.must(os.WriteFile(filepath.Join(h.dir, "plugins.d", "bad.yaml"), []byte(text), 0o644))
	h.await("the plugin to be refused", func() bool {
		return strings.Contains(h.try("plugin", "status", "bad").out, "has no controller service")
	})
	h.must(os.WriteFile(file, []byte("{id: there, plugin_id: bad, external_id: x}"), 0o600))
	h.atOnce("volctl plugin status bad", "volume", "register", file)
	h.atOnce("volctl plugin status bad", "volume", "validate", file)
}

// TestLimitsChange checks that the agent requests the limits from the node part again after a
// controller reports that the host is full. The agent reports a changed node id, and volumes stay
// attached under the old node id.
func TestLimitsChange(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", func(c *csitest.Config) { c.MaxVolumes = 3 })
	for _, id := range []string{"v1", "v2"} {
		h.register(id, "single-node-writer")
	}
	h.must(h.cfg.Faults().SetNode(csitest.Node{ID: "test-host", MaxVolumes: 1}))
	_, err := h.cfg.Faults().Add(csitest.Fault{Method: csitest.ControllerPublish, Code: codes.ResourceExhausted})
	h.must(err)
	h.volctl("volume", "claim", "v1")
	h.await("the new limit", func() bool { return strings.Contains(h.volctl("plugin", "list"), "1/1") })
	h.refuses(4, `plugin "rec" can have 1 volumes on this host at once`, "volume", "claim", "v2")

	h.must(h.cfg.Faults().SetNode(csitest.Node{ID: "renamed", MaxVolumes: 2}))
	pid := h.pluginPID("rec")
	h.must(syscall.Kill(pid, syscall.SIGKILL))
	h.await("another limit after a restart", func() bool { return strings.Contains(h.volctl("plugin", "list"), "1/2") })
	log, err := os.ReadFile(h.log.Name())
	h.must(err)
	const want = "another node id for this host; volumes in use keep the id under which they are attached: plugin=rec was=test-host now=renamed"
	if !strings.Contains(string(log), want) {
		t.Errorf("the log does not say %q", want)
	}
	mark := h.calls(0).Mark()
	h.volctl("volume", "detach", "v1")
	h.volctl("wait", "--volume", "v1", "--for", "free", "--timeout", "60s")
	for _, c := range h.calls(mark).Only(csitest.ControllerUnpublish) {
		if c.NodeID != "test-host" {
			t.Errorf("it is detached from node %q", c.NodeID)
		}
	}
}
