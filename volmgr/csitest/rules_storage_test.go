package csitest

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// brokenStorageRules lists ways to break the rules about the storage of volumes.
var brokenStorageRules = map[string]broken{
	"expand without the capability":      {RuleOffered, full, func(b *bench) { _, _ = b.grow("a", 1) }},
	"node expand without the capability": {RuleOffered, full, func(b *bench) { b.up("a"); _, _ = b.growNode("a", b.staging("a")) }},
	"modify without the capability": {RuleOffered, full, func(b *bench) {
		_, err := b.controller().ControllerModifyVolume(b.ctx(), &csi.ControllerModifyVolumeRequest{VolumeId: "a", MutableParameters: map[string]string{"iops": "1"}})
		b.code(codes.Unimplemented, err)
	}},
	"get without the capability": {RuleOffered, full, func(b *bench) {
		_, _ = b.controller().ControllerGetVolume(b.ctx(), &csi.ControllerGetVolumeRequest{VolumeId: "a"})
	}},
	"snapshot without the capability": {RuleOffered, full, func(b *bench) { _, _ = b.snap("a", "s") }},
	"list snapshots without the capability": {RuleOffered, full, func(b *bench) {
		_, _ = b.controller().ListSnapshots(b.ctx(), &csi.ListSnapshotsRequest{})
	}},
	"get snapshot without the capability": {RuleOffered, full, func(b *bench) {
		_, _ = b.controller().GetSnapshot(b.ctx(), &csi.GetSnapshotRequest{SnapshotId: "s"})
	}},
	"groups without the service": {RuleOffered, full, func(b *bench) {
		_, _ = b.groups().GroupControllerGetCapabilities(b.ctx(), &csi.GroupControllerGetCapabilitiesRequest{})
	}},
	"health without the capability": {RuleOffered, full, func(b *bench) {
		_, _ = b.node().NodeGetVolumeHealth(b.ctx(), &csi.NodeGetVolumeHealthRequest{VolumeId: "a"})
	}},
	"health of the storage without the capability": {RuleOffered, full, func(b *bench) {
		_, _ = b.node().NodeGetStorageHealth(b.ctx(), &csi.NodeGetStorageHealthRequest{})
	}},
	"health of the controller without the capability": {RuleOffered, full, func(b *bench) {
		_, _ = b.controller().ControllerGetVolumeHealth(b.ctx(), &csi.ControllerGetVolumeHealthRequest{VolumeId: "a"})
	}},
	"list health without the capability": {RuleOffered, full, func(b *bench) {
		_, _ = b.controller().ControllerListVolumeHealth(b.ctx(), &csi.ControllerListVolumeHealthRequest{})
	}},
	"restore without the capability": {RuleOffered, full, func(b *bench) { _, _ = b.create("a", 0, snapshotSource("s")) }},
	"a source that is none":          {RuleRequired, whole, func(b *bench) { _, _ = b.create("a", 0, &csi.VolumeContentSource{}) }},
	"capacity somewhere": {RuleOffered, whole, func(b *bench) {
		_, _ = b.controller().GetCapacity(b.ctx(), &csi.GetCapacityRequest{AccessibleTopology: &csi.Topology{}})
	}},
	"a snapshot somewhere": {RuleOffered, whole, func(b *bench) {
		_, _ = b.controller().CreateSnapshot(b.ctx(), &csi.CreateSnapshotRequest{SourceVolumeId: "a", Name: "s", AccessibilityRequirements: &csi.TopologyRequirement{}})
	}},
	"a staging path where none is staged": {RuleOffered, Config{AnyVolume: true, Stats: true}, func(b *bench) {
		publishUnstaged(b, csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)
		_, _ = b.node().NodeGetVolumeStats(b.ctx(), &csi.NodeGetVolumeStatsRequest{VolumeId: "a", VolumePath: b.target("t"), StagingTargetPath: b.staging("a")})
	}},
	"expand by nothing": {RuleRequired, whole, func(b *bench) {
		_, _ = b.controller().ControllerExpandVolume(b.ctx(), &csi.ControllerExpandVolumeRequest{VolumeId: "a"})
	}},
	"modify nothing": {RuleRequired, whole, func(b *bench) {
		_, _ = b.controller().ControllerModifyVolume(b.ctx(), &csi.ControllerModifyVolumeRequest{VolumeId: "a"})
	}},
	"a snapshot without a name": {RuleRequired, whole, func(b *bench) { _, _ = b.snap("a", "") }},
	"a group of nothing":        {RuleRequired, whole, func(b *bench) { _, _ = b.group("g") }},
	"a group without members": {RuleRequired, whole, func(b *bench) {
		_, _ = b.groups().GetVolumeGroupSnapshot(b.ctx(), &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: "g"})
	}},
	"a page of less than nothing": {RuleRequired, whole, func(b *bench) {
		_, _ = b.controller().ListVolumes(b.ctx(), &csi.ListVolumesRequest{MaxEntries: -1})
	}},
	"a token of another list": {RuleToken, with(whole, func(c *Config) { c.PageSize, c.Volumes = 1, []string{"a", "b"} }), func(b *bench) {
		resp, err := b.controller().ListVolumes(b.ctx(), &csi.ListVolumesRequest{})
		b.must(err)
		_, _ = b.controller().ListSnapshots(b.ctx(), &csi.ListSnapshotsRequest{StartingToken: resp.NextToken})
	}},
	"expand offline while staged": {RuleOffline, with(whole, func(c *Config) { c.Offline = true }), func(b *bench) { b.up("a"); _, _ = b.grow("a", 1) }},
	"node expand before stage": {RuleOrder, whole, func(b *bench) {
		b.must(b.attach("a"))
		_, err := b.grow("a", 1)
		b.must(err)
		_, _ = b.growNode("a", b.staging("a"))
	}},
	"node expand elsewhere": {RuleOrder, whole, func(b *bench) {
		b.up("a")
		_, err := b.grow("a", 1)
		b.must(err)
		_, _ = b.growNode("a", b.target("t"))
	}},
	"node expand that was not required": {RuleOrder, whole, func(b *bench) { b.up("a"); _, _ = b.growNode("a", b.staging("a")) }},
	"node expand as another use": {RuleCapability, with(whole, func(c *Config) { c.Expand = false }), func(b *bench) {
		b.up("a")
		_, _ = b.node().NodeExpandVolume(b.ctx(), &csi.NodeExpandVolumeRequest{VolumeId: "a", VolumePath: b.staging("a"),
			VolumeCapability: asMount(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY)})
	}},
	"another mount group": {RuleCapability, whole, func(b *bench) {
		publishWith(b, func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability.GetMount().VolumeMountGroup = "7" })
	}},
	"a volume of a snapshot that is not ready": {RuleOrder, with(whole, func(c *Config) { c.ReadyAfter = -1 }), func(b *bench) {
		s, err := b.snap("a", "s")
		b.must(err)
		_, err = b.create("b", 0, snapshotSource(s.SnapshotId))
		b.code(codes.FailedPrecondition, err)
	}},
	"a member deleted alone": {RuleOrder, whole, func(b *bench) {
		g, err := b.group("g", "a", "b")
		b.must(err)
		_, err = b.controller().DeleteSnapshot(b.ctx(), &csi.DeleteSnapshotRequest{SnapshotId: g.Snapshots[0].SnapshotId})
		b.code(codes.InvalidArgument, err)
	}},
	"other members": {RuleOrder, whole, func(b *bench) {
		g, err := b.group("g", "a", "b")
		b.must(err)
		_, err = b.groups().DeleteVolumeGroupSnapshot(b.ctx(), &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: g.GroupSnapshotId, SnapshotIds: []string{"x"}})
		b.code(codes.InvalidArgument, err)
	}},
	"a snapshot during another call": {RuleInFlight, whole, func(b *bench) {
		b.inject(Fault{Method: ControllerExpand, Hang: true})
		done := make(chan error, 1)
		go func() { _, err := b.grow("a", 1); done <- err }()
		b.await(ControllerExpand)
		_, _ = b.group("g", "a", "b")
		b.must(b.cfg.Faults().Clear())
		b.must(<-done)
	}},
}

