package san

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// proxy passes the calls to the controller on to the SAN.
type proxy struct {
	csi.UnimplementedControllerServer
	*driver
}

// pass passes on a call and fills in its answer.
func pass[T proto.Message](ctx context.Context, d *driver, method string, req proto.Message, resp T) (T, error) {
	var none T
	raw, err := proto.Marshal(req)
	if err != nil {
		return none, err
	}

	a, err := d.ask(ctx, request{Op: opCall, Method: method, Body: raw}, nil)
	if err := lost(a, err); err != nil {
		return none, err
	}

	return resp, proto.Unmarshal(a.Body, resp)
}

func (p *proxy) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	resp, cfg := &csi.ControllerGetCapabilitiesResponse{}, p.cfg
	lists := cfg.Provision || cfg.PublishedNodes
	for _, c := range []struct {
		has  bool
		name csi.ControllerServiceCapability_RPC_Type
	}{
		{cfg.Provision, csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME},
		{cfg.Attach, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME},
		{cfg.Attach, csi.ControllerServiceCapability_RPC_PUBLISH_READONLY},
		{lists, csi.ControllerServiceCapability_RPC_LIST_VOLUMES},
		{lists, csi.ControllerServiceCapability_RPC_GET_VOLUME},
		{cfg.PublishedNodes, csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES},
		{cfg.Expand, csi.ControllerServiceCapability_RPC_EXPAND_VOLUME},
		{cfg.Snapshots, csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT},
		{cfg.Snapshots, csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS},
		{cfg.MultiWriter, csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER},
	} {
		if c.has {
			resp.Capabilities = append(resp.Capabilities, &csi.ControllerServiceCapability{
				Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: c.name}}})
		}
	}

	return resp, nil
}

// check refuses access modes for several nodes if the driver supports only one node.
func (p *proxy) check(all ...*csi.VolumeCapability) error {
	for _, one := range all {
		if mode := one.GetAccessMode().GetMode(); p.cfg.SingleNode && !singleNode(mode) {
			return status.Errorf(codes.InvalidArgument, "the storage does not support %s", mode)
		}
	}
	return nil
}

func (p *proxy) CreateVolume(ctx context.Context, m *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if err := p.check(m.GetVolumeCapabilities()...); err != nil {
		return nil, err
	}
	return pass(ctx, p.driver, "CreateVolume", m, &csi.CreateVolumeResponse{})
}

func (p *proxy) DeleteVolume(ctx context.Context, m *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	return pass(ctx, p.driver, "DeleteVolume", m, &csi.DeleteVolumeResponse{})
}

func (p *proxy) ControllerPublishVolume(ctx context.Context, m *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	if err := p.check(m.GetVolumeCapability()); err != nil {
		return nil, err
	}
	return pass(ctx, p.driver, "ControllerPublishVolume", m, &csi.ControllerPublishVolumeResponse{})
}

func (p *proxy) ControllerUnpublishVolume(ctx context.Context, m *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	return pass(ctx, p.driver, "ControllerUnpublishVolume", m, &csi.ControllerUnpublishVolumeResponse{})
}

func (p *proxy) ValidateVolumeCapabilities(ctx context.Context, m *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if err := p.check(m.GetVolumeCapabilities()...); err != nil {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: status.Convert(err).Message()}, nil
	}
	return pass(ctx, p.driver, "ValidateVolumeCapabilities", m, &csi.ValidateVolumeCapabilitiesResponse{})
}

func (p *proxy) ListVolumes(ctx context.Context, m *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	resp, err := pass(ctx, p.driver, "ListVolumes", m, &csi.ListVolumesResponse{})
	if err == nil && !p.cfg.PublishedNodes {
		for _, e := range resp.GetEntries() {
			e.Status = nil
		}
	}
	return resp, err
}

func (p *proxy) ControllerGetVolume(ctx context.Context, m *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	resp, err := pass(ctx, p.driver, "ControllerGetVolume", m, &csi.ControllerGetVolumeResponse{})
	if err == nil && !p.cfg.PublishedNodes {
		resp.Status = &csi.ControllerGetVolumeResponse_VolumeStatus{}
	}
	return resp, err
}

func (p *proxy) ControllerExpandVolume(ctx context.Context, m *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	return pass(ctx, p.driver, "ControllerExpandVolume", m, &csi.ControllerExpandVolumeResponse{})
}

func (p *proxy) CreateSnapshot(ctx context.Context, m *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	return pass(ctx, p.driver, "CreateSnapshot", m, &csi.CreateSnapshotResponse{})
}

func (p *proxy) DeleteSnapshot(ctx context.Context, m *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	return pass(ctx, p.driver, "DeleteSnapshot", m, &csi.DeleteSnapshotResponse{})
}

func (p *proxy) ListSnapshots(ctx context.Context, m *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	return pass(ctx, p.driver, "ListSnapshots", m, &csi.ListSnapshotsResponse{})
}
