package csiclient_test

import (
	"context"
	"reflect"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/csiclient"
	"github.com/volagent/volagent/volmgr/volume"
)

// answers sets the fake's answers to some methods. The answers to other methods do not change.
func (f *fake) answers(by map[string]any) {
	f.on(func(_ context.Context, m string, _ any) (any, error) { return by[m], nil })
}

// able returns answers that report additional capabilities, which the fake does not report by
// default.
func able() map[string]any {
	return map[string]any{
		"ControllerGetCapabilities": controllerCaps(csi.ControllerServiceCapability_RPC_MODIFY_VOLUME, csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER),
		"NodeGetCapabilities":       nodeCaps(csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP, csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER),
	}
}

// sent compares the last request of a method with the expected one.
func (f *fake) sent(t *testing.T, method string, want proto.Message) {
	t.Helper()
	if got, ok := f.last(method).(proto.Message); !ok || !proto.Equal(got, want) {
		t.Errorf("%s: sent\n%v\nwant\n%v", method, got, want)
	}
}

var (
	s3cret     = call.Secrets{"k": call.NewSecret("s3cret")}
	sentSecret = map[string]string{"k": "s3cret"}
	blockMulti = call.Capability{Access: call.SingleNodeMultiWriter, Attachment: call.BlockDevice}
)

func sentCapability(mode csi.VolumeCapability_AccessMode_Mode, mount *csi.VolumeCapability_MountVolume) *csi.VolumeCapability {
	c := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}}
	if mount != nil {
		c.AccessType = &csi.VolumeCapability_Mount{Mount: mount}
	}
	return c
}

func TestExpand(t *testing.T) {
	f := newFake(t)
	f.answers(map[string]any{
		"ControllerExpandVolume": &csi.ControllerExpandVolumeResponse{CapacityBytes: 9, NodeExpansionRequired: true},
		"NodeExpandVolume":       &csi.NodeExpandVolumeResponse{CapacityBytes: 8},
	})
	c := f.client(t, csiclient.Options{})
	got, err := call.Do(t.Context(), c, call.ExpandRequest{ExternalID: "x", CapacityMin: 5, CapacityMax: 10, Capability: fsWriter,
		FSType: "ext4", MountFlags: []string{"noatime"}, Secrets: s3cret})
	if err != nil || got != (call.ExpandResult{Capacity: 9, NodeRequired: true}) {
		t.Errorf("got %+v, %v", got, err)
	}
	f.sent(t, "ControllerExpandVolume", &csi.ControllerExpandVolumeRequest{VolumeId: "x", CapacityRange: &csi.CapacityRange{RequiredBytes: 5, LimitBytes: 10}, Secrets: sentSecret,
		VolumeCapability: sentCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, &csi.VolumeCapability_MountVolume{FsType: "ext4", MountFlags: []string{"noatime"}})})

	size, err := call.Do(t.Context(), c, call.NodeExpandRequest{ExternalID: "x", Path: "/t", StagingPath: "/s", CapacityMin: 5, Capability: blockMulti, Secrets: s3cret})
	if err != nil || size != 8 {
		t.Errorf("got %d, %v", size, err)
	}
	f.sent(t, "NodeExpandVolume", &csi.NodeExpandVolumeRequest{VolumeId: "x", VolumePath: "/t", StagingTargetPath: "/s", CapacityRange: &csi.CapacityRange{RequiredBytes: 5},
		Secrets: sentSecret, VolumeCapability: sentCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER, nil)})
	if _, err := call.Do(t.Context(), c, call.NodeExpandRequest{ExternalID: "x", Path: "/t", Capability: blockMulti}); err != nil {
		t.Error(err)
	}
	if r := f.last("NodeExpandVolume").(*csi.NodeExpandVolumeRequest); r.CapacityRange != nil || r.StagingTargetPath != "" {
		t.Errorf("any size: sent %v", r)
	}
}

