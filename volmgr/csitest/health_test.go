package csitest

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
)

// TestHealth checks that the selected services report the simulated problems until the test removes
// them. The injected failures of calls must not affect the simulated problems.
func TestHealth(t *testing.T) {
	b := start(t, whole)
	b.inject(Fault{Method: CreateVolume})
	b.must(b.cfg.Faults().SetConditions(
		Condition{Volume: "a", Status: 1, Reason: "Slow", Message: "it is slow"},
		Condition{Volume: "a", Seen: atNode, Status: 42, Reason: "Odd"},
		Condition{Volume: "b", Seen: atController, Status: 3, Reason: "Gone"},
		Condition{Status: 2, Reason: "NoPath"}))
	b.must(b.cfg.Faults().Clear())
	look := func(node, controller, listed, storage int) {
		t.Helper()
		n, err := b.node().NodeGetVolumeHealth(b.ctx(), &csi.NodeGetVolumeHealthRequest{VolumeId: "a", VolumePublishPath: "/t"})
		b.must(err)
		c, err := b.controller().ControllerGetVolumeHealth(b.ctx(), &csi.ControllerGetVolumeHealthRequest{VolumeId: "a"})
		b.must(err)
		l, err := b.controller().ControllerListVolumeHealth(b.ctx(), &csi.ControllerListVolumeHealthRequest{})
		b.must(err)
		s, err := b.node().NodeGetStorageHealth(b.ctx(), &csi.NodeGetStorageHealthRequest{})
		b.must(err)
		if len(n.VolumeHealth.HealthStatuses) != node || len(c.VolumeHealth.HealthStatuses) != controller || len(l.Entries) != listed || len(s.BackendHealth) != storage {
			t.Errorf("%v, %v, %v, %v", n, c, l, s)
		}
	}
	look(2, 1, 2, 1)
	b.restart()
	b.must(b.cfg.Faults().SetConditions())
	look(0, 0, 0, 0)
	b.noViolations()
}

// TestOldCondition checks a plugin that imitates a plugin older than CSI 1.13. It must report
// problems in the field that CSI 1.13 removed.
func TestOldCondition(t *testing.T) {
	b := start(t, Config{AnyVolume: true, Condition: true, Get: true, Lists: true, Volumes: []string{"a"}})
	caps, err := b.controller().ControllerGetCapabilities(b.ctx(), &csi.ControllerGetCapabilitiesRequest{})
	b.must(err)
	if last := caps.Capabilities[len(caps.Capabilities)-1].GetRpc().GetType(); last != 11 {
		t.Errorf("capabilities: %v", caps)
	}
	condition := func() []byte {
		resp, err := b.controller().ControllerGetVolume(b.ctx(), &csi.ControllerGetVolumeRequest{VolumeId: "a"})
		b.must(err)
		list, err := b.controller().ListVolumes(b.ctx(), &csi.ListVolumesRequest{})
		b.must(err)
		got := []byte(resp.Status.ProtoReflect().GetUnknown())
		if listed := list.Entries[0].Status.ProtoReflect().GetUnknown(); string(listed) != string(got) {
			t.Errorf("one %q, the other %q", got, listed)
		}
		return got
	}
	// The test compares bytes, because the current spec has no message type for a VolumeCondition.
	if got := string(condition()); got != "\x12\x0d\x12\x0ball is well" {
		t.Errorf("%q", got)
	}
	b.must(b.cfg.Faults().SetConditions(Condition{Volume: "a", Message: "bad"}))
	if got := string(condition()); got != "\x12\x07\x08\x01\x12\x03bad" {
		t.Errorf("%q", got)
	}
	if err := proto.Unmarshal(condition(), &csi.ListVolumesResponse_VolumeStatus{}); err != nil {
		t.Error(err)
	}
	b.noViolations()
}

// TestBentAnswers checks the twists that change only the answer.
func TestBentAnswers(t *testing.T) {
	b := start(t, whole)
	b.inject(Fault{Method: CreateSnapshot, Twist: Unready}, Fault{Method: CreateSnapshot, Twist: Nameless}, Fault{Method: CreateVolume, Twist: Short},
		Fault{Method: ListVolumes, Twist: Endless, Times: 2}, Fault{Method: CreateGroupSnapshot, Twist: Unready})
	made, err := b.create("a", gib, nil)
	b.must(err)
	unready, err := b.snap("a", "s")
	b.must(err)
	nameless, err := b.snap("a", "u")
	b.must(err)
	g, err := b.group("g", "a")
	b.must(err)
	if made.CapacityBytes != gib/2 || unready.ReadyToUse || nameless.SnapshotId != "" || g.ReadyToUse || g.Snapshots[0].ReadyToUse {
		t.Errorf("%v, %v, %v, %v", made, unready, nameless, g)
	}
	token := ""
	for n := range 3 {
		resp, err := b.controller().ListVolumes(b.ctx(), &csi.ListVolumesRequest{StartingToken: token})
		b.must(err)
		token = resp.NextToken
		if len(resp.Entries) != 1 || (token != "") != (n < 2) {
			t.Errorf("page %d: %v", n, resp)
		}
	}
	b.noViolations()
}
