package csiclient_test

import (
	"context"
	"net"
	"path"
	"path/filepath"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/volagent/volagent/volmgr/csiclient"
)

// fake is a plugin whose answers come from one function. If the function returns no answer for a
// method, the fake answers with the result of good.
type fake struct {
	socket string
	server *grpc.Server

	mu     sync.Mutex
	answer func(ctx context.Context, method string, req any) (any, error)
	seen   map[string]any // the last request of each method, by the method's name
	calls  map[string]int
}

type services struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer
	csi.UnimplementedGroupControllerServer
}

func newFake(t *testing.T) *fake {
	t.Helper()
	f := &fake{socket: filepath.Join(t.TempDir(), "s"), seen: map[string]any{}, calls: map[string]int{}}
	f.serve(t)
	return f
}

func (f *fake) serve(t *testing.T) {
	t.Helper()
	l, err := net.Listen("unix", f.socket)
	if err != nil {
		t.Fatal(err)
	}
	f.server = grpc.NewServer(grpc.UnaryInterceptor(f.intercept))
	s := &services{}
	csi.RegisterIdentityServer(f.server, s)
	csi.RegisterControllerServer(f.server, s)
	csi.RegisterNodeServer(f.server, s)
	csi.RegisterGroupControllerServer(f.server, s)
	server, done := f.server, make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() { server.Stop(); <-done })
}

func (f *fake) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
	method := path.Base(info.FullMethod)
	f.mu.Lock()
	f.seen[method] = req
	f.calls[method]++
	answer := f.answer
	f.mu.Unlock()
	if answer != nil {
		if resp, err := answer(ctx, method, req); resp != nil || err != nil {
			return resp, err
		}
	}
	return good(method), nil
}

func (f *fake) on(answer func(ctx context.Context, method string, req any) (any, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = answer
}

// fails makes the fake return an error for one method. All other methods succeed.
func (f *fake) fails(method string, err error) {
	f.on(func(_ context.Context, m string, _ any) (any, error) {
		if m == method {
			return nil, err
		}
		return nil, nil
	})
}

func (f *fake) last(method string) any {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen[method]
}

func (f *fake) count(method string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[method]
}

func (f *fake) client(t *testing.T, opts csiclient.Options) *csiclient.Client {
	t.Helper()
	c, err := csiclient.Dial(f.socket, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func controllerCaps(types ...csi.ControllerServiceCapability_RPC_Type) *csi.ControllerGetCapabilitiesResponse {
	resp := &csi.ControllerGetCapabilitiesResponse{}
	for _, t := range types {
		resp.Capabilities = append(resp.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: t}}})
	}
	return resp
}

func nodeCaps(types ...csi.NodeServiceCapability_RPC_Type) *csi.NodeGetCapabilitiesResponse {
	resp := &csi.NodeGetCapabilitiesResponse{}
	for _, t := range types {
		resp.Capabilities = append(resp.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}}})
	}
	return resp
}

func pluginCaps(types ...csi.PluginCapability_Service_Type) *csi.GetPluginCapabilitiesResponse {
	resp := &csi.GetPluginCapabilitiesResponse{}
	for _, t := range types {
		resp.Capabilities = append(resp.Capabilities, &csi.PluginCapability{
			Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: t}}})
	}
	return resp
}

// good returns the answer of a plugin that supports all features.
func good(method string) any {
	switch method {
	case "Probe":
		return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}
	case "GetPluginInfo":
		return &csi.GetPluginInfoResponse{Name: "fake.test", VendorVersion: "1.2"}
	case "GetPluginCapabilities":
		return pluginCaps(csi.PluginCapability_Service_CONTROLLER_SERVICE, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS)
	case "ControllerGetCapabilities":
		return controllerCaps(csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
			csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME, csi.ControllerServiceCapability_RPC_PUBLISH_READONLY,
			csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
	case "NodeGetCapabilities":
		return nodeCaps(csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
			csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
	case "NodeGetInfo":
		return &csi.NodeGetInfoResponse{NodeId: "n1", MaxVolumesPerNode: 7,
			AccessibleTopology: &csi.Topology{Segments: map[string]string{"zone": "a"}}}
	case "CreateVolume":
		return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "x1", CapacityBytes: 5, VolumeContext: map[string]string{"c": "1"},
			AccessibleTopology: []*csi.Topology{{Segments: map[string]string{"zone": "a"}}}}}
	case "ControllerPublishVolume":
		return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"dev": "/dev/x"}}
	case "ControllerUnpublishVolume":
		return &csi.ControllerUnpublishVolumeResponse{}
	case "NodeStageVolume":
		return &csi.NodeStageVolumeResponse{}
	case "NodeUnstageVolume":
		return &csi.NodeUnstageVolumeResponse{}
	case "NodePublishVolume":
		return &csi.NodePublishVolumeResponse{}
	case "NodeUnpublishVolume":
		return &csi.NodeUnpublishVolumeResponse{}
	case "DeleteVolume":
		return &csi.DeleteVolumeResponse{}
	case "NodeGetVolumeStats":
		return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
			{Unit: csi.VolumeUsage_BYTES, Total: 10, Used: 4, Available: 6},
			{Unit: csi.VolumeUsage_INODES, Total: 100, Used: 1, Available: 99},
			{Unit: 77, Total: 1},
		}}
	default:
		return nil
	}
}
