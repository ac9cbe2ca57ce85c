package csiclient_test

import (
	"context"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/csiclient"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestAnswersBeyondLimits checks that the client rejects an answer with values that are longer than
// CSI allows. Later calls would have to send these values back to the plugin.
func TestAnswersBeyondLimits(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n) }
	f := newFake(t)
	f.on(func(_ context.Context, method string, _ any) (any, error) {
		switch method {
		case "CreateVolume":
			return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: long(1025)}}, nil
		case "ControllerPublishVolume":
			return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"k": long(4096)}}, nil
		}
		return nil, nil
	})
	c := f.client(t, csiclient.Options{})
	_, err := call.Do(t.Context(), c, call.CreateVolumeRequest{Name: "data"})
	if ce := callError(t, err); ce.Code != volume.CodeUnverified || !ce.Final() || !ce.Uncertain() || !strings.Contains(ce.Message, "its id has 1025 bytes; at most 1024 are allowed") {
		t.Errorf("create: %+v", *ce)
	}
	_, err = call.Do(t.Context(), c, call.ControllerPublishRequest{ExternalID: "a", NodeID: "n"})
	if ce := callError(t, err); ce.Code != volume.CodeUnverified || !strings.Contains(ce.Message, "its publish_context has 4097 bytes; CSI allows 4096") {
		t.Errorf("publish: %+v", *ce)
	}

	f.on(func(_ context.Context, method string, _ any) (any, error) {
		if method == "NodeGetInfo" {
			return &csi.NodeGetInfoResponse{NodeId: long(257)}, nil
		}
		return nil, nil
	})
	_, err = f.client(t, csiclient.Options{}).Info(t.Context())
	if ce := callError(t, err); ce.Step != "NodeGetInfo" || !strings.Contains(ce.Message, "its node id has 257 bytes; at most 256 are allowed") {
		t.Errorf("node: %+v", *ce)
	}
}