// publishUnstaged publishes the volume "a" at the target "t". The plugin must not require
// NodeStage.
func publishUnstaged(b *bench, mode csi.VolumeCapability_AccessMode_Mode) {
	r := b.publishRequest("a", "t")
	r.StagingTargetPath, r.VolumeCapability = "", asMount(mode)
	_, err := b.node().NodePublishVolume(b.ctx(), r)
	b.must(err)
}

func (b *bench) group(name string, sources ...string) (*csi.VolumeGroupSnapshot, error) {
	resp, err := b.groups().CreateVolumeGroupSnapshot(b.ctx(), &csi.CreateVolumeGroupSnapshotRequest{Name: name, SourceVolumeIds: sources})
	return resp.GetGroupSnapshot(), err
}

// TestMountGroup checks that a plugin with VOLUME_MOUNT_GROUP accepts the mount group and writes it
// to the journal.
func TestMountGroup(t *testing.T) {
	b := start(t, whole)
	b.must(b.attach("a"))
	stageWith(b, func(r *csi.NodeStageVolumeRequest) { r.VolumeCapability.GetMount().VolumeMountGroup = "7" })
	publishWith(b, func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability.GetMount().VolumeMountGroup = "7" })
	b.noViolations()
	for _, c := range b.journal().Calls.Only(NodeStage, NodePublish) {
		if c.MountGroup != "7" || !c.OK() {
			t.Errorf("call: %+v", c)
		}
	}
}
