package csiclient

import (
	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/volagent/volagent/volmgr/plugin"
)

// These constants are the numbers of the capability VOLUME_CONDITION. CSI 1.13 removed the names,
// but older drivers still report the capability.
const (
	oldControllerCondition csi.ControllerServiceCapability_RPC_Type = 11
	oldNodeCondition       csi.NodeServiceCapability_RPC_Type       = 4
)

// controllerFlag returns the field of Caps that a controller capability sets. It returns nil for a
// capability that the agent does not use.
func controllerFlag(c *plugin.Caps, t csi.ControllerServiceCapability_RPC_Type) *bool {
	return map[csi.ControllerServiceCapability_RPC_Type]*bool{
		csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME:     &c.Attach,
		csi.ControllerServiceCapability_RPC_PUBLISH_READONLY:             &c.AttachReadOnly,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME:         &c.CreateDelete,
		csi.ControllerServiceCapability_RPC_CLONE_VOLUME:                 &c.Clone,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME:                &c.Expand,
		csi.ControllerServiceCapability_RPC_MODIFY_VOLUME:                &c.Modify,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES:                 &c.List,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES: &c.PublishedNodes,
		csi.ControllerServiceCapability_RPC_GET_VOLUME:                   &c.Get,
		csi.ControllerServiceCapability_RPC_GET_CAPACITY:                 &c.Capacity,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT:       &c.Snapshot,
		csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS:               &c.ListSnapshots,
		csi.ControllerServiceCapability_RPC_GET_SNAPSHOT:                 &c.GetSnapshot,
		csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH:            &c.Health,
		csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH:           &c.ListHealth,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER:     &c.ControllerMultiWriter,
		oldControllerCondition:                                           &c.Condition,
	}[t]
}

// nodeFlag returns the field of Caps that a node capability sets, or nil for a capability that the
// agent does not use.
func nodeFlag(c *plugin.Caps, t csi.NodeServiceCapability_RPC_Type) *bool {
	return map[csi.NodeServiceCapability_RPC_Type]*bool{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME:     &c.Stage,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS:         &c.Stats,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME:            &c.NodeExpand,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER: &c.NodeMultiWriter,
		csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP:       &c.MountGroup,
		csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH:        &c.NodeHealth,
		csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH:       &c.StorageHealth,
		oldNodeCondition: &c.NodeCondition,
	}[t]
}
