package provision_test

import (
	"testing"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// at returns a topology request that requires and prefers one zone.
func at(zone string) call.TopologyRequest {
	here := []map[string]string{{"zone": zone}}
	return call.TopologyRequest{Required: here, Preferred: here}
}

// placed returns a camera whose plugin supports topology, on a host in the given zone. With an
// empty zone, the host reports no segments.
func placed(t *testing.T, zone string) (*camera, *[]call.CreateVolumeRequest) {
	t.Helper()
	c, asked := copies(t)
	c.view.Info.Caps.Topology = true
	if zone != "" {
		c.view.Info.Topology = map[string]string{"zone": zone}
	}
	return c, asked
}

// TestDefaultTopology checks a volume without topology_request. The agent asks for storage that
// this host can reach. It does not store this topology as a part of the request, so a repeated
// create with the same file matches the stored volume.
func TestDefaultTopology(t *testing.T) {
	elsewhere := spec()
	elsewhere.Topology.Required = []map[string]string{{"zone": "b"}}
	for name, tt := range map[string]struct {
		zone string
		plan func(*camera)
		spec volume.Volume
		want call.TopologyRequest
	}{
		"none asked for":  {"a", nil, spec(), at("a")},
		"asked for":       {"a", nil, elsewhere, elsewhere.Topology},
		"no segments":     {"", nil, spec(), call.TopologyRequest{}},
		"none in the CSI": {"a", func(c *camera) { c.view.Info.Caps.Topology = false }, spec(), call.TopologyRequest{}},
	} {
		c, asked := placed(t, tt.zone)
		if tt.plan != nil {
			tt.plan(c)
		}
		r, _, err := c.service().Create(t.Context(), tt.spec, false)
		if err != nil || len(*asked) != 1 {
			t.Fatalf("%s: %v, %+v", name, err, *asked)
		}
		equal(t, name+": sent", (*asked)[0].Topology, tt.want)
		equal(t, name+": the request", r.Volume.Topology, tt.spec.Topology)
		equal(t, name+": kept", r.Volume.TopologySent, call.TopologyRequest{})

		_, ch, err := c.service().Create(t.Context(), tt.spec, false)
		equal(t, name+": created again", ch.Outcome+" "+errorText(err), volume.Unchanged+" ")
		_, ch, err = c.service().Register(t.Context(), tt.spec, false)
		equal(t, name+": registered", ch.Outcome+" "+errorText(err), volume.Unchanged+" ")
	}
}

// TestResumedTopology checks that a resumed create sends the topology of the first attempt, even if
// the topology of the host has changed.
func TestResumedTopology(t *testing.T) {
	c, asked := placed(t, "a")
	c.fails[call.CreateVolume] = []error{refusal(call.CreateVolume, "DeadlineExceeded")}
	_, _, err := c.service().Create(t.Context(), spec(), false)
	want(t, "cut short", err, volume.ErrTimeout)
	equal(t, "the intent", c.volumes["data"].Volume.TopologySent, at("a"))
	c.view.Info.Topology = map[string]string{"zone": "b"}
	if _, _, err := c.service().Create(t.Context(), spec(), false); err != nil {
		t.Fatal(err)
	}
	equal(t, "sent again", (*asked)[1].Topology, at("a"))

	// An earlier version of the agent stored an intent without a topology. When the agent resumes
	// this create, it must not send a topology either.
	c, asked = placed(t, "a")
	old := clone("source")
	old.Name, old.Driver, old.Provision = "data", "ebs.csi", volume.Provisioning
	c.volumes["data"] = volume.Record{Volume: old}
	c.reach("b")
	if _, _, err := c.service().Create(t.Context(), clone("source"), false); err != nil {
		t.Fatal(err)
	}
	equal(t, "sent for an old record", (*asked)[0].Topology, call.TopologyRequest{})
}

// reach makes the clone source reachable from one zone only.
func (c *camera) reach(zone string) {
	r := c.volumes["source"]
	r.Volume.Topologies = []map[string]string{{"zone": zone}}
	c.volumes["source"] = r
}

// TestCloneOutOfReach checks that the agent refuses a clone for this host if this host cannot reach
// the clone source.
func TestCloneOutOfReach(t *testing.T) {
	for _, of := range []string{"source", "vol-9"} {
		c, asked := placed(t, "a")
		c.reach("b")
		for _, dry := range []bool{true, false} {
			_, _, err := c.service().Create(t.Context(), clone(of), dry)
			want(t, of, err, volume.ErrRefused, `cannot clone volume "source" for this host: it can be reached from zone=b, and this host is at zone=a`, "topology_request")
		}
		if _, left := c.volumes["data"]; left || len(*asked) > 0 {
			t.Errorf("%s: %+v was asked for, left: %t", of, *asked, left)
		}
		c.reach("a")
		if _, _, err := c.service().Create(t.Context(), clone(of), false); err != nil {
			t.Errorf("%s within reach: %v", of, err)
		}
	}
	c, _ := placed(t, "a")
	c.reach("b")
	v := clone("source")
	v.Topology = at("b")
	if _, _, err := c.service().Create(t.Context(), v, false); err != nil {
		t.Errorf("for another host: %v", err)
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
