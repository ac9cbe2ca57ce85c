package volume

import (
	"slices"
	"testing"

	"github.com/volagent/volagent/volmgr/call"
)

// TestDifferences checks that Differences names every field in which a volume does not satisfy the
// request, and no other field.
func TestDifferences(t *testing.T) {
	made := Volume{
		ID: "data", Name: "data", PluginID: "p", Created: true, CapacityMin: 10, Capacity: 12, CapacityMax: 100,
		Capabilities: []call.Capability{{Access: call.SingleNodeWriter, Attachment: call.FileSystem}}, CloneID: "other",
		MountOptions: call.MountOptions{FSType: "ext4"}, Parameters: map[string]string{"a": "b"}, Context: map[string]string{"of": "plugin"},
		Topology: call.TopologyRequest{Preferred: []map[string]string{{"zone": "a"}}}, Mutable: map[string]string{"iops": "1"},
	}
	for name, tt := range map[string]struct {
		change func(v, request *Volume)
		want   []string
	}{
		"the same": {func(_, _ *Volume) {}, nil},
		"what may be left out": {func(_, r *Volume) {
			r.Name, r.CloneID, r.CapacityMin, r.CapacityMax, r.Parameters, r.Topology, r.Mutable = "", "", 0, 0, nil, call.TopologyRequest{}, nil
		}, nil},
		"missing and empty":           {func(_, r *Volume) { r.MountOptions.MountFlags, r.Topology.Required = []string{}, []map[string]string{} }, nil},
		"as large as it is":           {func(_, r *Volume) { r.CapacityMin = 12 }, nil},
		"larger":                      {func(_, r *Volume) { r.CapacityMin = 13 }, []string{"capacity_min: 12B → 13B"}},
		"as large as it becomes":      {func(v, r *Volume) { v.Expansion.Want, r.CapacityMin = 13, 13 }, nil},
		"another bound":               {func(_, r *Volume) { r.CapacityMax = 50 }, []string{"capacity_max: 100B → 50B"}},
		"a bound that it keeps":       {func(v, r *Volume) { v.CapacityMax, r.CapacityMax = 0, 50 }, nil},
		"a bound that it breaks":      {func(v, r *Volume) { v.CapacityMax, r.CapacityMin, r.CapacityMax = 0, 0, 11 }, []string{"capacity_max: none → 11B"}},
		"the context of the request":  {func(_, r *Volume) { r.Context = map[string]string{"of": "file"} }, nil},
		"another registered context":  {func(v, r *Volume) { v.Created, r.Context = false, map[string]string{"of": "file"} }, []string{`context: {"of":"plugin"} → {"of":"file"}`}},
		"another place":               {func(_, r *Volume) { r.Topology.Preferred = []map[string]string{{"zone": "b"}} }, []string{`topology_request: {"preferred":[{"zone":"a"}]} → {"preferred":[{"zone":"b"}]}`}},
		"the default place":           {func(v, r *Volume) { v.Topology, r.Topology = call.TopologyRequest{}, call.TopologyRequest{} }, nil},
		"a source":                    {func(v, r *Volume) { v.CloneID, r.SnapshotID = "", "snap" }, []string{`snapshot_id: none → "snap"`, `clone_id: none → "other"`}},
		"a modify of unknown outcome": {func(v, _ *Volume) { v.Modifying = map[string]string{"iops": "2"} }, []string{`mutable_parameters: {"iops":"1"} → {"iops":"1"}`}},
		"the order of its first modes": {func(v, r *Volume) {
			v.Capabilities = append(v.Capabilities, call.Capability{Access: call.MultiNodeReaderOnly})
			slices.Reverse(r.Capabilities)
		}, []string{`capabilities: [{"access_mode":"single-node-writer","attachment_mode":"file-system"},{"access_mode":"multi-node-reader-only","attachment_mode":""}] → [{"access_mode":"single-node-writer","attachment_mode":"file-system"}]`}},
		"another plugin and no name": {func(_, r *Volume) { r.PluginID, r.Name = "q", "x" }, []string{`name: "data" → "x"`, `plugin_id: "p" → "q"`}},
	} {
		v, request := made, made
		v.Capabilities, request.Capabilities = slices.Clone(made.Capabilities), slices.Clone(made.Capabilities)
		tt.change(&v, &request)
		if got := v.Differences(request); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
