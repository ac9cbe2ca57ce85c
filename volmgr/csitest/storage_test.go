package csitest

import (
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// whole is the Config of a plugin with the capabilities of full and with all capabilities that
// concern storage.
var whole = func() Config {
	c := full
	c.Lists, c.PublishedNodes, c.Get, c.Clone, c.Modify, c.MountGroup = true, true, true, true, true, true
	c.Snapshot, c.ListSnapshots, c.GetSnapshot, c.GroupSnapshot = true, true, true, true
	c.Expand, c.NodeExpand = true, true
	c.Health, c.ListHealth, c.NodeHealth, c.StorageHealth = true, true, true, true
	return c
}()

// with returns an edited copy of a Config.
func with(c Config, edit func(*Config)) Config {
	edit(&c)
	return c
}

func (b *bench) controller() csi.ControllerClient  { return csi.NewControllerClient(b.conn) }
func (b *bench) node() csi.NodeClient              { return csi.NewNodeClient(b.conn) }
func (b *bench) groups() csi.GroupControllerClient { return csi.NewGroupControllerClient(b.conn) }

func volumeSource(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id}}}
}

func snapshotSource(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id}}}
}

// create creates a volume of the given size. The source may be nil.
func (b *bench) create(name string, size int64, from *csi.VolumeContentSource) (*csi.Volume, error) {
	r := &csi.CreateVolumeRequest{Name: name, VolumeCapabilities: []*csi.VolumeCapability{writer()}, VolumeContentSource: from}
	if size > 0 {
		r.CapacityRange = &csi.CapacityRange{RequiredBytes: size}
	}
	resp, err := b.controller().CreateVolume(b.ctx(), r)
	return resp.GetVolume(), err
}

func (b *bench) grow(v string, size int64) (*csi.ControllerExpandVolumeResponse, error) {
	return b.controller().ControllerExpandVolume(b.ctx(), &csi.ControllerExpandVolumeRequest{VolumeId: v, CapacityRange: &csi.CapacityRange{RequiredBytes: size}})
}

func (b *bench) growNode(v, path string) (*csi.NodeExpandVolumeResponse, error) {
	return b.node().NodeExpandVolume(b.ctx(), &csi.NodeExpandVolumeRequest{VolumeId: v, VolumePath: path, StagingTargetPath: b.staging(v)})
}

func (b *bench) snap(v, name string) (*csi.Snapshot, error) {
	resp, err := b.controller().CreateSnapshot(b.ctx(), &csi.CreateSnapshotRequest{SourceVolumeId: v, Name: name})
	return resp.GetSnapshot(), err
}

// total returns the size, in bytes, that the node sees for a volume.
func (b *bench) total(v, target string) int64 {
	b.t.Helper()
	return b.totalAt(v, b.target(target), b.staging(v))
}

func (b *bench) totalAt(v, path, staging string) int64 {
	b.t.Helper()
	stats, err := b.node().NodeGetVolumeStats(b.ctx(), &csi.NodeGetVolumeStatsRequest{VolumeId: v, VolumePath: path, StagingTargetPath: staging})
	b.must(err)
	return stats.Usage[0].Total
}

const gib = 1 << 30

// TestExpand checks that the node sees the new size only after NodeExpandVolume, also for a loop
// device. If the plugin is killed between ControllerExpandVolume and NodeExpandVolume, it must
// remember the first call.
func TestExpand(t *testing.T) {
	b := start(t, whole)
	_, err := b.create("a", gib, nil)
	b.must(err)
	b.upMade("a")
	if got := b.total("a", "t"); got != gib {
		t.Errorf("total %d", got)
	}
	grown, err := b.grow("a", 2*gib)
	if err != nil || grown.CapacityBytes != 2*gib || !grown.NodeExpansionRequired {
		t.Errorf("%v, %v", grown, err)
	}
	if got := b.total("a", "t"); got != gib {
		t.Errorf("total %d before the node's part", got)
	}
	b.restart()
	for _, path := range []string{b.staging("a"), b.target("t")} {
		at, err := b.growNode("a", path)
		if err != nil || at.CapacityBytes != 2*gib || b.total("a", "t") != 2*gib {
			t.Errorf("%v, %v", at, err)
		}
	}
	if again, err := b.grow("a", gib); err != nil || again.CapacityBytes != 2*gib {
		t.Errorf("what it has already: %v, %v", again, err)
	}
	_, err = b.grow("a", 2<<40)
	b.code(codes.OutOfRange, err)
	b.noViolations()
	if c := b.journal().Calls.Only(ControllerExpand)[0]; c.Least != 2*gib || c.Capacity != 2*gib || !c.NodeRequired {
		t.Errorf("call: %+v", c)
	}
}

