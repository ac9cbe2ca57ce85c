package call

import "slices"

// Kind names a CSI call.
type Kind string

// The CSI calls.
const (
	ControllerPublish   Kind = "ControllerPublishVolume"
	NodeStage           Kind = "NodeStageVolume"
	NodePublish         Kind = "NodePublishVolume"
	NodeUnpublish       Kind = "NodeUnpublishVolume"
	NodeUnstage         Kind = "NodeUnstageVolume"
	ControllerUnpublish Kind = "ControllerUnpublishVolume"

	CreateVolume         Kind = "CreateVolume"
	DeleteVolume         Kind = "DeleteVolume"
	ControllerExpand     Kind = "ControllerExpandVolume"
	NodeExpand           Kind = "NodeExpandVolume"
	ControllerModify     Kind = "ControllerModifyVolume"
	ControllerGetVolume  Kind = "ControllerGetVolume"
	ListVolumes          Kind = "ListVolumes"
	GetCapacity          Kind = "GetCapacity"
	ValidateCapabilities Kind = "ValidateVolumeCapabilities"
	CreateSnapshot       Kind = "CreateSnapshot"
	DeleteSnapshot       Kind = "DeleteSnapshot"
	ListSnapshots        Kind = "ListSnapshots"
	GetSnapshot          Kind = "GetSnapshot"
	CreateGroupSnapshot  Kind = "CreateVolumeGroupSnapshot"
	DeleteGroupSnapshot  Kind = "DeleteVolumeGroupSnapshot"
	GetGroupSnapshot     Kind = "GetVolumeGroupSnapshot"
	NodeStats            Kind = "NodeGetVolumeStats"
	NodeHealth           Kind = "NodeGetVolumeHealth"
	NodeStorageHealth    Kind = "NodeGetStorageHealth"
	ControllerHealth     Kind = "ControllerGetVolumeHealth"
	ListHealth           Kind = "ControllerListVolumeHealth"
)

// controllers are the calls to the controller service. All other calls are to the node service.
var controllers = []Kind{
	ControllerPublish, ControllerUnpublish, CreateVolume, DeleteVolume, ControllerExpand, ControllerModify, ControllerGetVolume, ListVolumes,
	GetCapacity, ValidateCapabilities, CreateSnapshot, DeleteSnapshot, ListSnapshots, GetSnapshot, CreateGroupSnapshot, DeleteGroupSnapshot,
	GetGroupSnapshot, ControllerHealth, ListHealth,
}

// Controller reports whether the step is a call to the controller service. All other calls are to
// the node service.
func (k Kind) Controller() bool { return slices.Contains(controllers, k) }
