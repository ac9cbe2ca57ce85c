package plugins_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// everyRPC runs the volctl commands for the complete life of a volume. It runs a step if
// docs/csi.md marks a call of the step as sent. With the bundled driver, the page must also mark
// the call as answered by the driver.
type everyRPC struct {
	*harness.Host
	plugin   string
	modify   string
	snapshot string
	group    string
}

type rpcStep struct {
	rpcs []string
	do   func(e *everyRPC)
}

var rpcSteps = []rpcStep{
	{[]string{"GetPluginInfo", "GetPluginCapabilities", "Probe", "ControllerGetCapabilities", "NodeGetCapabilities", "NodeGetInfo"},
		func(e *everyRPC) { e.Volctl("wait", "--plugin", e.plugin) }},
	{[]string{"GroupControllerGetCapabilities"}, func(e *everyRPC) { e.Volctl("wait", "--plugin", e.plugin) }},
	{[]string{"CreateVolume"}, func(e *everyRPC) {
		args := []string{"volume", "create", "data", "--plugin", e.plugin, "--size", "64MiB"}
		if e.plugin == "local" {
			args = append(args, "--param", "type=directory") // only directory volumes have quotas
		}
		e.Volctl(args...)
	}},
	{[]string{"ValidateVolumeCapabilities"}, (*everyRPC).registerAnew},
	{[]string{"ListVolumes"}, func(e *everyRPC) { e.says("data", "plugin", "volumes", e.plugin) }},
	{[]string{"GetCapacity"}, func(e *everyRPC) { e.Volctl("plugin", "capacity", e.plugin) }},
	{[]string{"NodeStageVolume", "NodePublishVolume"}, func(e *everyRPC) { e.claim() }},
	{[]string{"ControllerPublishVolume"}, func(e *everyRPC) { e.claim() }},
	{[]string{"NodeGetVolumeStats"}, func(e *everyRPC) { e.Volctl("volume", "stats", "data") }},
	{[]string{"NodeGetVolumeHealth", "ControllerGetVolumeHealth"}, func(e *everyRPC) { e.Volctl("volume", "status", "data") }},
	{[]string{"ControllerGetVolume"}, func(e *everyRPC) { e.Volctl("volume", "status", "data") }},
	{[]string{"NodeGetStorageHealth"}, func(e *everyRPC) { e.Volctl("plugin", "health", e.plugin) }},
	{[]string{"ControllerListVolumeHealth"}, func(e *everyRPC) { e.Volctl("plugin", "health", e.plugin) }},
	{[]string{"ControllerExpandVolume", "NodeExpandVolume"}, func(e *everyRPC) { e.expand() }},
	{[]string{"ControllerModifyVolume"}, func(e *everyRPC) { e.Volctl("volume", "modify", "data", e.modify) }},
	{[]string{"CreateSnapshot"}, func(e *everyRPC) { e.snapshot = e.take("create", "data", "one") }},
	{[]string{"GetSnapshot"}, func(e *everyRPC) {}}, // other steps make this call
	{[]string{"ListSnapshots"}, func(e *everyRPC) { e.says(e.snapshot, "volume", "snapshot", "list", "--plugin", e.plugin, "-q") }},
	{[]string{"DeleteSnapshot"}, func(e *everyRPC) { e.Volctl("volume", "snapshot", "delete", e.plugin, e.snapshot, "-y") }},
	{[]string{"CreateVolumeGroupSnapshot"}, func(e *everyRPC) { e.group = e.take("group", "create", "two", "data") }},
	{[]string{"GetVolumeGroupSnapshot"}, func(e *everyRPC) { e.Volctl("volume", "snapshot", "group", "status", e.plugin, e.group) }},
	{[]string{"DeleteVolumeGroupSnapshot"}, func(e *everyRPC) { e.Volctl("volume", "snapshot", "group", "delete", e.plugin, e.group, "-y") }},
	{[]string{"NodeUnpublishVolume", "NodeUnstageVolume"}, func(e *everyRPC) { e.Volctl("volume", "detach", "data", "--all") }},
	{[]string{"ControllerUnpublishVolume"}, func(e *everyRPC) { e.Volctl("volume", "detach", "data", "--all", "--ignore-not-found") }},
	{[]string{"DeleteVolume"}, func(e *everyRPC) { e.Volctl("volume", "delete", "data", "-y", "--confirm=data") }},
}

// registerAnew deregisters the volume and registers it again. The agent must then validate the
// storage as if it had not created it.
func (e *everyRPC) registerAnew() {
	e.T.Helper()
	external := e.Volctl("volume", "status", "data", "-o", "go-template={{.spec.external_id}}")
	e.Volctl("volume", "deregister", "data", "-y")
	file := filepath.Join(e.Dir, "data.yaml")
	e.Must(os.WriteFile(file, fmt.Appendf(nil, "id: data\nplugin_id: %s\nexternal_id: %q\ncontext: {%s}\n", e.plugin, external, e.context()), 0o644))
	e.Volctl("volume", "register", file)
}

