package supervisor

import (
	"context"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// runner is one way to run a plugin.
type runner interface {
	// Find returns the instance that is already running, as from an earlier agent; nil if there is
	// none.
	Find(ctx context.Context) (instance, error)
	// Start starts an instance, or waits for one that the agent does not start itself. No instance
	// runs when it is called.
	Start(ctx context.Context) (instance, error)
	// Owned reports whether the agent starts and stops the instances. If not, it only watches them.
	Owned() bool
	// Socket returns the path at which the plugin answers.
	Socket() string
}

// instance is one running process or container of a part.
type instance interface {
	// PID returns the id of the process, 0 if it is unknown.
	PID() int
	// Key returns a string that differs between any two instances.
	Key() string
	// Done returns a channel that is closed when the instance has ended. It is nil if only the
	// connection shows the end.
	Done() <-chan struct{}
	// Exit describes how the instance ended.
	Exit() string
	// Stale reports whether another instance has replaced this one.
	Stale() bool
	// Stop ends the instance and waits for its end. It returns early if ctx ends.
	Stop(ctx context.Context, grace time.Duration) error
	// Release ends the watch and leaves the instance running.
	Release() error
}

// runnerFor returns the runner that a definition asks for.
func (p *plugin) runnerFor(def *volume.PluginDefinition) runner {
	switch {
	case def.Socket != "":
		return &socketRunner{p: p, path: def.Socket}
	case def.Container != nil:
		return newContainerRunner(p, def)
	case def.Unit != "":
		return &unitRunner{p: p, name: def.Unit, paths: p.paths()}
	default:
		return &execRunner{p: p, def: def, paths: p.paths()}
	}
}
