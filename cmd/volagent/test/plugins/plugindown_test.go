package plugins_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// expectFailureAtOnce asserts that a volctl command fails without waiting for a plugin. The exit
// code must be 6, and the error must contain the hint.
func expectFailureAtOnce(h harness.Recorded, hint string, args ...string) {
	h.T.Helper()
	begun := time.Now()
	r := h.Try(args...)
	if took := time.Since(begun); r.Code != 6 || !strings.Contains(r.Err, hint) || took > 15*time.Second {
		h.T.Errorf("volctl %v: exit code %d after %s: %s; want 6 at once, and %q", args, r.Code, took, r.Err, hint)
	}
}

// TestPluginStaysDown checks a plugin that becomes ready only by an action of the operator. The
// agent refuses requests that need the plugin at once, and names the command that starts the
// plugin. A claim waits only for a plugin that is restarting.
func TestPluginStaysDown(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("data", "single-node-writer")
	h.Volctl("plugin", "stop", "rec")
	file := filepath.Join(h.Dir, "made.yaml")
	h.Must(os.WriteFile(file, []byte("{id: made, plugin_id: rec}"), 0o600))
	expectFailureAtOnce(h, "volctl plugin start rec", "volume", "claim", "data", "--timeout", "60s")
	expectFailureAtOnce(h, "volctl plugin start rec", "volume", "create", file)
	expectFailureAtOnce(h, "volctl plugin start rec", "volume", "validate", file)
	if out := h.Volctl("claim", "list", "-q"); out != "" {
		t.Errorf("claims are left: %s", out)
	}
	h.Volctl("plugin", "start", "rec")
	h.Must(syscall.Kill(h.PluginPID("rec"), syscall.SIGKILL))
	h.Volctl("volume", "claim", "data", "--timeout", "60s")
	h.Volctl("volume", "detach", "data")

	// The agent refuses this plugin file when it starts, so it never learns the name of the
	// plugin's driver.
	self, err := os.Executable()
	h.Must(err)
	cfg := csitest.Config{Base: filepath.Join(h.Dir, "q"), DriverName: "bad.example.com", NoController: true}
	bad, err := cfg.PluginFile("bad", self)
	h.Must(err)
	text := strings.TrimSuffix(strings.TrimSpace(string(bad)), "}") + `, "type": "controller"}`
	h.Must(os.WriteFile(filepath.Join(h.Dir, "plugins.d", "bad.yaml"), []byte(text), 0o644))
	h.Await("the plugin to be refused", func() bool {
		return strings.Contains(h.Try("plugin", "status", "bad").Out, "has no controller service")
	})
	h.Must(os.WriteFile(file, []byte("{id: there, plugin_id: bad, external_id: x}"), 0o600))
	expectFailureAtOnce(h, "volctl plugin status bad", "volume", "register", file)
	expectFailureAtOnce(h, "volctl plugin status bad", "volume", "validate", file)
}

// TestLimitsChange checks that the agent asks the node part for the volume limit again after a
// controller has reported that the host is full. If the node id changes, the agent reports the
// change, and volumes stay attached under the old node id.
func TestLimitsChange(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", func(c *csitest.Config) { c.MaxVolumes = 3 })
	for _, id := range []string{"v1", "v2"} {
		h.Register(id, "single-node-writer")
	}
	h.Must(h.Config.Faults().SetNode(csitest.Node{ID: "test-host", MaxVolumes: 1}))
	_, err := h.Config.Faults().Add(csitest.Fault{Method: csitest.ControllerPublish, Code: codes.ResourceExhausted})
	h.Must(err)
	h.Volctl("volume", "claim", "v1")
	h.Await("the new limit", func() bool { return strings.Contains(h.Volctl("plugin", "list"), "1/1") })
	h.ExpectRefusal(4, `plugin "rec" can have 1 volumes on this host at once`, "volume", "claim", "v2")

	h.Must(h.Config.Faults().SetNode(csitest.Node{ID: "renamed", MaxVolumes: 2}))
	pid := h.PluginPID("rec")
	h.Must(syscall.Kill(pid, syscall.SIGKILL))
	h.Await("another limit after a restart", func() bool { return strings.Contains(h.Volctl("plugin", "list"), "1/2") })
	log, err := os.ReadFile(h.Log.Name())
	h.Must(err)
	const want = "another node id for this host; volumes in use keep the id under which they are attached: plugin=rec was=test-host now=renamed"
	if !strings.Contains(string(log), want) {
		t.Errorf("the log does not say %q", want)
	}
	mark := h.Calls(0).Mark()
	h.Volctl("volume", "detach", "v1")
	h.Volctl("wait", "--volume", "v1", "--for", "free", "--timeout", "60s")
	for _, c := range h.Calls(mark).Only(csitest.ControllerUnpublish) {
		if c.NodeID != "test-host" {
			t.Errorf("it is detached from node %q", c.NodeID)
		}
	}
}
