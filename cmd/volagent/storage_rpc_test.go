package main_test

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
	"github.com/volagent/volagent/volmgr/csitest"
)

// able configures a plugin that supports all optional queries and ControllerModifyVolume.
func able(c *csitest.Config) {
	c.AnyVolume = false
	c.Modify, c.Lists, c.Get, c.PublishedNodes = true, true, true, true
	c.Health, c.ListHealth, c.NodeHealth, c.StorageHealth = true, true, true, true
	c.PageSize = 2
}

// count returns the number of calls of a method since a mark.
func (h recorded) count(since int64, method string) int {
	h.t.Helper()
	all, err := csitest.ReadJournal(h.cfg.JournalPath())
	h.must(err)
	return all.Since(since).Count(method)
}

// refused asserts that volctl fails with the given exit code and the given words in its error.
func (h *host) refused(code int, words string, args ...string) {
	h.t.Helper()
	if r := h.try(args...); r.code != code || !strings.Contains(r.err, words) {
		h.t.Errorf("volctl %s: exit %d\n%s\nwant exit %d, and %q", strings.Join(args, " "), r.code, r.err, code, words)
	}
}

// says asserts that the output of volctl contains the given words.
func (h *host) says(words string, args ...string) {
	h.t.Helper()
	if out := h.volctl(args...); !strings.Contains(out, words) {
		h.t.Errorf("volctl %s:\n%s\nwant %q", strings.Join(args, " "), out, words)
	}
}

func (h *host) saysNot(words string, args ...string) {
	h.t.Helper()
	if out := h.volctl(args...); strings.Contains(out, words) {
		h.t.Errorf("volctl %s:\n%s\nwant it without %q", strings.Join(args, " "), out, words)
	}
}

func (h recorded) volumeFile(name, text string) string {
	h.t.Helper()
	path := filepath.Join(h.dir, name+".yaml")
	h.must(os.WriteFile(path, []byte(text), 0o644))
	return path
}

func (h recorded) mutable(id string) map[string]string {
	h.t.Helper()
	var v api.Volume
	h.must(json.Unmarshal([]byte(h.volctl("volume", "status", id, "-o", "json")), &v))
	return v.Spec.Mutable
}

// TestModifyVolume checks mutable parameters. They apply from the creation of the volume and can
// change while the volume is in use. After every kind of failure the agent must know the current
// values or report that they are uncertain.
func TestModifyVolume(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "2s", able)
	is := func(want string) {
		t.Helper()
		if got := h.mutable("data")["iops"]; got != want {
			t.Errorf("iops is %q, want %q", got, want)
		}
	}
	h.volctl("volume", "create", "data", "--plugin", "rec", "--mutable-param", "iops=100")
	h.volctl("volume", "claim", "data")
	h.says(`{"iops":"100"} → {"iops":"200"}`, "volume", "modify", "data", "iops=200")
	is("200")
	mark := h.mark()
	h.says("is unchanged", "volume", "modify", "data", "iops=200")
	h.refused(2, `plugin "rec" refuses the request: the mutable parameter "colour" is not known`, "volume", "modify", "data", "colour=red")
	h.refused(3, "no volume", "volume", "modify", "other", "iops=1")
	is("200")
	h.saysNot("not seen to end", "volume", "status", "data")
	h.expect(mark, csitest.ControllerModify)

	// Change the parameters by a file, after a validation of the file.
	file := h.volumeFile("data", "id: data\nplugin_id: rec\nmutable_parameters: {iops: '300'}\n")
	mark = h.mark()
	h.refused(4, `mutable_parameters: {"iops":"200"} → {"iops":"300"}`, "volume", "validate", file)
	h.expect(mark)
	h.says(`updated volume "data": mutable_parameters`, "volume", "register", file)
	h.expect(mark, csitest.ControllerModify)
	is("300")

	// The plugin makes the change but does not answer in time.
	h.fault(csitest.Fault{Method: csitest.ControllerModify, Delay: 5 * time.Second})
	h.refused(5, `unknown whether volume "data" was modified`, "volume", "modify", "data", "iops=400")
	h.says("it is unknown whether modifying iops=400 had an effect", "volume", "status", "data")
	h.volctl("volume", "modify", "data", "iops=400")
	is("400")

	// The agent dies after the effect and before the answer.
	h.fault(csitest.Fault{Method: csitest.ControllerModify, KillCaller: csitest.AfterEffect})
	if r := h.try("volume", "modify", "data", "iops=500"); r.code == 0 {
		t.Error("the agent died, and yet it was modified")
	}
	if err := h.cmd.Wait(); err == nil {
		t.Error("the agent was not killed")
	}
	h.start("rec")
	is("400")
	h.says("to continue: volctl volume modify data iops=500", "volume", "status", "data")
	h.volctl("volume", "modify", "data", "iops=500")
	is("500")
	h.saysNot("not seen to end", "volume", "status", "data")
	h.volctl("volume", "detach", "data", "manual")
	h.volctl("volume", "delete", "data", "-y")
}

