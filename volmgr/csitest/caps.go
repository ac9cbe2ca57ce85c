package csitest

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// These constants are the numbers that VOLUME_CONDITION had before CSI 1.13 removed it.
const (
	controllerCondition csi.ControllerServiceCapability_RPC_Type = 11
	nodeCondition       csi.NodeServiceCapability_RPC_Type       = 4
)

func (s *controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	resp, cfg := &csi.ControllerGetCapabilitiesResponse{}, s.p.cfg
	for _, c := range []struct {
		has  bool
		name csi.ControllerServiceCapability_RPC_Type
	}{
		{cfg.CreateDelete, csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME},
		{cfg.Attach, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME},
		{cfg.AttachReadOnly, csi.ControllerServiceCapability_RPC_PUBLISH_READONLY},
		{cfg.MultiWriter, csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER},
		{cfg.Lists, csi.ControllerServiceCapability_RPC_LIST_VOLUMES},
		{cfg.Lists, csi.ControllerServiceCapability_RPC_GET_CAPACITY},
		{cfg.PublishedNodes, csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES},
		{cfg.Get, csi.ControllerServiceCapability_RPC_GET_VOLUME},
		{cfg.Clone, csi.ControllerServiceCapability_RPC_CLONE_VOLUME},
		{cfg.Modify, csi.ControllerServiceCapability_RPC_MODIFY_VOLUME},
		{cfg.Expand, csi.ControllerServiceCapability_RPC_EXPAND_VOLUME},
		{cfg.Snapshot, csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT},
		{cfg.ListSnapshots, csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS},
		{cfg.GetSnapshot, csi.ControllerServiceCapability_RPC_GET_SNAPSHOT},
		{cfg.Health, csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH},
		{cfg.ListHealth, csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH},
		{cfg.Condition, controllerCondition},
		{cfg.UnknownCapabilities, unknownNumber},
	} {
		if c.has {
			resp.Capabilities = append(resp.Capabilities, &csi.ControllerServiceCapability{
				Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: c.name}}})
		}
	}

	if cfg.UnknownCapabilities {
		resp.Capabilities = append(resp.Capabilities, &csi.ControllerServiceCapability{})
	}

	return resp, nil
}

func (s *node) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	resp, cfg := &csi.NodeGetCapabilitiesResponse{}, s.p.cfg
	for _, c := range []struct {
		has  bool
		name csi.NodeServiceCapability_RPC_Type
	}{
		{cfg.Stage, csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME},
		{cfg.Stats, csi.NodeServiceCapability_RPC_GET_VOLUME_STATS},
		{cfg.MultiWriter, csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER},
		{cfg.NodeExpand, csi.NodeServiceCapability_RPC_EXPAND_VOLUME},
		{cfg.MountGroup, csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP},
		{cfg.NodeHealth, csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH},
		{cfg.StorageHealth, csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH},
		{cfg.Condition, nodeCondition},
		{cfg.UnknownCapabilities, unknownNumber},
	} {
		if c.has {
			resp.Capabilities = append(resp.Capabilities, &csi.NodeServiceCapability{
				Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: c.name}}})
		}
	}

	if cfg.UnknownCapabilities {
		resp.Capabilities = append(resp.Capabilities, &csi.NodeServiceCapability{})
	}

	return resp, nil
}

func (s *group) GroupControllerGetCapabilities(context.Context, *csi.GroupControllerGetCapabilitiesRequest) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	return &csi.GroupControllerGetCapabilitiesResponse{Capabilities: []*csi.GroupControllerServiceCapability{{
		Type: &csi.GroupControllerServiceCapability_Rpc{Rpc: &csi.GroupControllerServiceCapability_RPC{
			Type: csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT}}}}}, nil
}

// pluginServices returns the capabilities of the plugin as a whole.
func pluginServices(cfg Config) []*csi.PluginCapability {
	var all []*csi.PluginCapability
	for _, c := range []struct {
		has  bool
		name csi.PluginCapability_Service_Type
	}{
		{!cfg.NoController, csi.PluginCapability_Service_CONTROLLER_SERVICE},
		{cfg.Topology != nil, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS},
		{groups(cfg), csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE},
	} {
		if c.has {
			all = append(all, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: c.name}}})
		}
	}

	if cfg.Expand || cfg.NodeExpand {
		how := csi.PluginCapability_VolumeExpansion_ONLINE
		if cfg.Offline {
			how = csi.PluginCapability_VolumeExpansion_OFFLINE
		}

		all = append(all, &csi.PluginCapability{Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: how}}})
	}

	return all
}
