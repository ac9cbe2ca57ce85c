package csiclient

import (
	"cmp"
	"context"
	"errors"
	"maps"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// ControllerPublish connects a volume to a node. It returns the publish context, which the node
// calls need.
func (c controllerCalls) ControllerPublish(ctx context.Context, r call.ControllerPublishRequest) (map[string]string, error) {
	k, err := c.caps(ctx)
	if err != nil {
		return nil, err
	}

	resp, err := invoke(ctx, c.Client, call.ControllerPublish, r.Secrets, c.controller.ControllerPublishVolume,
		&csi.ControllerPublishVolumeRequest{
			VolumeId:         r.ExternalID,
			NodeId:           r.NodeID,
			VolumeCapability: capability(r.Capability, r.FSType, r.MountFlags, mountGroup(k, r.MountGroup), k.info.Caps.ControllerMultiWriter),
			Readonly:         r.ReadOnly && k.info.Caps.AttachReadOnly,
			Secrets:          reveal(r.Secrets),
			VolumeContext:    r.VolumeContext,
		})
	var ce *volume.CallError
	if errors.As(err, &ce) && ce.Code == codes.ResourceExhausted.String() {
		c.opts.Exhausted()
	}
	if err != nil {
		return nil, err
	}
	if bad := volume.TooLarge("publish_context", resp.GetPublishContext()); bad != "" {
		return nil, refused(call.ControllerPublish, volume.CodeUnverified, volume.RetryBackoff, "the agent cannot use the plugin's answer: "+bad)
	}
	return resp.GetPublishContext(), nil
}

// ControllerUnpublish disconnects a volume from a node.
func (c controllerCalls) ControllerUnpublish(ctx context.Context, r call.ControllerUnpublishRequest) error {
	_, err := invoke(ctx, c.Client, call.ControllerUnpublish, r.Secrets, c.controller.ControllerUnpublishVolume,
		&csi.ControllerUnpublishVolumeRequest{VolumeId: r.ExternalID, NodeId: r.NodeID, Secrets: reveal(r.Secrets)})
	return err
}

// CreateVolume creates the storage of a volume. If an earlier call with the same name has created
// the storage, CreateVolume returns that storage.
func (c controllerCalls) CreateVolume(ctx context.Context, r call.CreateVolumeRequest) (call.CreateVolumeResult, error) {
	k, err := c.caps(ctx)
	if err != nil {
		return call.CreateVolumeResult{}, err
	}

	req := &csi.CreateVolumeRequest{
		Name:               r.Name,
		VolumeCapabilities: capabilities(r.Capabilities, r.FSType, r.MountFlags, k.info.Caps.ControllerMultiWriter),
		CapacityRange:      capacityRange(r.CapacityMin, r.CapacityMax),
		Parameters:         r.Parameters,
		Secrets:            reveal(r.Secrets),
	}

	if len(r.Mutable) > 0 {
		if !k.info.Caps.Modify {
			return call.CreateVolumeResult{}, refused(call.CreateVolume, codes.InvalidArgument.String(), volume.RetryChange,
				"the plugin cannot honour mutable_parameters: it lacks MODIFY_VOLUME")
		}
		req.MutableParameters = r.Mutable
	}

	switch {
	case r.SnapshotID != "":
		req.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: r.SnapshotID}}}
	case r.CloneID != "":
		req.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
			Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: r.CloneID}}}
	}

	if r.Topology.Given() {
		if !k.info.Caps.Topology {
			// The spec forbids topology requirements in a request to this plugin. Without them, the
			// plugin might create the volume in an unwanted location.
			return call.CreateVolumeResult{}, refused(call.CreateVolume, codes.InvalidArgument.String(), volume.RetryChange,
				"the plugin cannot honour a topology_request: it lacks VOLUME_ACCESSIBILITY_CONSTRAINTS")
		}

		req.AccessibilityRequirements = &csi.TopologyRequirement{
			Requisite: topologies(r.Topology.Required), Preferred: topologies(r.Topology.Preferred)}
	}

	resp, err := invoke(ctx, c.Client, call.CreateVolume, r.Secrets, c.controller.CreateVolume, req)
	if err != nil {
		return call.CreateVolumeResult{}, err
	}

	made := resp.GetVolume()
	if made.GetVolumeId() == "" {
		return call.CreateVolumeResult{}, refused(call.CreateVolume, volume.CodeUnverified, volume.RetryBackoff,
			"the plugin answered OK without a volume id")
	}
	if bad := cmp.Or(volume.TooLong("id", made.GetVolumeId(), volume.MaxHandle), volume.TooLarge("context", made.GetVolumeContext())); bad != "" {
		return call.CreateVolumeResult{}, refused(call.CreateVolume, volume.CodeUnverified, volume.RetryNever,
			"the plugin created a volume that the agent cannot use and that now exists on the storage: "+bad)
	}
	return call.CreateVolumeResult{
		ExternalID: made.GetVolumeId(),
		Capacity:   made.GetCapacityBytes(),
		Context:    made.GetVolumeContext(),
		Topologies: segments(made.GetAccessibleTopology()),
	}, nil
}

