// Package call declares the CSI calls of the agent: their names and properties, their requests and
// answers, and the capabilities and secrets in them. Packages that need calls and the client that
// sends them share these types. Without this package, they would have to import each other.
package call

import (
	"maps"
	"slices"
)

// Method is the name of a CSI call, or of a step of the agent itself.
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

// Service is the CSI service that answers a method.
type Service string

// These are the services whose calls concern volumes. Group snapshots have their own service in
// CSI, but the controller part of a plugin serves it.
const (
	Node       Service = "node"
	Controller Service = "controller"
)

// properties holds the facts about a method on which decisions depend.
type properties struct {
	service Service

	// late is set if the call changes storage or mounts. Such a call may still take effect after
	// its deadline.
	late bool
}

var methods = map[Method]properties{
	ControllerPublish:    {Controller, true},
	ControllerUnpublish:  {Controller, true},
	ControllerExpand:     {Controller, true},
	ControllerModify:     {Controller, true},
	CreateVolume:         {Controller, true},
	DeleteVolume:         {Controller, true},
	CreateSnapshot:       {Controller, true},
	DeleteSnapshot:       {Controller, true},
	CreateGroupSnapshot:  {Controller, true},
	DeleteGroupSnapshot:  {Controller, true},
	ControllerGetVolume:  {Controller, false},
	ListVolumes:          {Controller, false},
	GetCapacity:          {Controller, false},
	ValidateCapabilities: {Controller, false},
	ListSnapshots:        {Controller, false},
	GetSnapshot:          {Controller, false},
	GetGroupSnapshot:     {Controller, false},
	ControllerHealth:     {Controller, false},
	ListHealth:           {Controller, false},

	NodeStage:         {Node, true},
	NodeUnstage:       {Node, true},
	NodePublish:       {Node, true},
	NodeUnpublish:     {Node, true},
	NodeExpand:        {Node, true},
	NodeStats:         {Node, false},
	NodeHealth:        {Node, false},
	NodeStorageHealth: {Node, false},
}

// Methods returns all methods, in alphabetical order.
func Methods() []Method { return slices.Sorted(maps.Keys(methods)) }

// Service returns the service that answers the method. For an unknown method, it returns Node.
func (k Method) Service() Service {
	if p, ok := methods[k]; ok {
		return p.service
	}
	return Node
}

// MayFinishLate reports whether the call may still take effect after its deadline.
func (k Method) MayFinishLate() bool { return methods[k].late }
