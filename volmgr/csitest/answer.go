package csitest

import (
	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// emptyAnswer returns the OK answer of a call that did nothing. If the call creates an object, the
// answer contains the id that the object would have had.
func emptyAnswer(c Call) any {
	switch c.Method {
	case CreateVolume:
		return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: c.Volume, CapacityBytes: c.Least, VolumeContext: contextOf(c.Name)}}
	case DeleteVolume:
		return &csi.DeleteVolumeResponse{}
	case ControllerPublish:
		return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"csitest/device": "/dev/csitest/none", "csitest/node": c.NodeID}}
	case ControllerUnpublish:
		return &csi.ControllerUnpublishVolumeResponse{}
	case ValidateCapabilities:
		return &csi.ValidateVolumeCapabilitiesResponse{}
	case NodeStage:
		return &csi.NodeStageVolumeResponse{}
	case NodeUnstage:
		return &csi.NodeUnstageVolumeResponse{}
	case NodePublish:
		return &csi.NodePublishVolumeResponse{}
	case NodeUnpublish:
		return &csi.NodeUnpublishVolumeResponse{}
	case NodeStats:
		return &csi.NodeGetVolumeStatsResponse{}
	case NodeInfo:
		return &csi.NodeGetInfoResponse{}
	case ListVolumes:
		return &csi.ListVolumesResponse{}
	case GetCapacity:
		return &csi.GetCapacityResponse{}
	case Probe:
		return &csi.ProbeResponse{}
	case pluginInfo:
		return &csi.GetPluginInfoResponse{}
	case pluginCapabilities:
		return &csi.GetPluginCapabilitiesResponse{}
	case controllerAbilities:
		return &csi.ControllerGetCapabilitiesResponse{}
	case nodeAbilities:
		return &csi.NodeGetCapabilitiesResponse{}
	default:
		return emptyMore(c)
	}
}

// contextOf returns the volume context in the answer of CreateVolume.
func contextOf(name string) map[string]string { return map[string]string{"csitest/name": name} }

// emptyMore returns the same as emptyAnswer for the calls that do not mount or unmount a volume.
func emptyMore(c Call) any {
	switch c.Method {
	case ControllerExpand:
		return &csi.ControllerExpandVolumeResponse{CapacityBytes: c.Least}
	case NodeExpand:
		return &csi.NodeExpandVolumeResponse{CapacityBytes: c.Least}
	case ControllerModify:
		return &csi.ControllerModifyVolumeResponse{}
	case ControllerGetVolume:
		return &csi.ControllerGetVolumeResponse{Volume: &csi.Volume{VolumeId: c.Volume}}
	case CreateSnapshot:
		return &csi.CreateSnapshotResponse{Snapshot: &csi.Snapshot{SnapshotId: c.Snapshot, SourceVolumeId: c.Volume, CreationTime: timestamppb.Now()}}
	case DeleteSnapshot:
		return &csi.DeleteSnapshotResponse{}
	case GetSnapshot:
		return &csi.GetSnapshotResponse{Snapshot: &csi.Snapshot{SnapshotId: c.Snapshot, CreationTime: timestamppb.Now()}}
	case ListSnapshots:
		return &csi.ListSnapshotsResponse{}
	case groupAbilities:
		return &csi.GroupControllerGetCapabilitiesResponse{}
	case CreateGroupSnapshot:
		return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: &csi.VolumeGroupSnapshot{GroupSnapshotId: c.Group, CreationTime: timestamppb.Now()}}
	case DeleteGroupSnapshot:
		return &csi.DeleteVolumeGroupSnapshotResponse{}
	case GetGroupSnapshot:
		return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: &csi.VolumeGroupSnapshot{GroupSnapshotId: c.Group, CreationTime: timestamppb.Now()}}
	case NodeHealth:
		return &csi.NodeGetVolumeHealthResponse{VolumeHealth: &csi.VolumeHealth{VolumeId: c.Volume}}
	case NodeStorageHealth:
		return &csi.NodeGetStorageHealthResponse{}
	case ControllerHealth:
		return &csi.ControllerGetVolumeHealthResponse{VolumeHealth: &csi.VolumeHealth{VolumeId: c.Volume}}
	case ListHealth:
		return &csi.ControllerListVolumeHealthResponse{}
	default:
		return nil
	}
}

// told stores in a Result the data that the caller learns from an answer.
func (r *Result) told(resp any) {
	if m, ok := resp.(interface{ GetNextToken() string }); ok {
		r.Next = m.GetNextToken()
	}
	if m, ok := resp.(interface{ GetCapacityBytes() int64 }); ok {
		r.Capacity = m.GetCapacityBytes()
	}

	for _, one := range snapshotsIn(resp) {
		if r.Snapshots == nil {
			r.Snapshots = map[string]bool{}
		}

		r.Snapshots[one.GetSnapshotId()] = one.GetReadyToUse()
	}

	switch m := resp.(type) {
	case *csi.ControllerPublishVolumeResponse:
		r.Given = m.GetPublishContext()
	case *csi.CreateVolumeResponse:
		r.Given, r.Capacity = m.GetVolume().GetVolumeContext(), m.GetVolume().GetCapacityBytes()
	case *csi.ControllerExpandVolumeResponse:
		r.NodeRequired = m.GetNodeExpansionRequired()
	}
}
