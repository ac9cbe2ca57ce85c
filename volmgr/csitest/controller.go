package csitest

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

type controller struct {
	csi.UnimplementedControllerServer
	p *Plugin
}

func (s *controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	resp := &csi.ControllerGetCapabilitiesResponse{}
	for _, c := range []struct {
		has  bool
		name csi.ControllerServiceCapability_RPC_Type
	}{
		{s.p.cfg.CreateDelete, csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME},
		{s.p.cfg.Attach, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME},
		{s.p.cfg.AttachReadOnly, csi.ControllerServiceCapability_RPC_PUBLISH_READONLY},
		{s.p.cfg.MultiWriter, csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER},
		{s.p.cfg.Lists, csi.ControllerServiceCapability_RPC_LIST_VOLUMES},
		{s.p.cfg.Lists, csi.ControllerServiceCapability_RPC_GET_CAPACITY},
		{s.p.cfg.UnknownCapabilities, unknownNumber},
	} {
		if c.has {
			resp.Capabilities = append(resp.Capabilities, &csi.ControllerServiceCapability{
				Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: c.name}}})
		}
	}
	if s.p.cfg.UnknownCapabilities {
		resp.Capabilities = append(resp.Capabilities, &csi.ControllerServiceCapability{})
	}
	return resp, nil
}

func (s *controller) ListVolumes(context.Context, *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	return &csi.ListVolumesResponse{}, nil
}

func (s *controller) GetCapacity(context.Context, *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	return &csi.GetCapacityResponse{}, nil
}

func (s *controller) CreateVolume(_ context.Context, m *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	id := s.p.newID(m.GetName())
	if id == "" || len(m.GetVolumeCapabilities()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "a volume needs a name and capabilities")
	}
	defer s.p.store.lock(id)()
	v := stored{ID: id}
	found, err := readJSON(s.p.store.path(id, "volume.json"), &v)
	if err != nil {
		return nil, err
	}
	least, most := m.GetCapacityRange().GetRequiredBytes(), m.GetCapacityRange().GetLimitBytes()
	if found && (v.Capacity < least || (most > 0 && v.Capacity > most)) {
		return nil, status.Errorf(codes.AlreadyExists, "volume %q has %d bytes", id, v.Capacity)
	}
	if !found {
		v.Name, v.Context, v.Capacity = m.GetName(), contextOf(m.GetName()), least
		if least == 0 {
			v.Capacity = blockSize
		}
		if most > 0 {
			v.Capacity = min(v.Capacity, most)
		}
		if err := s.p.store.make(v); err != nil {
			return nil, err
		}
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: id, CapacityBytes: v.Capacity, VolumeContext: v.Context}}, nil
}

func (s *controller) DeleteVolume(_ context.Context, m *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if m.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "no volume id is given")
	}
	defer s.p.store.lock(m.GetVolumeId())()
	return &csi.DeleteVolumeResponse{}, s.p.store.remove(m.GetVolumeId())
}

func (s *controller) ControllerPublishVolume(_ context.Context, m *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	defer s.p.store.lock(m.GetVolumeId())()
	if _, err := s.p.store.get(m.GetVolumeId()); err != nil {
		return nil, err
	}
	if m.GetNodeId() == "" || m.GetVolumeCapability() == nil {
		return nil, status.Error(codes.InvalidArgument, "attaching needs a node id and a capability")
	}
	pc, err := s.p.store.attach(m.GetVolumeId(), m.GetNodeId())
	return &csi.ControllerPublishVolumeResponse{PublishContext: pc}, err
}

func (s *controller) ControllerUnpublishVolume(_ context.Context, m *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	if m.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "no volume id is given")
	}
	defer s.p.store.lock(m.GetVolumeId())()
	return &csi.ControllerUnpublishVolumeResponse{}, s.p.store.detach(m.GetVolumeId(), m.GetNodeId())
}

func (s *controller) ValidateVolumeCapabilities(_ context.Context, m *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if len(m.GetVolumeCapabilities()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "no capabilities are given")
	}
	defer s.p.store.lock(m.GetVolumeId())()
	if _, err := s.p.store.get(m.GetVolumeId()); err != nil {
		return nil, err
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: m.GetVolumeContext(), VolumeCapabilities: m.GetVolumeCapabilities(), Parameters: m.GetParameters(),
	}}, nil
}
