package localdriver

import (
	"context"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// GetPluginInfo answers with the driver's name and version.
func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: DriverName, VendorVersion: d.opts.Version}, nil
}

// GetPluginCapabilities offers the controller service; there is no topology on one host.
func (d *driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{{
		Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{
			Type: csi.PluginCapability_Service_CONTROLLER_SERVICE,
		}},
	}}}, nil
}

// Probe fails when the state directory is gone: no call could do its work then.
func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	if _, err := os.Stat(d.store.path(dirVolumes)); err != nil {
		return nil, preconditionf("cannot use the state directory: %v", err)
	}
	return &csi.ProbeResponse{}, nil
}
