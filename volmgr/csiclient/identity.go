package csiclient

import (
	"cmp"
	"context"
	"errors"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// Probe asks whether the plugin is ready. If the answer contains no state, or if the plugin does
// not implement the call, Probe reports ready.
func (c *Client) Probe(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, c.opts.ProbeTimeout)
	defer cancel()

	resp, err := send(ctx, c, stepProbe, c.identity.Probe, &csi.ProbeRequest{})

	switch {
	case isUnimplemented(err):
		return true, nil
	case err != nil:
		return false, err
	default:
		return resp.GetReady() == nil || resp.GetReady().GetValue(), nil
	}
}

// Info asks the plugin for its identity and capabilities. It caches the answer for the calls that
// depend on the capabilities. A plugin may lack the controller service or the node service. Info
// does not set plugin.Info.ID.
func (c *Client) Info(ctx context.Context) (plugin.Info, error) {
	k := &known{}
	err := c.askIdentity(ctx, k)
	if err == nil && k.info.HasController {
		err = c.askController(ctx, k)
	}
	if err == nil && k.groups {
		err = c.askGroups(ctx, k)
	}
	if !k.info.HasController { // both capabilities apply only to controller calls
		k.info.Caps.Topology, k.info.Caps.Offline = false, false
	}
	if err == nil && c.opts.Services != ControllerOnly {
		err = c.askNode(ctx, k)
	}
	if err != nil {
		return plugin.Info{}, err
	}

	c.known.Store(k)
	return k.info, nil
}

// caps returns the plugin's capabilities. If they are not in the cache, caps calls Info.
func (c *Client) caps(ctx context.Context) (*known, error) {
	if k := c.known.Load(); k != nil {
		return k, nil
	}
	if _, err := c.Info(ctx); err != nil {
		return nil, err
	}
	return c.known.Load(), nil
}

func (c *Client) askIdentity(ctx context.Context, k *known) error {
	name, err := ask(ctx, c, stepGetPluginInfo, c.identity.GetPluginInfo, &csi.GetPluginInfoRequest{})
	if err != nil {
		return err
	}
	if name.GetName() == "" {
		return refused(stepGetPluginInfo, volume.CodeUnverified, volume.RetryBackoff, "the plugin answered without a driver name")
	}

	k.info.Driver, k.info.Version = name.GetName(), name.GetVendorVersion()

	caps, err := ask(ctx, c, stepGetPluginCapabilities, c.identity.GetPluginCapabilities, &csi.GetPluginCapabilitiesRequest{})
	if isUnimplemented(err) {
		return nil
	}

	for _, one := range caps.GetCapabilities() {
		switch one.GetService().GetType() {
		case csi.PluginCapability_Service_CONTROLLER_SERVICE:
			k.info.HasController = c.opts.Services != NodeOnly
		case csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS:
			k.info.Caps.Topology = true
		case csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE:
			k.groups = c.opts.Services != NodeOnly
		default: // the agent does not use the other capabilities
		}

		if one.GetVolumeExpansion().GetType() == csi.PluginCapability_VolumeExpansion_OFFLINE {
			k.info.Caps.Offline = true
		}
	}

	return err
}

func (c *Client) askController(ctx context.Context, k *known) error {
	resp, err := ask(ctx, c, stepControllerGetCapabilities, c.controller.ControllerGetCapabilities, &csi.ControllerGetCapabilitiesRequest{})
	if isUnimplemented(err) {
		// Some plugins use one binary for both services. If such a binary runs only as the node
		// part, it still reports a controller service, which this process does not serve.
		k.info.HasController = false
		return nil
	}

	for _, one := range resp.GetCapabilities() {
		if one.GetRpc() == nil {
			continue
		}

		t := one.GetRpc().GetType()
		k.info.ControllerCaps = append(k.info.ControllerCaps, capName(int32(t), csi.ControllerServiceCapability_RPC_Type_name, int32(oldControllerCondition)))
		if flag := controllerFlag(&k.info.Caps, t); flag != nil {
			*flag = true
		}
	}

	return err
}