// upMade makes a volume that the plugin created available at the target "t".
func (b *bench) upMade(v string) {
	b.t.Helper()
	given := map[string]string{"csitest/name": v}
	_, err := b.controller().ControllerPublishVolume(b.ctx(), &csi.ControllerPublishVolumeRequest{VolumeId: v, NodeId: "node-1", VolumeCapability: writer(), VolumeContext: given})
	b.must(err)
	b.must(os.MkdirAll(b.staging(v), 0o711))
	st, pub := b.stageRequest(v), b.publishRequest(v, "t")
	st.VolumeContext, pub.VolumeContext = given, given
	_, err = b.node().NodeStageVolume(b.ctx(), st)
	b.must(err)
	_, err = b.node().NodePublishVolume(b.ctx(), pub)
	b.must(err)
}

// TestExpandBlock checks that an expansion enlarges the file of a block volume, and a loop device
// on this file.
func TestExpandBlock(t *testing.T) {
	for _, loop := range []bool{false, true} {
		if loop && (os.Getuid() != 0 || loopControlMissing()) {
			t.Skip("there are no loop devices")
		}
		expandBlock(t, Config{AnyVolume: true, NodeExpand: true, Stats: true, LoopDevices: loop})
	}
}

func expandBlock(t *testing.T, cfg Config) {
	b := start(t, cfg)
	defer func() { b.must(errors.Join(UnmountAll(b.cfg.JournalPath()), b.p.store.release("a"))) }()
	r := b.publishRequest("a", "t")
	r.StagingTargetPath, r.VolumeCapability.AccessType = "", &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	_, err := b.node().NodePublishVolume(b.ctx(), r)
	b.must(err)
	_, err = b.node().NodeExpandVolume(b.ctx(), &csi.NodeExpandVolumeRequest{VolumeId: "a", VolumePath: b.target("t"),
		CapacityRange: &csi.CapacityRange{RequiredBytes: 3 * blockSize}, VolumeCapability: r.VolumeCapability})
	b.must(err)
	f, err := os.Open(b.target("t"))
	b.must(err)
	end, err := f.Seek(0, io.SeekEnd)
	if err = errors.Join(err, f.Close()); err != nil || end != 3*blockSize {
		t.Errorf("the block target has %d bytes: %v", end, err)
	}
	if got := b.totalAt("a", b.target("t"), ""); got != 3*blockSize {
		t.Errorf("total %d", got)
	}
	b.noViolations()
}

func TestExpandOffline(t *testing.T) {
	b := start(t, with(whole, func(c *Config) { c.Offline, c.GrowsAlone = true, true }))
	grown, err := b.grow("a", gib)
	if err != nil || grown.NodeExpansionRequired {
		t.Errorf("%v, %v", grown, err)
	}
	b.noViolations()
	b.up("a")
	_, err = b.grow("a", 2*gib)
	b.code(codes.FailedPrecondition, err)
}

