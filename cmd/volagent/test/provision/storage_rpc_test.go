package provision_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// able configures a plugin that supports ControllerModifyVolume and all optional queries.
func able(c *csitest.Config) {
	c.AnyVolume = false
	c.Modify, c.Lists, c.Get, c.PublishedNodes = true, true, true, true
	c.Health, c.ListHealth, c.NodeHealth, c.StorageHealth = true, true, true, true
	c.PageSize = 2
}

// countCalls returns the number of calls of a method since a mark.
func countCalls(h harness.Recorded, since int64, method string) int {
	h.T.Helper()
	all, err := csitest.ReadJournal(h.Config.JournalPath())
	h.Must(err)
	return all.Since(since).Count(method)
}

func saysNot(h *harness.Host, words string, args ...string) {
	h.T.Helper()
	if out := h.Volctl(args...); strings.Contains(out, words) {
		h.T.Errorf("volctl %s:\n%s\nwant it without %q", strings.Join(args, " "), out, words)
	}
}

func volumeFile(h harness.Recorded, name, text string) string {
	h.T.Helper()
	path := filepath.Join(h.Dir, name+".yaml")
	h.Must(os.WriteFile(path, []byte(text), 0o644))
	return path
}

func mutableParams(h harness.Recorded, id string) map[string]string {
	h.T.Helper()
	var v api.Volume
	h.Must(json.Unmarshal([]byte(h.Volctl("volume", "status", id, "-o", "json")), &v))
	return v.Spec.Mutable
}

// TestModifyVolume checks the mutable parameters of a volume. They are set when the volume is
// created, and can change while the volume is in use. After every kind of failure the agent must
// either know the current values or report that they are uncertain.
func TestModifyVolume(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "2s", able)
	is := func(want string) {
		t.Helper()
		if got := mutableParams(h, "data")["iops"]; got != want {
			t.Errorf("iops is %q, want %q", got, want)
		}
	}
	h.Volctl("volume", "create", "data", "--plugin", "rec", "--mutable-param", "iops=100")
	h.Volctl("volume", "claim", "data")
	h.ExpectOutput(`{"iops":"100"} → {"iops":"200"}`, "volume", "modify", "data", "iops=200")
	is("200")
	mark := h.Mark()
	h.ExpectOutput("is unchanged", "volume", "modify", "data", "iops=200")
	h.ExpectRefusal(2, `plugin "rec" refuses the request: the mutable parameter "colour" is not known`, "volume", "modify", "data", "colour=red")
	h.ExpectRefusal(3, "no volume", "volume", "modify", "other", "iops=1")
	is("200")
	saysNot(h.Host, "not seen to end", "volume", "status", "data")
	h.ExpectCalls(mark, csitest.ControllerModify)

	// Validate a file with changed parameters, and then apply the file.
	file := volumeFile(h, "data", "id: data\nplugin_id: rec\nmutable_parameters: {iops: '300'}\n")
	mark = h.Mark()
	h.ExpectRefusal(4, `mutable_parameters: {"iops":"200"} → {"iops":"300"}`, "volume", "validate", file)
	h.ExpectCalls(mark)
	h.ExpectOutput(`updated volume "data": mutable_parameters`, "volume", "register", file)
	h.ExpectCalls(mark, csitest.ControllerModify)
	is("300")

	// The plugin makes the change but does not answer in time.
	h.AddFaults(csitest.Fault{Method: csitest.ControllerModify, Delay: 5 * time.Second})
	h.ExpectRefusal(5, `unknown whether volume "data" was modified`, "volume", "modify", "data", "iops=400")
	h.ExpectOutput("it is unknown whether modifying iops=400 had an effect", "volume", "status", "data")
	h.Volctl("volume", "modify", "data", "iops=400")
	is("400")

	// The plugin makes the change, but the agent dies before it receives the answer.
	h.AddFaults(csitest.Fault{Method: csitest.ControllerModify, KillCaller: csitest.AfterEffect})
	if r := h.Try("volume", "modify", "data", "iops=500"); r.Code == 0 {
		t.Error("the agent died, and yet it was modified")
	}
	if err := h.Cmd.Wait(); err == nil {
		t.Error("the agent was not killed")
	}
	h.Start("rec")
	is("400")
	h.ExpectOutput("to continue: volctl volume modify data iops=500", "volume", "status", "data")
	h.Volctl("volume", "modify", "data", "iops=500")
	is("500")
	saysNot(h.Host, "not seen to end", "volume", "status", "data")
	h.Volctl("volume", "detach", "data", "manual")
	h.Volctl("volume", "delete", "data", "-y")
}

