package localdriver

import (
	"maps"
	"regexp"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/localdriver/sandbox"
)

func onNode(name string) *csi.Topology {
	return &csi.Topology{Segments: map[string]string{"topology.local.csi.volagent/node": name}}
}

func TestTopology(t *testing.T) {
	b := newBench(t)
	plugin, err := b.GetPluginCapabilities(background(), &csi.GetPluginCapabilitiesRequest{})
	sandbox.Must(t, err)
	if !strings.Contains(plugin.String(), "VOLUME_ACCESSIBILITY_CONSTRAINTS") {
		t.Errorf("got %v", plugin)
	}
	here, there := onNode("node-1"), onNode("node-2")
	info, err := b.NodeGetInfo(background(), &csi.NodeGetInfoRequest{})
	sandbox.Must(t, err)
	if !maps.Equal(info.GetAccessibleTopology().GetSegments(), here.GetSegments()) {
		t.Errorf("the node says %v", info)
	}
	zone := &csi.Topology{Segments: map[string]string{"zone": "z1", topologyKey: "node-1"}}
	req := func(name string, r *csi.TopologyRequirement) *csi.CreateVolumeRequest {
		c := createReq(name, 0, nil, mountCap(writer, ""))
		c.AccessibilityRequirements = r
		return c
	}
	for name, r := range map[string]*csi.TopologyRequirement{
		"nothing":            nil,
		"here":               {Requisite: []*csi.Topology{here}},
		"here or there":      {Requisite: []*csi.Topology{there, here}, Preferred: []*csi.Topology{there, here}},
		"there if it can be": {Preferred: []*csi.Topology{there}},
	} {
		resp, err := b.CreateVolume(background(), req(name, r))
		sandbox.Must(t, err)
		got := resp.GetVolume().GetAccessibleTopology()
		if len(got) != 1 || !maps.Equal(got[0].GetSegments(), here.GetSegments()) {
			t.Errorf("%s: the volume is at %v", name, got)
		}
	}
	for name, r := range map[string]*csi.TopologyRequirement{
		"there":   {Requisite: []*csi.Topology{there}},
		"in zone": {Requisite: []*csi.Topology{zone}},
	} {
		_, err := b.CreateVolume(background(), req(name, r))
		sandbox.WantCode(t, err, codes.ResourceExhausted, "another node", "node-1")
	}
	list, err := b.ListVolumes(background(), &csi.ListVolumesRequest{})
	sandbox.Must(t, err)
	if len(list.GetEntries()) != 4 {
		t.Errorf("made were %v", list)
	}
	for _, e := range list.GetEntries() {
		if len(e.GetVolume().GetAccessibleTopology()) != 1 {
			t.Errorf("listed without its topology: %v", e)
		}
	}
	for _, at := range []*csi.Topology{nil, here, there} {
		resp, err := b.GetCapacity(background(), &csi.GetCapacityRequest{AccessibleTopology: at})
		sandbox.Must(t, err)
		if (resp.GetAvailableCapacity() > 0) != (at != there) {
			t.Errorf("capacity at %v: %v", at, resp)
		}
	}
}

// TestTopologyNode checks node ids that CSI does not allow as values of a topology segment.
func TestTopologyNode(t *testing.T) {
	allowed := regexp.MustCompile(`^[a-zA-Z0-9]([-_.a-zA-Z0-9]*[a-zA-Z0-9])?$`)
	seen := map[string]bool{}
	for _, id := range []string{"n", "node-1", "a.b_c", "has space", "-x", "x.", strings.Repeat("n", 63), strings.Repeat("n", 64), "ü", strings.Repeat("x/", 128)} {
		got := topologyNode(id)
		if len(got) > 63 || !allowed.MatchString(got) || seen[got] {
			t.Errorf("%q became %q", id, got)
		}
		if allowed.MatchString(id) && len(id) <= 63 && got != id {
			t.Errorf("%q became %q for no reason", id, got)
		}
		seen[got] = true
	}
}
