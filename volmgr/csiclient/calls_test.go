package csiclient_test

import (
	"context"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/volagent/volagent/volmgr/csiclient"
	"github.com/volagent/volagent/volmgr/volume"
)

var fsWriter = volume.Capability{Access: volume.SingleNodeWriter, Attachment: volume.FileSystem}

// rpcs contains every call of the client that concerns volumes or snapshots.
var rpcs = map[string]func(context.Context, *csiclient.Client, volume.Secrets) error{
	"ControllerPublishVolume": func(ctx context.Context, c *csiclient.Client, s volume.Secrets) error {
		_, err := c.ControllerPublish(ctx, volume.ControllerPublishRequest{ExternalID: "x", NodeID: "n", Capability: fsWriter, Secrets: s})
		return err
	},
	"ControllerUnpublishVolume": func(ctx context.Context, c *csiclient.Client, s volume.Secrets) error {
		return c.ControllerUnpublish(ctx, volume.ControllerUnpublishRequest{ExternalID: "x", NodeID: "n", Secrets: s})
	},
	"NodeStageVolume": func(ctx context.Context, c *csiclient.Client, s volume.Secrets) error {
		return c.NodeStage(ctx, volume.NodeStageRequest{ExternalID: "x", StagingPath: "/s", Capability: fsWriter, Secrets: s})
	},
	"NodePublishVolume": func(ctx context.Context, c *csiclient.Client, s volume.Secrets) error {
		return c.NodePublish(ctx, volume.NodePublishRequest{ExternalID: "x", TargetPath: "/t", Capability: fsWriter, Secrets: s})
	},
	"NodeUnpublishVolume": func(ctx context.Context, c *csiclient.Client, _ volume.Secrets) error {
		return c.NodeUnpublish(ctx, volume.NodeUnpublishRequest{ExternalID: "x", TargetPath: "/t"})
	},
	"NodeUnstageVolume": func(ctx context.Context, c *csiclient.Client, _ volume.Secrets) error {
		return c.NodeUnstage(ctx, volume.NodeUnstageRequest{ExternalID: "x", StagingPath: "/s"})
	},
	"CreateVolume": func(ctx context.Context, c *csiclient.Client, s volume.Secrets) error {
		_, err := c.CreateVolume(ctx, volume.CreateVolumeRequest{Name: "x", Capabilities: []volume.Capability{fsWriter}, Secrets: s})
		return err
	},
	"DeleteVolume": func(ctx context.Context, c *csiclient.Client, s volume.Secrets) error {
		return c.DeleteVolume(ctx, volume.DeleteVolumeRequest{ExternalID: "x", Secrets: s})
	},
	"ValidateVolumeCapabilities": func(ctx context.Context, c *csiclient.Client, s volume.Secrets) error {
		return c.ValidateCapabilities(ctx, volume.ValidateRequest{ExternalID: "x", Capabilities: []volume.Capability{fsWriter}, Secrets: s})
	},
	"NodeGetVolumeStats": func(ctx context.Context, c *csiclient.Client, _ volume.Secrets) error {
		_, err := c.NodeStats(ctx, volume.StatsRequest{ExternalID: "x", Path: "/t"})
		return err
	},
	"ControllerExpandVolume": func(ctx context.Context, c *csiclient.Client, s volume.Secrets) error {
		_, err := c.ControllerExpand(ctx, volume.ExpandRequest{ExternalID: "x", CapacityMin: 1, Capability: fsWriter, Secrets: s})
		return err
	},
	"NodeExpandVolume": func(ctx context.Context, c *csiclient.Client, s volume.Secrets) error {
		_, err := c.NodeExpand(ctx, volume.NodeExpandRequest{ExternalID: "x", Path: "/t", Capability: fsWriter, Secrets: s})
		return err
	},
	"ControllerModifyVolume": func(ctx context.Context, c *csiclient.Client, s volume.Secrets) error {
		return c.ControllerModify(ctx, volume.ModifyRequest{ExternalID: "x", Mutable: map[string]string{"iops": "1"}, Secrets: s})
	},
	"ListVolumes": func(ctx context.Context, c *csiclient.Client, _ volume.Secrets) error {
		_, err := c.ListVolumes(ctx, volume.ListVolumesRequest{})
		return err
	},
	"ControllerGetVolume": func(ctx context.Context, c *csiclient.Client, _ volume.Secrets) error {
		_, err := c.ControllerGetVolume(ctx, "x")
		return err
	},
	"GetCapacity": func(ctx context.Context, c *csiclient.Client, _ volume.Secrets) error {
		_, err := c.GetCapacity(ctx, volume.CapacityRequest{})
		return err
	},
	"CreateSnapshot": func(ctx context.Context, c *csiclient.Client, s volume.Secrets) error {
		_, err := c.CreateSnapshot(ctx, volume.SnapshotRequest{Name: "s", SourceID: "x", Secrets: s})
		return err
	},
	"DeleteSnapshot": func(ctx context.Context, c *csiclient.Client, s volume.Secrets) error {
		return c.DeleteSnapshot(ctx, volume.SnapshotRef{ID: "s", Secrets: s})
	},
	"GetSnapshot": func(ctx context.Context, c *csiclient.Client, s volume.Secrets) error {
		_, err := c.GetSnapshot(ctx, volume.SnapshotRef{ID: "s", Secrets: s})
		return err
	},
	"ListSnapshots": func(ctx context.Context, c *csiclient.Client, s volume.Secrets) error {
		_, err := c.ListSnapshots(ctx, volume.ListSnapshotsRequest{Secrets: s})
		return err
	},
	"CreateVolumeGroupSnapshot": func(ctx context.Context, c *csiclient.Client, s volume.Secrets) error {
		_, err := c.CreateGroupSnapshot(ctx, volume.GroupSnapshotRequest{Name: "g", SourceIDs: []string{"x"}, Secrets: s})
		return err
	},
	"DeleteVolumeGroupSnapshot": func(ctx context.Context, c *csiclient.Client, s volume.Secrets) error {
		return c.DeleteGroupSnapshot(ctx, volume.GroupSnapshotRef{ID: "g", SnapshotIDs: []string{"s"}, Secrets: s})
	},
	"GetVolumeGroupSnapshot": func(ctx context.Context, c *csiclient.Client, s volume.Secrets) error {
		_, err := c.GetGroupSnapshot(ctx, volume.GroupSnapshotRef{ID: "g", SnapshotIDs: []string{"s"}, Secrets: s})
		return err
	},
	"NodeGetVolumeHealth": func(ctx context.Context, c *csiclient.Client, _ volume.Secrets) error {
		_, err := c.NodeHealth(ctx, volume.HealthRequest{ExternalID: "x"})
		return err
	},
	"NodeGetStorageHealth": func(ctx context.Context, c *csiclient.Client, s volume.Secrets) error {
		_, err := c.StorageHealth(ctx, s)
		return err
	},
	"ControllerGetVolumeHealth": func(ctx context.Context, c *csiclient.Client, s volume.Secrets) error {
		_, err := c.ControllerHealth(ctx, volume.HealthRequest{ExternalID: "x", Secrets: s})
		return err
	},
	"ControllerListVolumeHealth": func(ctx context.Context, c *csiclient.Client, s volume.Secrets) error {
		_, err := c.ListHealth(ctx, volume.ListHealthRequest{Secrets: s})
		return err
	},
}

// about lists the calls with which Info and Probe ask a plugin about itself.
var about = []string{"GetPluginInfo", "GetPluginCapabilities", "Probe", "ControllerGetCapabilities", "GroupControllerGetCapabilities",
	"NodeGetCapabilities", "NodeGetInfo"}

// TestEveryCallIsTabled checks that the tables above contain every call of the spec's services.
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

// TestSecretsOfEachCall checks that a call sends the given secrets if its message has a field for
// them, and sends no secrets otherwise.
func TestSecretsOfEachCall(t *testing.T) {
	f := newFake(t)
	c := f.client(t, csiclient.Options{})
	for rpc, call := range rpcs {
		_ = call(t.Context(), c, volume.Secrets{"k": volume.NewSecret("s3cret")}) // the client may reject the empty answer
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
