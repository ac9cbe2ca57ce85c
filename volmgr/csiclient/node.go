package csiclient

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/volagent/volagent/volmgr/call"
)

// NodeStage mounts a volume at its staging path.
func (c nodeCalls) NodeStage(ctx context.Context, r call.NodeStageRequest) error {
	k, err := c.caps(ctx)
	if err != nil {
		return err
	}

	_, err = invoke(ctx, c.Client, call.NodeStage, r.Secrets, c.node.NodeStageVolume, &csi.NodeStageVolumeRequest{
		VolumeId:          r.ExternalID,
		PublishContext:    c.publishContext(k, r.PublishContext),
		StagingTargetPath: r.StagingPath,
		VolumeCapability:  capability(r.Capability, r.FSType, r.MountFlags, mountGroup(k, r.MountGroup), k.info.Caps.NodeMultiWriter),
		Secrets:           reveal(r.Secrets),
		VolumeContext:     r.VolumeContext,
	})

	return err
}

// NodeUnstage unmounts a volume from its staging path.
func (c nodeCalls) NodeUnstage(ctx context.Context, r call.NodeUnstageRequest) error {
	_, err := invoke(ctx, c.Client, call.NodeUnstage, nil, c.node.NodeUnstageVolume, &csi.NodeUnstageVolumeRequest{
		VolumeId:          r.ExternalID,
		StagingTargetPath: r.StagingPath,
	})
	return err
}

// NodePublish mounts a volume at an alloc's target path.
func (c nodeCalls) NodePublish(ctx context.Context, r call.NodePublishRequest) error {
	k, err := c.caps(ctx)
	if err != nil {
		return err
	}

	_, err = invoke(ctx, c.Client, call.NodePublish, r.Secrets, c.node.NodePublishVolume, &csi.NodePublishVolumeRequest{
		VolumeId:          r.ExternalID,
		PublishContext:    c.publishContext(k, r.PublishContext),
		StagingTargetPath: r.StagingPath,
		TargetPath:        r.TargetPath,
		VolumeCapability:  capability(r.Capability, r.FSType, r.MountFlags, mountGroup(k, r.MountGroup), k.info.Caps.NodeMultiWriter),
		Readonly:          r.ReadOnly,
		Secrets:           reveal(r.Secrets),
		VolumeContext:     r.VolumeContext,
	})

	return err
}

// NodeUnpublish unmounts a volume from an alloc's target path.
func (c nodeCalls) NodeUnpublish(ctx context.Context, r call.NodeUnpublishRequest) error {
	_, err := invoke(ctx, c.Client, call.NodeUnpublish, nil, c.node.NodeUnpublishVolume, &csi.NodeUnpublishVolumeRequest{
		VolumeId:   r.ExternalID,
		TargetPath: r.TargetPath,
	})
	return err
}

// NodeStats asks the plugin how much of a volume is used.
func (c nodeCalls) NodeStats(ctx context.Context, r call.StatsRequest) (call.Stats, error) {
	resp, err := invoke(ctx, c.Client, call.NodeStats, nil, c.node.NodeGetVolumeStats, &csi.NodeGetVolumeStatsRequest{
		VolumeId:          r.ExternalID,
		VolumePath:        r.Path,
		StagingTargetPath: r.StagingPath,
	})

	var stats call.Stats
	for _, u := range resp.GetUsage() {
		usage := &call.Usage{Total: u.GetTotal(), Used: u.GetUsed(), Available: u.GetAvailable()}
		switch u.GetUnit() {
		case csi.VolumeUsage_BYTES:
			stats.Bytes = usage
		case csi.VolumeUsage_INODES:
			stats.Inodes = usage
		default: // a later CSI version may define other units
		}
	}

	stats.Condition = c.condition(resp)
	return stats, err
}

// NodeExpand enlarges a volume's file system or device on this host to the size of its storage. It
// returns the new size in bytes, or 0 if the plugin does not report it.
func (c nodeCalls) NodeExpand(ctx context.Context, r call.NodeExpandRequest) (int64, error) {
	k, err := c.caps(ctx)
	if err != nil {
		return 0, err
	}

	resp, err := invoke(ctx, c.Client, call.NodeExpand, r.Secrets, c.node.NodeExpandVolume, &csi.NodeExpandVolumeRequest{
		VolumeId:          r.ExternalID,
		VolumePath:        r.Path,
		StagingTargetPath: r.StagingPath,
		CapacityRange:     capacityRange(r.CapacityMin, r.CapacityMax),
		VolumeCapability:  capability(r.Capability, r.FSType, r.MountFlags, "", k.info.Caps.NodeMultiWriter),
		Secrets:           reveal(r.Secrets),
	})

	return resp.GetCapacityBytes(), err
}

// mountGroup returns the group if the plugin has the capability VOLUME_MOUNT_GROUP. For other
// plugins it returns an empty string, because the spec forbids them the field.
func mountGroup(k *known, group string) string {
	if !k.info.Caps.MountGroup {
		return ""
	}
	return group
}

// publishContext returns the publish context for a node call, or nil if the plugin has no
// ControllerPublishVolume (CSI spec, NodeStageVolume and NodePublishVolume). A node part does not
// report whether its controllers have ControllerPublishVolume. For a node part, publishContext
// always returns the context, because the context is empty if no such call was made.
func (c *Client) publishContext(k *known, pc map[string]string) map[string]string {
	if !k.info.Caps.Attach && c.opts.Services != NodeOnly {
		return nil
	}
	return pc
}
