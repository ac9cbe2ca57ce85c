package csiclient_test

import (
	"context"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/csiclient"
)

var fsWriter = call.Capability{Access: call.SingleNodeWriter, Attachment: call.FileSystem}

// rpcs contains every call that the client makes about volumes or snapshots, by its CSI name.
var rpcs = map[string]func(context.Context, *csiclient.Client, call.Secrets) error{
	"ControllerPublishVolume": func(ctx context.Context, c *csiclient.Client, s call.Secrets) error {
		_, err := call.Do(ctx, c, call.ControllerPublishRequest{ExternalID: "x", NodeID: "n", Capability: fsWriter, Secrets: s})
		return err
	},
	"ControllerUnpublishVolume": func(ctx context.Context, c *csiclient.Client, s call.Secrets) error {
		return call.Run(ctx, c, call.ControllerUnpublishRequest{ExternalID: "x", NodeID: "n", Secrets: s})
	},
	"NodeStageVolume": func(ctx context.Context, c *csiclient.Client, s call.Secrets) error {
		return call.Run(ctx, c, call.NodeStageRequest{ExternalID: "x", StagingPath: "/s", Capability: fsWriter, Secrets: s})
	},
	"NodePublishVolume": func(ctx context.Context, c *csiclient.Client, s call.Secrets) error {
		return call.Run(ctx, c, call.NodePublishRequest{ExternalID: "x", TargetPath: "/t", Capability: fsWriter, Secrets: s})
	},
	"NodeUnpublishVolume": func(ctx context.Context, c *csiclient.Client, _ call.Secrets) error {
		return call.Run(ctx, c, call.NodeUnpublishRequest{ExternalID: "x", TargetPath: "/t"})
	},
	"NodeUnstageVolume": func(ctx context.Context, c *csiclient.Client, _ call.Secrets) error {
		return call.Run(ctx, c, call.NodeUnstageRequest{ExternalID: "x", StagingPath: "/s"})
	},
	"CreateVolume": func(ctx context.Context, c *csiclient.Client, s call.Secrets) error {
		_, err := call.Do(ctx, c, call.CreateVolumeRequest{Name: "x", Capabilities: []call.Capability{fsWriter}, Secrets: s})
		return err
	},
	"DeleteVolume": func(ctx context.Context, c *csiclient.Client, s call.Secrets) error {
		return call.Run(ctx, c, call.DeleteVolumeRequest{ExternalID: "x", Secrets: s})
	},
	"ValidateVolumeCapabilities": func(ctx context.Context, c *csiclient.Client, s call.Secrets) error {
		return call.Run(ctx, c, call.ValidateRequest{ExternalID: "x", Capabilities: []call.Capability{fsWriter}, Secrets: s})
	},
	"NodeGetVolumeStats": func(ctx context.Context, c *csiclient.Client, _ call.Secrets) error {
		_, err := call.Do(ctx, c, call.StatsRequest{ExternalID: "x", Path: "/t"})
		return err
	},
	"ControllerExpandVolume": func(ctx context.Context, c *csiclient.Client, s call.Secrets) error {
		_, err := call.Do(ctx, c, call.ExpandRequest{ExternalID: "x", CapacityMin: 1, Capability: fsWriter, Secrets: s})
		return err
	},
	"NodeExpandVolume": func(ctx context.Context, c *csiclient.Client, s call.Secrets) error {
		_, err := call.Do(ctx, c, call.NodeExpandRequest{ExternalID: "x", Path: "/t", Capability: fsWriter, Secrets: s})
		return err
	},
	"ControllerModifyVolume": func(ctx context.Context, c *csiclient.Client, s call.Secrets) error {
		return call.Run(ctx, c, call.ModifyRequest{ExternalID: "x", Mutable: map[string]string{"iops": "1"}, Secrets: s})
	},
	"ListVolumes": func(ctx context.Context, c *csiclient.Client, _ call.Secrets) error {
		_, err := call.Do(ctx, c, call.ListVolumesRequest{})
		return err
	},
	"ControllerGetVolume": func(ctx context.Context, c *csiclient.Client, _ call.Secrets) error {
		_, err := call.Do(ctx, c, call.GetVolumeRequest{ExternalID: "x"})
		return err
	},
	"GetCapacity": func(ctx context.Context, c *csiclient.Client, _ call.Secrets) error {
		_, err := call.Do(ctx, c, call.CapacityRequest{})
		return err
	},
	"CreateSnapshot": func(ctx context.Context, c *csiclient.Client, s call.Secrets) error {
		_, err := call.Do(ctx, c, call.SnapshotRequest{Name: "s", SourceID: "x", Secrets: s})
		return err
	},
	"DeleteSnapshot": func(ctx context.Context, c *csiclient.Client, s call.Secrets) error {
		return call.Run(ctx, c, call.DeleteSnapshotRequest{ID: "s", Secrets: s})
	},
	"GetSnapshot": func(ctx context.Context, c *csiclient.Client, s call.Secrets) error {
		_, err := call.Do(ctx, c, call.GetSnapshotRequest{ID: "s", Secrets: s})
		return err
	},
	"ListSnapshots": func(ctx context.Context, c *csiclient.Client, s call.Secrets) error {
		_, err := call.Do(ctx, c, call.ListSnapshotsRequest{Secrets: s})
		return err
	},
	"CreateVolumeGroupSnapshot": func(ctx context.Context, c *csiclient.Client, s call.Secrets) error {
		_, err := call.Do(ctx, c, call.GroupSnapshotRequest{Name: "g", SourceIDs: []string{"x"}, Secrets: s})
		return err
	},
	"DeleteVolumeGroupSnapshot": func(ctx context.Context, c *csiclient.Client, s call.Secrets) error {
		return call.Run(ctx, c, call.DeleteGroupSnapshotRequest{ID: "g", SnapshotIDs: []string{"s"}, Secrets: s})
	},
	"GetVolumeGroupSnapshot": func(ctx context.Context, c *csiclient.Client, s call.Secrets) error {
		_, err := call.Do(ctx, c, call.GetGroupSnapshotRequest{ID: "g", SnapshotIDs: []string{"s"}, Secrets: s})
		return err
	},
	"NodeGetVolumeHealth": func(ctx context.Context, c *csiclient.Client, _ call.Secrets) error {
		_, err := call.Do(ctx, c, call.NodeHealthRequest{ExternalID: "x"})
		return err
	},
	"NodeGetStorageHealth": func(ctx context.Context, c *csiclient.Client, s call.Secrets) error {
		_, err := call.Do(ctx, c, call.StorageHealthRequest{Secrets: s})
		return err
	},
	"ControllerGetVolumeHealth": func(ctx context.Context, c *csiclient.Client, s call.Secrets) error {
		_, err := call.Do(ctx, c, call.ControllerHealthRequest{ExternalID: "x", Secrets: s})
		return err
	},
	"ControllerListVolumeHealth": func(ctx context.Context, c *csiclient.Client, s call.Secrets) error {
		_, err := call.Do(ctx, c, call.ListHealthRequest{Secrets: s})
		return err
	},
}