func (c *Client) askNode(ctx context.Context, k *known) error {
	caps, err := ask(ctx, c, stepNodeGetCapabilities, c.node.NodeGetCapabilities, &csi.NodeGetCapabilitiesRequest{})
	if isUnimplemented(err) {
		return nil
	}
	if err != nil {
		return err
	}

	k.info.HasNode = true
	for _, one := range caps.GetCapabilities() {
		if one.GetRpc() == nil {
			continue
		}

		t := one.GetRpc().GetType()
		k.info.NodeCaps = append(k.info.NodeCaps, capName(int32(t), csi.NodeServiceCapability_RPC_Type_name, int32(oldNodeCondition)))
		if flag := nodeFlag(&k.info.Caps, t); flag != nil {
			*flag = true
		}
	}

	return c.askNodeInfo(ctx, k)
}

func (c *Client) askNodeInfo(ctx context.Context, k *known) error {
	info, err := ask(ctx, c, stepNodeGetInfo, c.node.NodeGetInfo, &csi.NodeGetInfoRequest{})
	if isUnimplemented(err) {
		return nil
	}
	if bad := cmp.Or(volume.TooLong("node id", info.GetNodeId(), volume.MaxNodeID), volume.TooLarge("topology", info.GetAccessibleTopology().GetSegments())); bad != "" {
		return refused(stepNodeGetInfo, volume.CodeUnverified, volume.RetryBackoff, "the agent cannot use the plugin's answer: "+bad)
	}

	k.info.NodeID = info.GetNodeId()
	k.info.Topology = info.GetAccessibleTopology().GetSegments()
	k.info.MaxVolumes = info.GetMaxVolumesPerNode()

	return err
}

// NodeInfo calls NodeGetInfo again and returns the cached Info with the new answer. A node's limits
// and topology may change while the plugin runs.
func (c *Client) NodeInfo(ctx context.Context) (plugin.Info, error) {
	was, err := c.caps(ctx)
	if err != nil {
		return plugin.Info{}, err
	}

	now := *was
	if err := c.askNodeInfo(ctx, &now); err != nil {
		return plugin.Info{}, err
	}

	c.known.Store(&now)
	return now.info, nil
}

func (c *Client) askGroups(ctx context.Context, k *known) error {
	resp, err := ask(ctx, c, stepGroupGetCapabilities, c.groups.GroupControllerGetCapabilities, &csi.GroupControllerGetCapabilitiesRequest{})
	if isUnimplemented(err) {
		return nil
	}

	for _, one := range resp.GetCapabilities() {
		if one.GetRpc() == nil {
			continue
		}

		t := one.GetRpc().GetType()
		k.info.ControllerCaps = append(k.info.ControllerCaps, capName(int32(t), csi.GroupControllerServiceCapability_RPC_Type_name, -1))
		if t == csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT {
			k.info.Caps.GroupSnapshot = true
		}
	}

	return err
}

// ask sends one of the calls that Info makes. The limit on calls in flight does not apply to these
// calls.
func ask[Req, Resp any](ctx context.Context, c *Client, step call.Method,
	method func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req,
) (Resp, error) {
	ctx, cancel := context.WithTimeout(ctx, c.opts.ControllerTimeout)
	defer cancel()
	return send(ctx, c, step, method, req)
}

// capName returns the name of a capability. If this agent's CSI spec has no name for it, capName
// returns its number. The parameter condition is the number that VOLUME_CONDITION had before CSI
// 1.13.
func capName(n int32, names map[int32]string, condition int32) string {
	if n == condition {
		return "VOLUME_CONDITION"
	}
	if name, ok := names[n]; ok {
		return name
	}
	return strconv.Itoa(int(n))
}

// isUnimplemented reports whether the plugin answered that it does not implement the call.
func isUnimplemented(err error) bool {
	var call *volume.CallError
	return errors.As(err, &call) && call.Code == codes.Unimplemented.String()
}
