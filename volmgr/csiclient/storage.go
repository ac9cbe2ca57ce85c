package csiclient

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/volagent/volagent/volmgr/volume"
)

// ControllerExpand enlarges the storage of a volume.
func (c *Client) ControllerExpand(ctx context.Context, r volume.ExpandRequest) (volume.ExpandResult, error) {
	k, err := c.caps(ctx)
	if err != nil {
		return volume.ExpandResult{}, err
	}

	resp, err := invoke(ctx, c, volume.ControllerExpand, c.opts.ControllerTimeout, r.Secrets, c.controller.ControllerExpandVolume,
		&csi.ControllerExpandVolumeRequest{
			VolumeId:         r.ExternalID,
			CapacityRange:    capacityRange(r.CapacityMin, r.CapacityMax),
			VolumeCapability: capability(r.Capability, r.FSType, r.MountFlags, "", k.info.Caps.ControllerMultiWriter),
			Secrets:          reveal(r.Secrets),
		})
	return volume.ExpandResult{Capacity: resp.GetCapacityBytes(), NodeRequired: resp.GetNodeExpansionRequired()}, err
}

// ControllerModify changes a volume's mutable parameters.
func (c *Client) ControllerModify(ctx context.Context, r volume.ModifyRequest) error {
	_, err := invoke(ctx, c, volume.ControllerModify, c.opts.ControllerTimeout, r.Secrets, c.controller.ControllerModifyVolume,
		&csi.ControllerModifyVolumeRequest{VolumeId: r.ExternalID, MutableParameters: r.Mutable, Secrets: reveal(r.Secrets)})
	return err
}

// ListVolumes returns one page of the plugin's volumes.
func (c *Client) ListVolumes(ctx context.Context, r volume.ListVolumesRequest) (volume.VolumePage, error) {
	resp, err := invoke(ctx, c, volume.ListVolumes, c.opts.ControllerTimeout, nil, c.controller.ListVolumes,
		&csi.ListVolumesRequest{MaxEntries: r.MaxEntries, StartingToken: r.Token})
	page := volume.VolumePage{Next: resp.GetNextToken()}
	for _, e := range resp.GetEntries() {
		v := stored(e.GetVolume())
		v.PublishedNodes, v.Condition = e.GetStatus().GetPublishedNodeIds(), c.condition(e.GetStatus())
		page.Entries = append(page.Entries, v)
	}

	return page, err
}

// ControllerGetVolume asks the plugin for one volume. The CSI call has no field for secrets.
func (c *Client) ControllerGetVolume(ctx context.Context, externalID string) (volume.StorageVolume, error) {
	resp, err := invoke(ctx, c, volume.ControllerGetVolume, c.opts.ControllerTimeout, nil, c.controller.ControllerGetVolume,
		&csi.ControllerGetVolumeRequest{VolumeId: externalID})
	if err != nil {
		return volume.StorageVolume{}, err
	}

	v := stored(resp.GetVolume())
	v.PublishedNodes, v.Condition = resp.GetStatus().GetPublishedNodeIds(), c.condition(resp.GetStatus())
	return v, nil
}

func stored(v *csi.Volume) volume.StorageVolume {
	return volume.StorageVolume{
		ExternalID: v.GetVolumeId(),
		Capacity:   v.GetCapacityBytes(),
		Context:    v.GetVolumeContext(),
		Topologies: segments(v.GetAccessibleTopology()),
		SnapshotID: v.GetContentSource().GetSnapshot().GetSnapshotId(),
		CloneID:    v.GetContentSource().GetVolume().GetVolumeId(),
	}
}

// GetCapacity asks the plugin how much storage it can still create.
func (c *Client) GetCapacity(ctx context.Context, r volume.CapacityRequest) (volume.CapacityResult, error) {
	k, err := c.caps(ctx)
	if err != nil {
		return volume.CapacityResult{}, err
	}

	req := &csi.GetCapacityRequest{
		VolumeCapabilities: capabilities(r.Capabilities, r.FSType, r.MountFlags, k.info.Caps.ControllerMultiWriter),
		Parameters:         r.Parameters,
	}
	if len(r.Topology) > 0 && k.info.Caps.Topology {
		req.AccessibleTopology = &csi.Topology{Segments: r.Topology}
	}
	resp, err := invoke(ctx, c, volume.GetCapacity, c.opts.ControllerTimeout, nil, c.controller.GetCapacity, req)
	return volume.CapacityResult{
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