// about lists the calls by which Info and Probe ask a plugin about its own properties.
var about = []string{"GetPluginInfo", "GetPluginCapabilities", "Probe", "ControllerGetCapabilities", "GroupControllerGetCapabilities",
	"NodeGetCapabilities", "NodeGetInfo"}

// TestEveryCallIsTabled checks that the two tables rpcs and about contain every call of the spec's
// services.
func TestEveryCallIsTabled(t *testing.T) {
	n := 0
	for _, service := range []grpc.ServiceDesc{csi.Identity_ServiceDesc, csi.Controller_ServiceDesc, csi.GroupController_ServiceDesc, csi.Node_ServiceDesc} {
		for _, m := range service.Methods {
			n++
			if rpcs[m.MethodName] == nil && !slices.Contains(about, m.MethodName) {
				t.Errorf("%s is not in the table", m.MethodName)
			}
		}
	}
	if n != len(rpcs)+len(about) {
		t.Errorf("the spec has %d calls, the tables %d", n, len(rpcs)+len(about))
	}
}

// TestSecretsOfEachCall checks that a call sends the given secrets if its CSI message has a field
// for secrets. All other calls must send no secrets.
func TestSecretsOfEachCall(t *testing.T) {
	f := newFake(t)
	c := f.client(t, csiclient.Options{})
	for rpc, made := range rpcs {
		_ = made(t.Context(), c, call.Secrets{"k": call.NewSecret("s3cret")}) // an error is ignored, because the client may reject the fake's empty answer
		req, ok := f.last(rpc).(proto.Message)
		if !ok {
			t.Errorf("%s was not sent", rpc)
			continue
		}
		field := req.ProtoReflect().Descriptor().Fields().ByName("secrets")
		m, _ := f.last(rpc).(interface{ GetSecrets() map[string]string })
		switch {
		case (field != nil) != (m != nil):
			t.Errorf("%s: the field is %v", rpc, field)
		case field != nil && m.GetSecrets()["k"] != "s3cret":
			t.Errorf("%s has no secrets", rpc)
		}
	}
}