// TestUnasked checks that ordinary commands send no optional query, even to a plugin that supports
// it.
func TestUnasked(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "30s", able)
	mark := h.mark()
	h.volctl("volume", "create", "data", "--plugin", "rec")
	h.volctl("volume", "claim", "data", "--alloc", "a")
	for _, args := range [][]string{
		{"volume", "list", "-o", "wide"}, {"volume", "status", "data", "-o", "json"}, {"inspect", "data"}, {"node", "status"},
		{"plugin", "list"}, {"plugin", "status", "rec"}, {"claim", "list"}, {"events"},
	} {
		h.volctl(args...)
	}
	h.metrics()
	h.kill()
	h.start("rec")
	h.volctl("volume", "detach", "data", "a")
	h.volctl("volume", "delete", "data", "-y")
	for _, m := range []string{
		csitest.ListVolumes, csitest.GetCapacity, csitest.ControllerGetVolume, csitest.NodeStats,
		csitest.NodeHealth, csitest.NodeStorageHealth, csitest.ControllerHealth, csitest.ListHealth,
	} {
		if n := h.count(mark, m); n > 0 {
			t.Errorf("%s came %d times", m, n)
		}
	}
}

// TestUnable checks that the agent refuses requests that need a missing capability, and sends no
// call for them.
func TestUnable(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "30s", func(c *csitest.Config) { c.Stats = false })
	h.volctl("volume", "create", "data", "--plugin", "rec")
	h.volctl("volume", "claim", "data")
	mark := h.mark()
	h.refused(4, `plugin "rec" cannot modify volumes`, "volume", "modify", "data", "iops=1")
	h.refused(4, `plugin "rec" cannot modify volumes`, "volume", "create", "x", "--plugin", "rec", "--mutable-param", "iops=1")
	h.refused(4, `plugin "rec" does not support topology`, "volume", "create", h.volumeFile("y", "id: y\nplugin_id: rec\ntopology_request: {required: [{zone: a}]}\n"))
	h.refused(4, `plugin "rec" does not report the usage of volumes`, "volume", "stats", "data")
	h.refused(4, `plugin "rec" cannot list its volumes`, "plugin", "volumes", "rec")
	h.refused(4, `plugin "rec" cannot report its capacity`, "plugin", "capacity", "rec")
	h.refused(4, `plugin "rec" cannot report the health of its storage`, "plugin", "health", "rec")
	h.says("mounted, writable", "volume", "status", "data", "-o", "wide")
	h.expect(mark)
	if ids := h.volctl("volume", "list", "-q"); ids != "data" {
		t.Errorf("there are the volumes %q", ids)
	}
	h.volctl("volume", "detach", "data", "manual")
}

