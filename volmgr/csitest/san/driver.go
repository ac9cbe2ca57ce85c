package san

import (
	"context"
	"os"
	"path"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// driver is the CSI plugin of one host. It keeps no state, so it can be killed at any time.
type driver struct {
	csi.UnimplementedIdentityServer
	cfg Config
}

// ask sends a request to the SAN.
func (d *driver) ask(ctx context.Context, r request, file *os.File) (answer, error) {
	r.Node = d.cfg.Node
	return ask(ctx, d.cfg.Socket, r, file)
}

// hello describes the node to the SAN. A driver without a node service is not a node.
func (d *driver) hello(ctx context.Context) error {
	if d.cfg.ControllerOnly {
		return nil
	}
	_, err := d.ask(ctx, request{Op: opHello, Info: node{Limit: d.cfg.MaxVolumes, Topology: d.cfg.Topology}}, nil)
	return err
}

// announced contains the calls to the node that the driver announces to the SAN.
var announced = map[string]bool{
	"NodeStageVolume": true, "NodeUnstageVolume": true, "NodePublishVolume": true, "NodeUnpublishVolume": true, "NodeExpandVolume": true,
}

// intercept announces a call to the node, and waits for the faults that the SAN applies.
func (d *driver) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	method := path.Base(info.FullMethod)
	if !announced[method] {
		return handle(ctx, req)
	}

	a, err := d.ask(ctx, request{Op: opEnter, Method: method, Volume: req.(interface{ GetVolumeId() string }).GetVolumeId()}, nil)
	if err != nil {
		return nil, err
	}

	resp, err := handle(ctx, req)
	return resp, lost(a, err)
}

// lost returns the error of a call whose answer the driver must discard.
func lost(a answer, err error) error {
	if a.Lose {
		return status.Error(codes.Unavailable, "the test lost the answer")
	}
	return err
}

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.cfg.DriverName, VendorVersion: "1.0.0"}, nil
}

func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

func (d *driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	resp := &csi.GetPluginCapabilitiesResponse{}
	service := func(has bool, t csi.PluginCapability_Service_Type) {
		if has {
			resp.Capabilities = append(resp.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: t}}})
		}
	}
	service(!d.cfg.NodeOnly, csi.PluginCapability_Service_CONTROLLER_SERVICE)
	service(d.cfg.Topology != nil, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS)

	if d.cfg.Expand {
		resp.Capabilities = append(resp.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_VolumeExpansion_{
			VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: csi.PluginCapability_VolumeExpansion_ONLINE}}})
	}

	return resp, nil
}

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
