// Package plugins sends each call to the instance of a plugin that must answer it. It also shows and
// controls plugins for the API. The supervisor runs the instances. The packages that make calls use
// plugins through their own interfaces.
//
//	plugins.go  the type Set, and the calls that a step of a volume makes
//	router.go   sends each call to the instance that must answer it
//	tests.go    the calls that a test of a plugin makes
//	await.go    waits until a plugin can answer
//	usage.go    finds the volumes that use a plugin
//	show.go, control.go, deadlock.go  show and control plugins for the API
package plugins

import (
	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// Set implements the interfaces through which other packages use plugins.
type Set struct {
	*supervisor.Supervisor

	// Usage reports which volumes use a plugin.
	Usage Usage
	// Halt is the reason why no call may be sent to any plugin. It is empty in normal operation.
	Halt string
}

// ForStep returns the client that makes the call of one step.
func (p Set) ForStep(v volume.Volume, k call.Method) (call.Caller, error) {
	if k.Service() == call.Node {
		return p.Client(v.PluginID)
	}

	c, err := p.Controller(v.PluginID, v.ExternalID)
	if err != nil {
		return nil, err
	}

	return controller{c}, nil
}