// TestPluginVolumes lists the plugin's volumes page by page. The list contains volumes that are no
// longer registered on this host.
func TestPluginVolumes(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "30s", able)
	for i := range 5 {
		h.volctl("volume", "create", fmt.Sprintf("v%d", i), "--plugin", "rec")
	}
	h.volctl("volume", "deregister", "v1")
	h.volctl("volume", "deregister", "v3")
	list := func(args ...string) []string {
		t.Helper()
		return strings.Fields(h.volctl(append([]string{"plugin", "volumes", "rec", "-q"}, args...)...))
	}
	mark := h.mark()
	all := list()
	if len(all) != 5 || h.count(mark, csitest.ListVolumes) != 3 {
		t.Errorf("%d volumes by %d calls: %q", len(all), h.count(mark, csitest.ListVolumes), all)
	}
	other := list("--unregistered")
	if len(other) != 2 || !strings.HasSuffix(other[0], "v1") || !strings.HasSuffix(other[1], "v3") {
		t.Errorf("not registered: %q", other)
	}
	mark = h.mark()
	if some := list("--limit", "3"); !slices.Equal(some, all[:3]) || h.count(mark, csitest.ListVolumes) != 2 {
		t.Errorf("three are %q, by %d calls", some, h.count(mark, csitest.ListVolumes))
	}
	// If the plugin rejects a page token with ABORTED, the agent requests the list again from the
	// first page.
	h.fault(csitest.Fault{Method: csitest.ListVolumes, Skip: 2, Code: codes.Aborted})
	mark = h.mark()
	if again := list(); !slices.Equal(again, all) || h.count(mark, csitest.ListVolumes) != 6 {
		t.Errorf("after ABORTED: %q, by %d calls", again, h.count(mark, csitest.ListVolumes))
	}
	h.fault(csitest.Fault{Method: csitest.ListVolumes, Twist: csitest.Endless, Times: -1})
	h.refused(1, "returns an endless list for ListVolumes", "plugin", "volumes", "rec")

	// Register a volume from the list. The plugin provides the volume context.
	h.must(h.cfg.Faults().Clear())
	mark = h.mark()
	h.volctl("volume", "register", h.volumeFile("found", "id: found\nplugin_id: rec\nexternal_id: "+other[0]+"\n"))
	if n := h.count(mark, csitest.ControllerGetVolume); n != 1 {
		t.Errorf("%d calls of ControllerGetVolume", n)
	}
	h.volctl("volume", "claim", "found") // the plugin checks the context that it provided
	h.volctl("volume", "detach", "found", "manual")
	h.refused(3, `plugin "rec" has no volume`, "volume", "register", h.volumeFile("none", "id: none\nplugin_id: rec\nexternal_id: nowhere\n"))
	h.says("Available", "plugin", "capacity", "rec", "--access-mode", "single-node-writer")
}

// TestVolumeHealth checks a problem that a plugin reports about a volume. The status shows the
// problem, the metrics count it, and no claim changes.
func TestVolumeHealth(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "30s", able)
	h.volctl("volume", "create", "data", "--plugin", "rec")
	h.volctl("volume", "claim", "data")
	ext := h.volctl("volume", "status", "data", "-o", "go-template={{.spec.external_id}}")
	h.saysNot("Health", "volume", "status", "data")
	h.expectMetrics(
		`volagent_volume_health{by="node",plugin="rec",severity="inaccessible",volume="data"} 0`,
		`volagent_volume_health{by="controller",plugin="rec",severity="inaccessible",volume="data"} 0`)
	h.must(h.cfg.Faults().SetConditions(
		csitest.Condition{Volume: ext, Seen: "node", Status: 3, Reason: "PathDown", Message: "no path to the array"}, // INACCESSIBLE
		csitest.Condition{Volume: ext, Seen: "controller", Status: 99},
		csitest.Condition{Status: 1, Message: "one path left"},
	))
	mark := h.mark()
	status := h.volctl("volume", "status", "data", "-o", "wide")
	for _, want := range []string{"× data  mounted, writable", "PathDown: no path to the array", "says the node", "status 99", "says the controller", "attached to test-host"} {
		if !strings.Contains(status, want) {
			t.Errorf("%q is not in\n%s", want, status)
		}
	}
	for _, m := range []string{csitest.NodeStats, csitest.NodeHealth, csitest.ControllerHealth, csitest.ControllerGetVolume} {
		if n := h.count(mark, m); n != 1 {
			t.Errorf("%s came %d times", m, n)
		}
	}
	mark = h.mark()
	h.says("PathDown: no path to the array", "node", "status")
	h.says("health-changed", "events")
	h.says(`"PathDown"`, "volume", "status", "data", "-o", "json")
	h.expectMetrics(`volagent_volume_health{by="controller",plugin="rec",severity="other",volume="data"} 1`)
	if n := h.count(mark, csitest.NodeHealth); n > 0 {
		t.Errorf("NodeGetVolumeHealth came %d times for what was known", n)
	}
	health := h.volctl("plugin", "health", "rec")
	for _, want := range []string{"one path left", "1 volume not well", "data"} {
		if !strings.Contains(health, want) {
			t.Errorf("%q is not in\n%s", want, health)
		}
	}
	h.volctl("volume", "claim", "data") // a claim works as before
	h.volctl("volume", "detach", "data", "manual")
	if left := h.metrics(); strings.Contains(left, `by="node",plugin="rec"`) || strings.Contains(left, "volagent_volume_bytes{") {
		t.Errorf("the mount is gone, and what was said of it is not:\n%s", left)
	}
	h.volctl("volume", "delete", "data", "-y")
	if left := h.metrics(); strings.Contains(left, `volume="data"`) {
		t.Errorf("the volume is gone, and what was said of it is not:\n%s", left)
	}
}