// TestMutableParameters checks that the client sends mutable parameters only to plugins that
// support them. For other plugins, CreateVolume with mutable parameters must fail.
func TestMutableParameters(t *testing.T) {
	params := map[string]string{"iops": "5"}
	f := newFake(t)
	c := f.client(t, csiclient.Options{})
	_, err := call.Do(t.Context(), c, call.CreateVolumeRequest{Name: "n", Mutable: params})
	if got := callError(t, err); got.Retry != volume.RetryChange || !got.Answered || f.count("CreateVolume") != 0 {
		t.Errorf("without the capability: %+v after %d calls", *got, f.count("CreateVolume"))
	}
	f = newFake(t)
	f.answers(able())
	c = f.client(t, csiclient.Options{})
	if _, err := call.Do(t.Context(), c, call.CreateVolumeRequest{Name: "n", Mutable: params}); err != nil {
		t.Error(err)
	}
	f.sent(t, "CreateVolume", &csi.CreateVolumeRequest{Name: "n", MutableParameters: params})
	if err := call.Run(t.Context(), c, call.ModifyRequest{ExternalID: "x", Mutable: params, Secrets: s3cret}); err != nil {
		t.Error(err)
	}
	f.sent(t, "ControllerModifyVolume", &csi.ControllerModifyVolumeRequest{VolumeId: "x", MutableParameters: params, Secrets: sentSecret})
}

// TestMountGroup checks that the client sends the mount group only to plugins with
// VOLUME_MOUNT_GROUP.
func TestMountGroup(t *testing.T) {
	for want, caps := range map[string]map[string]any{"": nil, "7": able()} {
		f := newFake(t)
		f.answers(caps)
		c := f.client(t, csiclient.Options{})
		_, err := call.Do(t.Context(), c, call.ControllerPublishRequest{ExternalID: "x", NodeID: "n", Capability: fsWriter, MountGroup: "7"})
		if err != nil {
			t.Error(err)
		}
		if err := call.Run(t.Context(), c, call.NodeStageRequest{ExternalID: "x", StagingPath: "/s", Capability: fsWriter, MountGroup: "7"}); err != nil {
			t.Error(err)
		}
		if err := call.Run(t.Context(), c, call.NodePublishRequest{ExternalID: "x", TargetPath: "/t", Capability: fsWriter, MountGroup: "7"}); err != nil {
			t.Error(err)
		}
		for _, method := range []string{"ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume"} {
			r := f.last(method).(interface{ GetVolumeCapability() *csi.VolumeCapability })
			if got := r.GetVolumeCapability().GetMount().GetVolumeMountGroup(); got != want {
				t.Errorf("%s: sent group %q, want %q", method, got, want)
			}
		}
		if err := call.Run(t.Context(), c, call.NodePublishRequest{ExternalID: "x", TargetPath: "/t", Capability: blockMulti, MountGroup: "7"}); err != nil {
			t.Error(err)
		}
		if r := f.last("NodePublishVolume").(*csi.NodePublishVolumeRequest); r.VolumeCapability.GetBlock() == nil {
			t.Errorf("a block device has no group: sent %v", r)
		}
	}
}

func TestListVolumes(t *testing.T) {
	f := newFake(t)
	f.answers(map[string]any{
		"ListVolumes": &csi.ListVolumesResponse{NextToken: "more", Entries: []*csi.ListVolumesResponse_Entry{
			{Volume: &csi.Volume{VolumeId: "a", CapacityBytes: 5, VolumeContext: map[string]string{"c": "1"}, AccessibleTopology: []*csi.Topology{{Segments: map[string]string{"zone": "a"}}},
				ContentSource: &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: "s"}}}},
				Status: &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: []string{"n1", "n2"}}},
			{}, // this empty entry violates the spec
		}},
		"ControllerGetVolume": &csi.ControllerGetVolumeResponse{Volume: &csi.Volume{VolumeId: "x",
			ContentSource: &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: "v"}}}},
			Status: &csi.ControllerGetVolumeResponse_VolumeStatus{PublishedNodeIds: []string{"n1"}}},
	})
	c := f.client(t, csiclient.Options{})
	got, err := call.Do(t.Context(), c, call.ListVolumesRequest{MaxEntries: 2, Token: "here"})
	want := call.VolumePage{Next: "more", Entries: []call.StorageVolume{{ExternalID: "a", Capacity: 5, Context: map[string]string{"c": "1"},
		Topologies: []map[string]string{{"zone": "a"}}, SnapshotID: "s", PublishedNodes: []string{"n1", "n2"}}, {}}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	f.sent(t, "ListVolumes", &csi.ListVolumesRequest{MaxEntries: 2, StartingToken: "here"})
	one, err := call.Do(t.Context(), c, call.GetVolumeRequest{ExternalID: "x"})
	if err != nil || !reflect.DeepEqual(one, call.StorageVolume{ExternalID: "x", CloneID: "v", PublishedNodes: []string{"n1"}}) {
		t.Errorf("got %+v, %v", one, err)
	}
	f.sent(t, "ControllerGetVolume", &csi.ControllerGetVolumeRequest{VolumeId: "x"})
}