// TestUnasked checks that ordinary commands cause no optional queries, even if the plugin supports
// them.
func TestUnasked(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "30s", able)
	mark := h.Mark()
	h.Volctl("volume", "create", "data", "--plugin", "rec")
	h.Volctl("volume", "claim", "data", "--alloc", "a")
	for _, args := range [][]string{
		{"volume", "list", "-o", "wide"}, {"volume", "status", "data", "-o", "json"}, {"inspect", "data"}, {"node", "status"},
		{"plugin", "list"}, {"plugin", "status", "rec"}, {"claim", "list"}, {"events"},
	} {
		h.Volctl(args...)
	}
	harness.Metrics(h.Host)
	h.Kill()
	h.Start("rec")
	h.Volctl("volume", "detach", "data", "a")
	h.Volctl("volume", "delete", "data", "-y")
	for _, m := range []string{
		csitest.ListVolumes, csitest.GetCapacity, csitest.ControllerGetVolume, csitest.NodeStats,
		csitest.NodeHealth, csitest.NodeStorageHealth, csitest.ControllerHealth, csitest.ListHealth,
	} {
		if n := countCalls(h, mark, m); n > 0 {
			t.Errorf("%s came %d times", m, n)
		}
	}
}

// TestUnable checks that the agent refuses requests for which the plugin lacks a capability,
// without calling the plugin.
func TestUnable(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "30s", func(c *csitest.Config) { c.Stats = false })
	h.Volctl("volume", "create", "data", "--plugin", "rec")
	h.Volctl("volume", "claim", "data")
	mark := h.Mark()
	h.ExpectRefusal(4, `plugin "rec" cannot modify volumes`, "volume", "modify", "data", "iops=1")
	h.ExpectRefusal(4, `plugin "rec" cannot modify volumes`, "volume", "create", "x", "--plugin", "rec", "--mutable-param", "iops=1")
	h.ExpectRefusal(4, `plugin "rec" does not support topology`, "volume", "create", volumeFile(h, "y", "id: y\nplugin_id: rec\ntopology_request: {required: [{zone: a}]}\n"))
	h.ExpectRefusal(4, `plugin "rec" does not report the usage of volumes`, "volume", "stats", "data")
	h.ExpectRefusal(4, `plugin "rec" cannot list its volumes`, "plugin", "volumes", "rec")
	h.ExpectRefusal(4, `plugin "rec" cannot report its capacity`, "plugin", "capacity", "rec")
	h.ExpectRefusal(4, `plugin "rec" cannot report the health of its storage`, "plugin", "health", "rec")
	h.ExpectOutput("mounted, writable", "volume", "status", "data", "-o", "wide")
	h.ExpectCalls(mark)
	if ids := h.Volctl("volume", "list", "-q"); ids != "data" {
		t.Errorf("there are the volumes %q", ids)
	}
	h.Volctl("volume", "detach", "data", "manual")
}

// TestPluginVolumes lists the plugin's volumes page by page. The list must also contain volumes
// that are not registered on this host.
func TestPluginVolumes(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "30s", able)
	for i := range 5 {
		h.Volctl("volume", "create", fmt.Sprintf("v%d", i), "--plugin", "rec")
	}
	h.Volctl("volume", "deregister", "v1")
	h.Volctl("volume", "deregister", "v3")
	list := func(args ...string) []string {
		t.Helper()
		return strings.Fields(h.Volctl(append([]string{"plugin", "volumes", "rec", "-q"}, args...)...))
	}
	mark := h.Mark()
	all := list()
	if len(all) != 5 || countCalls(h, mark, csitest.ListVolumes) != 3 {
		t.Errorf("%d volumes by %d calls: %q", len(all), countCalls(h, mark, csitest.ListVolumes), all)
	}
	other := list("--unregistered")
	if len(other) != 2 || !strings.HasSuffix(other[0], "v1") || !strings.HasSuffix(other[1], "v3") {
		t.Errorf("not registered: %q", other)
	}
	mark = h.Mark()
	if some := list("--limit", "3"); !slices.Equal(some, all[:3]) || countCalls(h, mark, csitest.ListVolumes) != 2 {
		t.Errorf("three are %q, by %d calls", some, countCalls(h, mark, csitest.ListVolumes))
	}
	// If the plugin rejects a page token with ABORTED, the agent requests the list again from the
	// first page.
	h.AddFaults(csitest.Fault{Method: csitest.ListVolumes, Skip: 2, Code: codes.Aborted})
	mark = h.Mark()
	if again := list(); !slices.Equal(again, all) || countCalls(h, mark, csitest.ListVolumes) != 6 {
		t.Errorf("after ABORTED: %q, by %d calls", again, countCalls(h, mark, csitest.ListVolumes))
	}
	h.AddFaults(csitest.Fault{Method: csitest.ListVolumes, Twist: csitest.Endless, Times: -1})
	h.ExpectRefusal(1, "returns an endless list for ListVolumes", "plugin", "volumes", "rec")

	// Register a volume from the list. The plugin provides the volume context.
	h.Must(h.Config.Faults().Clear())
	mark = h.Mark()
	h.Volctl("volume", "register", volumeFile(h, "found", "id: found\nplugin_id: rec\nexternal_id: "+other[0]+"\n"))
	if n := countCalls(h, mark, csitest.ControllerGetVolume); n != 1 {
		t.Errorf("%d calls of ControllerGetVolume", n)
	}
	h.Volctl("volume", "claim", "found") // the plugin checks the context that it provided
	h.Volctl("volume", "detach", "found", "manual")
	h.ExpectRefusal(3, `plugin "rec" has no volume`, "volume", "register", volumeFile(h, "none", "id: none\nplugin_id: rec\nexternal_id: nowhere\n"))
	h.ExpectOutput("Available", "plugin", "capacity", "rec", "--access-mode", "single-node-writer")
}

