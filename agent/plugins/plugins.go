// Package plugins routes each call to the instance of a plugin that must answer it, and shows and
// controls plugins for the API. The supervisor runs the instances; the packages that make calls see
// them through interfaces of their own.
//
//	plugins.go    Set, and the calls of one step of a volume
//	provision.go  the calls that create, expand and delete storage
//	asking.go     the calls that only read
//	tests.go      the calls of a test of a plugin
//	await.go      waits until a plugin can answer
//	usage.go      which volumes use a plugin
//	show.go, control.go, deadlock.go  plugins in the API
package plugins

import (
	"context"

	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/volmgr"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// Set implements the interfaces through which other packages use plugins.
type Set struct {
	*supervisor.Supervisor

	// Usage tells which volumes use a plugin.
	Usage Usage
	// Halt says why no call is sent to any plugin; empty in normal operation.
	Halt string
}

// ForStep returns the client for the call of one step.
func (p Set) ForStep(v volume.Volume, k call.Method) (volmgr.Plugin, error) {
	if k.Service() == call.Node {
		return p.Client(v.PluginID)
	}

	c, err := p.Controller(v.PluginID, v.ExternalID)
	if err != nil {
		return nil, err
	}

	return controller{c}, nil
}

// controller reports the result of each call to the supervisor.
type controller struct{ supervisor.Controller }

// ControllerPublish connects a volume to this host.
func (c controller) ControllerPublish(ctx context.Context, r call.ControllerPublishRequest) (map[string]string, error) {
	out, err := c.Controller.ControllerPublish(ctx, r)
	c.Done(err)
	return out, err
}

// ControllerUnpublish disconnects a volume from this host.
func (c controller) ControllerUnpublish(ctx context.Context, r call.ControllerUnpublishRequest) error {
	err := c.Controller.ControllerUnpublish(ctx, r)
	c.Done(err)
	return err
}

// ControllerExpand makes the storage of a volume larger.
func (c controller) ControllerExpand(ctx context.Context, r call.ExpandRequest) (call.ExpandResult, error) {
	out, err := c.Controller.ControllerExpand(ctx, r)
	c.Done(err)
	return out, err
}
