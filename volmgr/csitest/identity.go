package csitest

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// unknownNumber is the number of a capability that the spec does not define.
const unknownNumber = 987

type identity struct {
	csi.UnimplementedIdentityServer
	p *Plugin
}

func (s *identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: s.p.cfg.DriverName, VendorVersion: s.p.cfg.Version}, nil
}

func (s *identity) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	resp := &csi.GetPluginCapabilitiesResponse{Capabilities: pluginServices(s.p.cfg)}
	if s.p.cfg.UnknownCapabilities {
		resp.Capabilities = append(resp.Capabilities, &csi.PluginCapability{},
			&csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: unknownNumber}}})
	}
	return resp, nil
}

func (s *identity) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}