// DeleteVolume destroys the storage of a volume.
func (c controllerCalls) DeleteVolume(ctx context.Context, r call.DeleteVolumeRequest) error {
	_, err := invoke(ctx, c.Client, call.DeleteVolume, r.Secrets, c.controller.DeleteVolume,
		&csi.DeleteVolumeRequest{VolumeId: r.ExternalID, Secrets: reveal(r.Secrets)})
	return err
}

// ValidateCapabilities asks the plugin whether a volume supports all of the given capabilities. It
// returns an error unless the plugin confirms all of them. An old plugin may return success
// although it does not understand some fields. The client therefore compares the confirmed fields
// with the request (CSI spec, ValidateVolumeCapabilities).
func (c controllerCalls) ValidateCapabilities(ctx context.Context, r call.ValidateRequest) error {
	k, err := c.caps(ctx)
	if err != nil {
		return err
	}

	req := &csi.ValidateVolumeCapabilitiesRequest{
		VolumeId:           r.ExternalID,
		VolumeContext:      r.VolumeContext,
		VolumeCapabilities: capabilities(r.Capabilities, r.FSType, r.MountFlags, k.info.Caps.ControllerMultiWriter),
		Parameters:         r.Parameters,
		Secrets:            reveal(r.Secrets),
	}

	resp, err := invoke(ctx, c.Client, call.ValidateCapabilities, r.Secrets, c.controller.ValidateVolumeCapabilities, req)
	if err != nil {
		return err
	}
	if why := unconfirmed(req, resp.GetConfirmed()); why != "" {
		if resp.GetMessage() != "" {
			why += ": " + c.words(resp.GetMessage())
		}
		return refused(call.ValidateCapabilities, volume.CodeUnverified, volume.RetryChange, why)
	}

	return nil
}

// unconfirmed describes the first field of the request that the answer does not confirm. It returns
// an empty string if the answer confirms all fields.
func unconfirmed(asked *csi.ValidateVolumeCapabilitiesRequest, got *csi.ValidateVolumeCapabilitiesResponse_Confirmed) string {
	if got == nil {
		return "the plugin does not confirm the capabilities"
	}

	for _, want := range asked.GetVolumeCapabilities() {
		found := false
		for _, have := range got.GetVolumeCapabilities() {
			found = found || proto.Equal(want, have)
		}

		if !found {
			return "the plugin does not confirm " + want.GetAccessMode().GetMode().String()
		}
	}

	// A plugin may omit both maps from its answer.
	if len(got.GetVolumeContext()) > 0 && !maps.Equal(got.GetVolumeContext(), asked.GetVolumeContext()) {
		return "the plugin confirms another volume context than the requested one"
	}
	if len(got.GetParameters()) > 0 && !maps.Equal(got.GetParameters(), asked.GetParameters()) {
		return "the plugin confirms other parameters than the requested ones"
	}
	return ""
}