func TestGetCapacity(t *testing.T) {
	f := newFake(t)
	f.answers(map[string]any{"GetCapacity": &csi.GetCapacityResponse{AvailableCapacity: 5, MaximumVolumeSize: wrapperspb.Int64(0)}})
	c := f.client(t, csiclient.Options{})
	ask := call.CapacityRequest{Capabilities: []call.Capability{fsWriter}, FSType: "xfs", MountFlags: []string{"ro"},
		Parameters: map[string]string{"p": "1"}, Topology: map[string]string{"zone": "a"}}
	got, err := call.Do(t.Context(), c, ask)
	if err != nil || got.Available != 5 || got.Largest == nil || *got.Largest != 0 || got.Smallest != nil {
		t.Errorf("got %+v, %v", got, err)
	}
	want := &csi.GetCapacityRequest{Parameters: map[string]string{"p": "1"}, AccessibleTopology: &csi.Topology{Segments: map[string]string{"zone": "a"}},
		VolumeCapabilities: []*csi.VolumeCapability{sentCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
			&csi.VolumeCapability_MountVolume{FsType: "xfs", MountFlags: []string{"ro"}})}}
	f.sent(t, "GetCapacity", want)

	f = newFake(t)
	f.answers(map[string]any{"GetPluginCapabilities": pluginCaps(csi.PluginCapability_Service_CONTROLLER_SERVICE)})
	if _, err := call.Do(t.Context(), f.client(t, csiclient.Options{}), ask); err != nil {
		t.Error(err)
	}
	want.AccessibleTopology = nil
	f.sent(t, "GetCapacity", want) // contains no topology, because the plugin does not support topology
}

func TestSnapshots(t *testing.T) {
	when := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	there := &csi.Snapshot{SnapshotId: "s", SourceVolumeId: "x", GroupSnapshotId: "g", SizeBytes: 5, CreationTime: timestamppb.New(when), ReadyToUse: true}
	known := call.Snapshot{ID: "s", SourceID: "x", GroupID: "g", Size: 5, Created: when, Ready: true}
	f := newFake(t)
	f.answers(map[string]any{
		"CreateSnapshot": &csi.CreateSnapshotResponse{Snapshot: there},
		"GetSnapshot":    &csi.GetSnapshotResponse{Snapshot: &csi.Snapshot{SnapshotId: "s"}},
		"ListSnapshots":  &csi.ListSnapshotsResponse{NextToken: "more", Entries: []*csi.ListSnapshotsResponse_Entry{{Snapshot: there}, {}}},
	})
	c := f.client(t, csiclient.Options{})
	made, err := call.Do(t.Context(), c, call.SnapshotRequest{Name: "n", SourceID: "x", Parameters: map[string]string{"p": "1"}, Secrets: s3cret})
	if err != nil || made != known {
		t.Errorf("got %+v, %v", made, err)
	}
	f.sent(t, "CreateSnapshot", &csi.CreateSnapshotRequest{Name: "n", SourceVolumeId: "x", Parameters: map[string]string{"p": "1"}, Secrets: sentSecret})
	if bare, err := call.Do(t.Context(), c, call.GetSnapshotRequest{ID: "s", Secrets: s3cret}); err != nil || bare != (call.Snapshot{ID: "s"}) {
		t.Errorf("got %+v, %v", bare, err)
	}
	f.sent(t, "GetSnapshot", &csi.GetSnapshotRequest{SnapshotId: "s", Secrets: sentSecret})
	if err := call.Run(t.Context(), c, call.DeleteSnapshotRequest{ID: "s", Secrets: s3cret}); err != nil {
		t.Error(err)
	}
	f.sent(t, "DeleteSnapshot", &csi.DeleteSnapshotRequest{SnapshotId: "s", Secrets: sentSecret})
	page, err := call.Do(t.Context(), c, call.ListSnapshotsRequest{SourceID: "x", ID: "s", MaxEntries: 3, Token: "here", Secrets: s3cret})
	if err != nil || !reflect.DeepEqual(page, call.SnapshotPage{Next: "more", Entries: []call.Snapshot{known, {}}}) {
		t.Errorf("got %+v, %v", page, err)
	}
	f.sent(t, "ListSnapshots", &csi.ListSnapshotsRequest{SourceVolumeId: "x", SnapshotId: "s", MaxEntries: 3, StartingToken: "here", Secrets: sentSecret})
}

