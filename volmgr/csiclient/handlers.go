package csiclient

import (
	"context"

	"github.com/volagent/volagent/volmgr/call"
)

// Call implements call.Caller.
func (c *Client) Call(ctx context.Context, m call.Method, request any) (any, error) {
	return c.handlers.Call(ctx, m, request)
}

// handlers returns a function for each call, which translates the call to CSI and sends it.
func handlers(c *Client) call.Handlers {
	h, node, controller := call.Handlers{}, nodeCalls{c}, controllerCalls{c}

	call.HandleDo(h, controller.ControllerPublish)
	call.HandleRun(h, controller.ControllerUnpublish)
	call.HandleDo(h, controller.ControllerExpand)
	call.HandleRun(h, controller.ControllerModify)
	call.HandleDo(h, controller.CreateVolume)
	call.HandleRun(h, controller.DeleteVolume)
	call.HandleDo(h, controller.CreateSnapshot)
	call.HandleRun(h, controller.DeleteSnapshot)
	call.HandleDo(h, controller.CreateGroupSnapshot)
	call.HandleRun(h, controller.DeleteGroupSnapshot)
	call.HandleDo(h, controller.ControllerGetVolume)
	call.HandleDo(h, controller.ListVolumes)
	call.HandleDo(h, controller.GetCapacity)
	call.HandleRun(h, controller.ValidateCapabilities)
	call.HandleDo(h, controller.ListSnapshots)
	call.HandleDo(h, controller.GetSnapshot)
	call.HandleDo(h, controller.GetGroupSnapshot)
	call.HandleDo(h, controller.ControllerHealth)
	call.HandleDo(h, controller.ListHealth)
	call.HandleRun(h, node.NodeStage)
	call.HandleRun(h, node.NodeUnstage)
	call.HandleRun(h, node.NodePublish)
	call.HandleRun(h, node.NodeUnpublish)
	call.HandleDo(h, node.NodeExpand)
	call.HandleDo(h, node.NodeStats)
	call.HandleDo(h, node.NodeHealth)
	call.HandleDo(h, node.StorageHealth)

	return h
}
