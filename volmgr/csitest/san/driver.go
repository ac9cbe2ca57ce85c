package san

import (
	"context"
	"os"
	"path"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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

// nodeServer is the node service of a driver.
type nodeServer struct {
	csi.UnimplementedNodeServer
	*driver
}

// volume describes the volume of a call to the node service.
type volume struct {
	id         string
	attachment string // empty if the driver has no ControllerPublish
	mode       Mode
	block      bool
	readOnly   bool
}

// source returns the source of the volume's mounts in the mount table.
func (v volume) source() string {
	if v.attachment != "" {
		return "san:" + v.attachment
	}
	return "san:" + v.id
}
