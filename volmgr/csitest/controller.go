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

func (s *controller) ControllerUnpublishVolume(ctx context.Context, m *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	if m.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "no volume id is given")
	}
	defer s.p.store.lock(m.GetVolumeId())()
	return &csi.ControllerUnpublishVolumeResponse{}, s.p.detach(optionsOf(ctx).call)
}

// detach disconnects the storage from a node, and detaches the loop device.
func (p *Plugin) detach(c Call) error {
	p.notInUse(c)
	if err := p.store.release(c.Volume); err != nil {
		return err
	}
	return p.store.detach(c.Volume, c.NodeID)
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