// TestVolumeHealth checks a problem that a plugin reports about a volume. The status shows the
// problem, the metrics count it, and no claim changes.
func TestVolumeHealth(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "30s", able)
	h.Volctl("volume", "create", "data", "--plugin", "rec")
	h.Volctl("volume", "claim", "data")
	ext := h.Volctl("volume", "status", "data", "-o", "go-template={{.spec.external_id}}")
	saysNot(h.Host, "Health", "volume", "status", "data")
	harness.ExpectMetrics(h.Host,
		`volagent_volume_health{by="node",plugin="rec",severity="inaccessible",volume="data"} 0`,
		`volagent_volume_health{by="controller",plugin="rec",severity="inaccessible",volume="data"} 0`)
	h.Must(h.Config.Faults().SetConditions(
		// The CSI status INACCESSIBLE.
		csitest.Condition{Volume: ext, Seen: "node", Status: 3, Reason: "PathDown", Message: "no path to the array"},
		csitest.Condition{Volume: ext, Seen: "controller", Status: 99},
		csitest.Condition{Status: 1, Message: "one path left"},
	))
	mark := h.Mark()
	status := h.Volctl("volume", "status", "data", "-o", "wide")
	for _, want := range []string{"× data  mounted, writable", "PathDown: no path to the array", "says the node", "status 99", "says the controller", "attached to test-host"} {
		if !strings.Contains(status, want) {
			t.Errorf("%q is not in\n%s", want, status)
		}
	}
	for _, m := range []string{csitest.NodeStats, csitest.NodeHealth, csitest.ControllerHealth, csitest.ControllerGetVolume} {
		if n := countCalls(h, mark, m); n != 1 {
			t.Errorf("%s came %d times", m, n)
		}
	}
	mark = h.Mark()
	h.ExpectOutput("PathDown: no path to the array", "node", "status")
	h.ExpectOutput("health-changed", "events")
	h.ExpectOutput(`"PathDown"`, "volume", "status", "data", "-o", "json")
	harness.ExpectMetrics(h.Host, `volagent_volume_health{by="controller",plugin="rec",severity="other",volume="data"} 1`)
	if n := countCalls(h, mark, csitest.NodeHealth); n > 0 {
		t.Errorf("NodeGetVolumeHealth came %d times for what was known", n)
	}
	health := h.Volctl("plugin", "health", "rec")
	for _, want := range []string{"one path left", "1 volume not well", "data"} {
		if !strings.Contains(health, want) {
			t.Errorf("%q is not in\n%s", want, health)
		}
	}
	h.Volctl("volume", "claim", "data") // the problem does not prevent a claim
	h.Volctl("volume", "detach", "data", "manual")
	if left := harness.Metrics(h.Host); strings.Contains(left, `by="node",plugin="rec"`) || strings.Contains(left, "volagent_volume_bytes{") {
		t.Errorf("the mount is gone, and what was said of it is not:\n%s", left)
	}
	h.Volctl("volume", "delete", "data", "-y")
	if left := harness.Metrics(h.Host); strings.Contains(left, `volume="data"`) {
		t.Errorf("the volume is gone, and what was said of it is not:\n%s", left)
	}
}

