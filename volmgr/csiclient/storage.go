package csiclient

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/volagent/volagent/volmgr/call"
)

// ControllerExpand enlarges the storage of a volume.
func (c controllerCalls) ControllerExpand(ctx context.Context, r call.ExpandRequest) (call.ExpandResult, error) {
	k, err := c.caps(ctx)
	if err != nil {
		return call.ExpandResult{}, err
	}

	resp, err := invoke(ctx, c.Client, call.ControllerExpand, r.Secrets, c.controller.ControllerExpandVolume,
		&csi.ControllerExpandVolumeRequest{
			VolumeId:         r.ExternalID,
			CapacityRange:    capacityRange(r.CapacityMin, r.CapacityMax),
			VolumeCapability: capability(r.Capability, r.FSType, r.MountFlags, "", k.info.Caps.ControllerMultiWriter),
			Secrets:          reveal(r.Secrets),
		})
	return call.ExpandResult{Capacity: resp.GetCapacityBytes(), NodeRequired: resp.GetNodeExpansionRequired()}, err
}

// ControllerModify changes a volume's mutable parameters.
func (c controllerCalls) ControllerModify(ctx context.Context, r call.ModifyRequest) error {
	_, err := invoke(ctx, c.Client, call.ControllerModify, r.Secrets, c.controller.ControllerModifyVolume,
		&csi.ControllerModifyVolumeRequest{VolumeId: r.ExternalID, MutableParameters: r.Mutable, Secrets: reveal(r.Secrets)})
	return err
}

// ListVolumes returns one page of the plugin's volumes.
func (c controllerCalls) ListVolumes(ctx context.Context, r call.ListVolumesRequest) (call.VolumePage, error) {
	resp, err := invoke(ctx, c.Client, call.ListVolumes, nil, c.controller.ListVolumes,
		&csi.ListVolumesRequest{MaxEntries: r.MaxEntries, StartingToken: r.Token})
	page := call.VolumePage{Next: resp.GetNextToken()}
	for _, e := range resp.GetEntries() {
		v := stored(e.GetVolume())
		v.PublishedNodes, v.Condition = e.GetStatus().GetPublishedNodeIds(), c.condition(e.GetStatus())
		page.Entries = append(page.Entries, v)
	}

	return page, err
}

// ControllerGetVolume asks the plugin for one volume. The CSI call has no field for secrets.
func (c controllerCalls) ControllerGetVolume(ctx context.Context, r call.GetVolumeRequest) (call.StorageVolume, error) {
	resp, err := invoke(ctx, c.Client, call.ControllerGetVolume, nil, c.controller.ControllerGetVolume,
		&csi.ControllerGetVolumeRequest{VolumeId: r.ExternalID})
	if err != nil {
		return call.StorageVolume{}, err
	}

	v := stored(resp.GetVolume())
	v.PublishedNodes, v.Condition = resp.GetStatus().GetPublishedNodeIds(), c.condition(resp.GetStatus())
	return v, nil
}

func stored(v *csi.Volume) call.StorageVolume {
	return call.StorageVolume{
		ExternalID: v.GetVolumeId(),
		Capacity:   v.GetCapacityBytes(),
		Context:    v.GetVolumeContext(),
		Topologies: segments(v.GetAccessibleTopology()),
		SnapshotID: v.GetContentSource().GetSnapshot().GetSnapshotId(),
		CloneID:    v.GetContentSource().GetVolume().GetVolumeId(),
	}
}

// GetCapacity asks the plugin how much storage it can still create.
func (c controllerCalls) GetCapacity(ctx context.Context, r call.CapacityRequest) (call.CapacityResult, error) {
	k, err := c.caps(ctx)
	if err != nil {
		return call.CapacityResult{}, err
	}

	req := &csi.GetCapacityRequest{
		VolumeCapabilities: capabilities(r.Capabilities, r.FSType, r.MountFlags, k.info.Caps.ControllerMultiWriter),
		Parameters:         r.Parameters,
	}
	if len(r.Topology) > 0 && k.info.Caps.Topology {
		req.AccessibleTopology = &csi.Topology{Segments: r.Topology}
	}
	resp, err := invoke(ctx, c.Client, call.GetCapacity, nil, c.controller.GetCapacity, req)
	return call.CapacityResult{
		Available: resp.GetAvailableCapacity(),
		Largest:   optional(resp.GetMaximumVolumeSize()),
		Smallest:  optional(resp.GetMinimumVolumeSize()),
	}, err
}

func optional(v *wrapperspb.Int64Value) *int64 {
	if v == nil {
		return nil
	}
	return new(v.GetValue())
}