// context returns the volume context that the recording plugin chose for the volume. The plugin
// checks that the agent sends the same context.
func (e *everyRPC) context() string {
	if e.plugin == "rec" {
		return "csitest/name: " + "data"
	}
	return ""
}

func (e *everyRPC) claim() { e.Volctl("volume", "claim", "data", "--alloc", "a", "--owner", "none") }

// take creates a snapshot of a volume in use. For the bundled driver it adds consistency=per-file,
// which the driver requires because processes may change files during the copy.
func (e *everyRPC) take(args ...string) string {
	e.T.Helper()
	args = append([]string{"volume", "snapshot"}, append(args, "-q")...)
	if e.plugin == "local" {
		args = append(args, "--param", "consistency=per-file")
	}
	return e.Volctl(args...)
}

// expand expands a volume in use. With the bundled driver it expands an unused volume, because some
// hosts cannot grow the driver's file systems while they are in use. The file system then grows at
// the next mount.
func (e *everyRPC) expand() {
	e.T.Helper()
	if e.plugin != "local" {
		e.Volctl("volume", "expand", "data", "128MiB")
		return
	}
	e.Volctl("volume", "create", "image", "--plugin", "local", "--size", "64MiB", "--param", "type=image")
	e.Volctl("volume", "expand", "image", "128MiB")
	e.Volctl("volume", "claim", "image", "--alloc", "a", "--owner", "none")
	e.Volctl("volume", "detach", "image", "--all")
	e.Volctl("volume", "delete", "image", "-y")
}

// says fails the test unless the output of the volctl command contains the given word.
func (e *everyRPC) says(word string, args ...string) {
	e.T.Helper()
	if out := e.Volctl(args...); word == "" || !strings.Contains(out, word) {
		e.T.Errorf("volctl %s does not say %q:\n%s", strings.Join(args, " "), word, out)
	}
}

// run runs each step that makes one of the given calls. It fails the test if no step makes one of
// the calls.
func (e *everyRPC) run(calls []string) {
	e.T.Helper()
	left := slices.Clone(calls)
	for _, step := range rpcSteps {
		if slices.ContainsFunc(step.rpcs, func(rpc string) bool { return slices.Contains(calls, rpc) }) {
			step.do(e)
		}
		left = slices.DeleteFunc(left, func(rpc string) bool { return slices.Contains(step.rpcs, rpc) })
	}
	if len(left) > 0 {
		e.T.Errorf("no step shows %v", left)
	}
}

// compare fails the test unless the plugin answered exactly the expected calls with OK.
func (e *everyRPC) compare(got, want []string) {
	e.T.Helper()
	slices.Sort(got)
	got = slices.Compact(got)
	for _, rpc := range want {
		if !slices.Contains(got, rpc) {
			e.T.Errorf("%s was not answered OK, and docs/csi.md says that it is sent", rpc)
		}
	}
	for _, rpc := range got {
		if !slices.Contains(want, rpc) {
			e.T.Errorf("%s was sent, and docs/csi.md says that it is not", rpc)
		}
	}
}

// TestEveryRPC checks that the commands send each call that docs/csi.md marks as sent, and no other
// call. The plugin must answer each call with OK, and the calls must not violate CSI.
func TestEveryRPC(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "60s", func(c *csitest.Config) {
		c.AttachReadOnly, c.AnyVolume = true, false
		c.Lists, c.PublishedNodes, c.Get, c.Clone, c.Modify, c.MountGroup = true, true, true, true, true, true
		c.Snapshot, c.ListSnapshots, c.GetSnapshot, c.GroupSnapshot, c.ReadyAfter = true, true, true, true, 1
		c.Expand, c.NodeExpand = true, true
		c.Health, c.ListHealth, c.NodeHealth, c.StorageHealth = true, true, true, true
	})
	e := &everyRPC{Host: h.Host, plugin: "rec", modify: "iops=5"}
	want := usedCalls(t, false)
	e.run(want)
	j, err := csitest.LoadJournal(h.Config.JournalPath())
	h.Must(err)
	var got []string
	for _, c := range j.Calls {
		if c.OK() {
			got = append(got, c.Method)
		}
	}
	e.compare(got, want)
}

var okCalls = regexp.MustCompile(`(?m)^volagent_plugin_rpc_duration_seconds_count{code="OK",method="(\w+)",plugin="local"}|^(volagent_plugin_probe_duration_seconds_count){code="OK",plugin="local"}`)

// TestEveryRPCBundled makes the same checks as TestEveryRPC with the bundled driver. It reads the
// calls from the agent's metrics.
func TestEveryRPCBundled(t *testing.T) {
	t.Parallel()
	h := harness.NewHost(t)
	h.Start("local")
	e := &everyRPC{Host: h, plugin: "local", modify: "quota=none"}
	want := usedCalls(t, true)
	e.run(want)
	var got []string
	for _, m := range okCalls.FindAllStringSubmatch(harness.Metrics(h), -1) {
		if m[2] != "" {
			m[1] = "Probe"
		}
		got = append(got, m[1])
	}
	e.compare(got, want)
}