// TestHealthHangs checks a plugin that does not answer health queries. A status command or a detach
// must not wait for these queries.
func TestHealthHangs(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "60s", able)
	h.Volctl("volume", "create", "data", "--plugin", "rec")
	h.Volctl("volume", "claim", "data")
	h.AddFaults(csitest.Fault{Method: csitest.NodeHealth, Hang: true, Times: -1})
	h.ExpectOutput("NodeGetVolumeHealth: no answer in time", "volume", "status", "data")
	h.Volctl("volume", "detach", "data", "manual")
	h.Must(h.Config.Faults().Clear())
	h.ExpectNoMounts()
}

// TestTopology checks that the plugin creates a volume in the requested topology. An alloc can
// claim the volume only if this host can reach it.
func TestTopology(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "30s", func(c *csitest.Config) { c.AnyVolume, c.Topology = false, map[string]string{"zone": "a"} })
	for _, zone := range []string{"a", "b"} {
		h.Volctl("volume", "create", volumeFile(h, zone, fmt.Sprintf("id: in-%s\nplugin_id: rec\ntopology_request: {required: [{zone: %s}]}\n", zone, zone)))
		h.ExpectOutput("zone="+zone, "volume", "status", "in-"+zone)
	}
	mark := h.Mark()
	h.ExpectRefusal(4, "it can be reached from zone=b, and this host is at zone=a", "volume", "claim", "in-b")
	h.ExpectCalls(mark)
	h.Volctl("volume", "claim", "in-a")
	h.ExpectCalls(mark, csitest.ControllerPublish, csitest.NodeStage, csitest.NodePublish)
	h.Volctl("volume", "detach", "in-a", "manual")
}

// TestCreateLeaves checks a create command that timed out. The error names the storage that may
// exist and the command that finds it. If the create is repeated, it must use the same storage.
func TestCreateLeaves(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "2s", able)
	h.AddFaults(csitest.Fault{Method: csitest.CreateVolume, Delay: 5 * time.Second, Effect: csitest.EffectDone})
	r := h.Try("volume", "create", "data", "--plugin", "rec")
	for _, want := range []string{`plugin "rec" may have a volume named "data"`, "repeat the create", "volctl plugin volumes rec", "volctl volume deregister data --force"} {
		if r.Code != 5 || !strings.Contains(r.Err, want) {
			t.Errorf("exit %d, and %q is not in\n%s", r.Code, want, r.Err)
		}
	}
	h.Await("the plugin to have made it", func() bool {
		return len(strings.Fields(h.Volctl("plugin", "volumes", "rec", "--unregistered", "-q"))) == 1
	})
	h.Volctl("volume", "create", "data", "--plugin", "rec")
	if left := h.Volctl("plugin", "volumes", "rec", "--unregistered", "-q"); left != "" {
		t.Errorf("another one is left: %s", left)
	}
	h.ExpectRefusal(2, `plugin "rec" refuses the request: `, "volume", "create", "huge", "--plugin", "rec", "--size", "2TiB")
	if ids := h.Volctl("volume", "list", "-q"); ids != "data" {
		t.Errorf("there are the volumes %q", ids)
	}
}

// TestStatsInterval checks that an agent with stats_interval regularly queries the statistics of
// mounted volumes only.
func TestStatsInterval(t *testing.T) {
	t.Parallel()
	h := harness.NewRecorded(t, "30s", able)
	h.Must(os.WriteFile(filepath.Join(h.Dir, "volagent.yaml"), []byte("stats_interval: 10s\n"), 0o644))
	h.Start("rec")
	h.Volctl("volume", "create", "free", "--plugin", "rec")
	h.Volctl("volume", "create", "data", "--plugin", "rec")
	mark := h.Mark()
	h.Volctl("volume", "claim", "data")
	h.Await("the metrics to say how full it is", func() bool {
		return strings.Contains(harness.Metrics(h.Host), `volagent_volume_bytes{kind="total",plugin="rec",volume="data"}`)
	})
	all, err := csitest.ReadJournal(h.Config.JournalPath())
	h.Must(err)
	for _, c := range all.Since(mark).Only(csitest.NodeStats, csitest.NodeHealth, csitest.ControllerHealth) {
		if !strings.Contains(c.Volume, "data") {
			t.Errorf("asked: %s of %s", c.Method, c.Volume)
		}
	}
	h.Volctl("volume", "detach", "data", "manual")
}
