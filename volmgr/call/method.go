// Package call declares the CSI calls of the agent: their names and properties, their requests and
// answers, and the capabilities and secrets in them. The domain and the CSI client share these
// types. Without this package, they would have to import each other.
package call

// Method is the name of a CSI call, or of a step that the agent does itself.
type Method string

// These are the CSI calls that the agent can make.
const (
	ControllerPublish   Method = "ControllerPublishVolume"
	NodeStage           Method = "NodeStageVolume"
	NodePublish         Method = "NodePublishVolume"
	NodeUnpublish       Method = "NodeUnpublishVolume"
	NodeUnstage         Method = "NodeUnstageVolume"
	ControllerUnpublish Method = "ControllerUnpublishVolume"

	CreateVolume         Method = "CreateVolume"
	DeleteVolume         Method = "DeleteVolume"
	ControllerExpand     Method = "ControllerExpandVolume"
	NodeExpand           Method = "NodeExpandVolume"
	ControllerModify     Method = "ControllerModifyVolume"
	ControllerGetVolume  Method = "ControllerGetVolume"
	ListVolumes          Method = "ListVolumes"
	GetCapacity          Method = "GetCapacity"
	ValidateCapabilities Method = "ValidateVolumeCapabilities"
	CreateSnapshot       Method = "CreateSnapshot"
	DeleteSnapshot       Method = "DeleteSnapshot"
	ListSnapshots        Method = "ListSnapshots"
	GetSnapshot          Method = "GetSnapshot"
	CreateGroupSnapshot  Method = "CreateVolumeGroupSnapshot"
	DeleteGroupSnapshot  Method = "DeleteVolumeGroupSnapshot"
	GetGroupSnapshot     Method = "GetVolumeGroupSnapshot"
	NodeStats            Method = "NodeGetVolumeStats"
	NodeHealth           Method = "NodeGetVolumeHealth"
	NodeStorageHealth    Method = "NodeGetStorageHealth"
	ControllerHealth     Method = "ControllerGetVolumeHealth"
	ListHealth           Method = "ControllerListVolumeHealth"
)

// Service is the CSI service that answers a call.
type Service string

// These services have the calls about volumes and snapshots. Group snapshots have their own service
// in CSI, but the controller part of a plugin also serves that service.
const (
	Node       Service = "node"
	Controller Service = "controller"
)