// TestHealthHangs checks that a plugin that does not answer health queries blocks neither a status
// command nor a detach.
func TestHealthHangs(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "60s", able)
	h.volctl("volume", "create", "data", "--plugin", "rec")
	h.volctl("volume", "claim", "data")
	h.fault(csitest.Fault{Method: csitest.NodeHealth, Hang: true, Times: -1})
	h.says("NodeGetVolumeHealth: no answer in time", "volume", "status", "data")
	h.volctl("volume", "detach", "data", "manual")
	h.must(h.cfg.Faults().Clear())
	h.allGone()
}

// TestTopology checks that the plugin creates a volume in the requested topology. An alloc can
// claim the volume only if this host can reach it.
func TestTopology(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "30s", func(c *csitest.Config) { c.AnyVolume, c.Topology = false, map[string]string{"zone": "a"} })
	for _, zone := range []string{"a", "b"} {
		h.volctl("volume", "create", h.volumeFile(zone, fmt.Sprintf("id: in-%s\nplugin_id: rec\ntopology_request: {required: [{zone: %s}]}\n", zone, zone)))
		h.says("zone="+zone, "volume", "status", "in-"+zone)
	}
	mark := h.mark()
	h.refused(4, "it can be reached from zone=b, and this host is at zone=a", "volume", "claim", "in-b")
	h.expect(mark)
	h.volctl("volume", "claim", "in-a")
	h.expect(mark, csitest.ControllerPublish, csitest.NodeStage, csitest.NodePublish)
	h.volctl("volume", "detach", "in-a", "manual")
}

// TestCreateLeaves checks a create that timed out. The error names the storage that may exist and
// the command that finds it. A repeated create uses that storage.
func TestCreateLeaves(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "2s", able)
	h.fault(csitest.Fault{Method: csitest.CreateVolume, Delay: 5 * time.Second, Effect: csitest.EffectDone})
	r := h.try("volume", "create", "data", "--plugin", "rec")
	for _, want := range []string{`plugin "rec" may have a volume named "data"`, "repeat the create", "volctl plugin volumes rec", "volctl volume deregister data --force"} {
		if r.code != 5 || !strings.Contains(r.err, want) {
			t.Errorf("exit %d, and %q is not in\n%s", r.code, want, r.err)
		}
	}
	h.await("the plugin to have made it", func() bool {
		return len(strings.Fields(h.volctl("plugin", "volumes", "rec", "--unregistered", "-q"))) == 1
	})
	h.volctl("volume", "create", "data", "--plugin", "rec")
	if left := h.volctl("plugin", "volumes", "rec", "--unregistered", "-q"); left != "" {
		t.Errorf("another one is left: %s", left)
	}
	h.refused(2, `plugin "rec" refuses the request: `, "volume", "create", "huge", "--plugin", "rec", "--size", "2TiB")
	if ids := h.volctl("volume", "list", "-q"); ids != "data" {
		t.Errorf("there are the volumes %q", ids)
	}
}

// TestStatsInterval checks that an agent with stats_interval regularly queries the statistics of
// mounted volumes, and of no others.
func TestStatsInterval(t *testing.T) {
	t.Parallel()
	h := prepared(t, "30s", able)
	h.must(os.WriteFile(filepath.Join(h.dir, "volagent.yaml"), []byte("stats_interval: 10s\n"), 0o644))
	h.start("rec")
	h.volctl("volume", "create", "free", "--plugin", "rec")
	h.volctl("volume", "create", "data", "--plugin", "rec")
	mark := h.mark()
	h.volctl("volume", "claim", "data")
	h.await("the metrics to say how full it is", func() bool {
		return strings.Contains(h.metrics(), `volagent_volume_bytes{kind="total",plugin="rec",volume="data"}`)
	})
	all, err := csitest.ReadJournal(h.cfg.JournalPath())
	h.must(err)
	for _, c := range all.Since(mark).Only(csitest.NodeStats, csitest.NodeHealth, csitest.ControllerHealth) {
		if !strings.Contains(c.Volume, "data") {
			t.Errorf("asked: %s of %s", c.Method, c.Volume)
		}
	}
	h.volctl("volume", "detach", "data", "manual")
}