func TestGroupSnapshots(t *testing.T) {
	there := &csi.VolumeGroupSnapshot{GroupSnapshotId: "g", ReadyToUse: true, CreationTime: timestamppb.New(time.Unix(5, 0)), Snapshots: []*csi.Snapshot{{SnapshotId: "s"}, {SnapshotId: "u"}}}
	known := call.GroupSnapshot{ID: "g", Ready: true, Created: time.Unix(5, 0).UTC(), Snapshots: []call.Snapshot{{ID: "s"}, {ID: "u"}}}
	f := newFake(t)
	f.answers(map[string]any{
		"CreateVolumeGroupSnapshot": &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: there},
		"GetVolumeGroupSnapshot":    &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: there},
	})
	c := f.client(t, csiclient.Options{})
	made, err := call.Do(t.Context(), c, call.GroupSnapshotRequest{Name: "n", SourceIDs: []string{"x", "y"}, Parameters: map[string]string{"p": "1"}, Secrets: s3cret})
	if err != nil || !reflect.DeepEqual(made, known) {
		t.Errorf("got %+v, %v", made, err)
	}
	f.sent(t, "CreateVolumeGroupSnapshot", &csi.CreateVolumeGroupSnapshotRequest{Name: "n", SourceVolumeIds: []string{"x", "y"}, Parameters: map[string]string{"p": "1"}, Secrets: sentSecret})
	if got, err := call.Do(t.Context(), c, call.GetGroupSnapshotRequest{ID: "g", SnapshotIDs: []string{"s", "u"}, Secrets: s3cret}); err != nil || !reflect.DeepEqual(got, known) {
		t.Errorf("got %+v, %v", got, err)
	}
	f.sent(t, "GetVolumeGroupSnapshot", &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: "g", SnapshotIds: []string{"s", "u"}, Secrets: sentSecret})
	if err := call.Run(t.Context(), c, call.DeleteGroupSnapshotRequest{ID: "g", SnapshotIDs: []string{"s", "u"}, Secrets: s3cret}); err != nil {
		t.Error(err)
	}
	f.sent(t, "DeleteVolumeGroupSnapshot", &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: "g", SnapshotIds: []string{"s", "u"}, Secrets: sentSecret})
}

// TestNamelessAnswers checks that the client rejects an OK answer without an id. Without the id,
// the agent could never delete the volume, snapshot or group.
func TestNamelessAnswers(t *testing.T) {
	nameless := &csi.VolumeGroupSnapshot{GroupSnapshotId: "g", Snapshots: []*csi.Snapshot{{SnapshotId: "s"}, {}}}
	for name, row := range map[string]struct {
		rpc    string
		answer any
	}{
		"volume":             {"CreateVolume", &csi.CreateVolumeResponse{Volume: &csi.Volume{CapacityBytes: 1}}},
		"snapshot":           {"CreateSnapshot", &csi.CreateSnapshotResponse{Snapshot: &csi.Snapshot{SourceVolumeId: "x"}}},
		"no snapshot":        {"CreateSnapshot", nil},
		"snapshot asked for": {"GetSnapshot", nil},
		"group":              {"CreateVolumeGroupSnapshot", nil},
		"group asked for":    {"GetVolumeGroupSnapshot", nil},
		"member":             {"CreateVolumeGroupSnapshot", &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: nameless}},
		"member asked for":   {"GetVolumeGroupSnapshot", &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: nameless}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.answers(map[string]any{row.rpc: row.answer})
			if got := callError(t, rpcs[row.rpc](t.Context(), f.client(t, csiclient.Options{}), nil)); got.Code != volume.CodeUnverified || got.Step != row.rpc {
				t.Errorf("got %+v", *got)
			}
		})
	}
}