func TestModify(t *testing.T) {
	b := start(t, with(whole, func(c *Config) { c.Mutable = []string{"iops", "tier"} }))
	modify := func(params map[string]string) error {
		_, err := b.controller().ControllerModifyVolume(b.ctx(), &csi.ControllerModifyVolumeRequest{VolumeId: "a", MutableParameters: params})
		return err
	}
	b.must(modify(map[string]string{"iops": "5"}))
	b.code(codes.InvalidArgument, modify(map[string]string{"tier": "gold", "colour": "red"}))
	v := stored{}
	if _, err := readJSON(b.p.store.path("a", "volume.json"), &v); err != nil || len(v.Mutable) != 1 || v.Mutable["iops"] != "5" {
		t.Errorf("%+v, %v", v, err)
	}
	_, err := b.controller().CreateVolume(b.ctx(), &csi.CreateVolumeRequest{Name: "b", VolumeCapabilities: []*csi.VolumeCapability{writer()},
		MutableParameters: map[string]string{"colour": "red"}})
	b.code(codes.InvalidArgument, err)
	b.noViolations()
}

// TestListVolumes checks that no volume is missing from the pages of a list, or listed twice, if a
// volume is deleted between two pages.
func TestListVolumes(t *testing.T) {
	b := start(t, with(whole, func(c *Config) { c.PageSize, c.Volumes = 2, []string{"a", "b", "c", "d", "e"} }))
	b.must(b.attach("b"))
	var ids []string
	token := ""
	for range 3 {
		resp, err := b.controller().ListVolumes(b.ctx(), &csi.ListVolumesRequest{MaxEntries: 3, StartingToken: token})
		b.must(err)
		for _, e := range resp.Entries {
			ids = append(ids, e.Volume.VolumeId+strings.Join(e.Status.GetPublishedNodeIds(), ""))
		}
		token = resp.NextToken
		b.restart()
		deleteWith(b, nil) // deletes the volume "a"
	}
	if want := []string{"a", "bnode-1", "c", "d", "e"}; !slices.Equal(ids, want) || token != "" {
		t.Errorf("%v, then %q", ids, token)
	}
	b.noViolations()
	_, err := b.controller().ListVolumes(b.ctx(), &csi.ListVolumesRequest{StartingToken: "x"})
	b.code(codes.Aborted, err)

	got, err := b.controller().ControllerGetVolume(b.ctx(), &csi.ControllerGetVolumeRequest{VolumeId: "b"})
	if err != nil || got.Volume.VolumeId != "b" || len(got.Status.PublishedNodeIds) != 1 {
		t.Errorf("%v, %v", got, err)
	}
	_, err = b.create("f", gib, nil)
	b.must(err)
	left, err := b.controller().GetCapacity(b.ctx(), &csi.GetCapacityRequest{})
	if err != nil || left.AvailableCapacity != 1<<40-gib || left.MaximumVolumeSize.GetValue() != 1<<40 {
		t.Errorf("%v, %v", left, err)
	}
}

func TestClone(t *testing.T) {
	b := start(t, with(whole, func(c *Config) { c.AnyVolume = false }))
	_, err := b.create("a", gib, nil)
	b.must(err)
	b.must(os.WriteFile(b.p.store.path("a", "data", "file"), []byte("hello"), 0o600))
	made, err := b.create("b", 0, volumeSource("a"))
	if err != nil || made.CapacityBytes != gib || made.ContentSource.GetVolume().GetVolumeId() != "a" {
		t.Errorf("%v, %v", made, err)
	}
	if raw, err := os.ReadFile(b.p.store.path("b", "data", "file")); err != nil || string(raw) != "hello" {
		t.Errorf("%q, %v", raw, err)
	}
	_, err = b.create("b", 0, volumeSource("a"))
	b.must(err)
	_, err = b.create("b", 0, nil)
	b.code(codes.AlreadyExists, err)
	_, err = b.create("c", 0, volumeSource("none"))
	b.code(codes.NotFound, err)
	_, err = b.controller().CreateVolume(b.ctx(), &csi.CreateVolumeRequest{Name: "c", VolumeCapabilities: []*csi.VolumeCapability{writer()},
		VolumeContentSource: volumeSource("a"), CapacityRange: &csi.CapacityRange{LimitBytes: 5}})
	b.code(codes.OutOfRange, err)
	if _, err := os.Stat(b.p.store.path("c")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something is half made: %v", err)
	}
	b.noViolations()
}
