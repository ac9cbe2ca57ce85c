package csitest

import "github.com/container-storage-interface/spec/lib/go/csi"

// emptyAnswer is the OK answer of a call that did nothing. Where the answer
// names what was made, it names what would have been.
func emptyAnswer(c Call) any {
	switch c.Method {
	case CreateVolume:
		return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: c.Volume, VolumeContext: contextOf(c.Name)}}
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
		return nil
	}
}

// contextOf is the volume context of a created volume.
func contextOf(name string) map[string]string { return map[string]string{"csitest/name": name} }

// given is the context in an answer that must be passed on; nil in most.
func given(resp any) map[string]string {
	switch m := resp.(type) {
	case *csi.ControllerPublishVolumeResponse:
		return m.GetPublishContext()
	case *csi.CreateVolumeResponse:
		return m.GetVolume().GetVolumeContext()
	default:
		return nil
	}
}
