package supervisor

import (
	"context"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// runner is one way in which a plugin comes to run.
type runner interface {
	// Find returns the instance that runs already, from before this agent; nil
	// if there is none.
	Find(ctx context.Context) (instance, error)
	// Start starts an instance, or waits for one if it is not ours to start.
	// Nothing runs when it is called.
	Start(ctx context.Context) (instance, error)
	// Owned reports whether instances are started and stopped here. Others are
	// watched only.
	Owned() bool
	// Socket is where the plugin answers.
	Socket() string
}

// instance is a plugin that runs.
type instance interface {
	// PID is 0 where it is not known.
	PID() int
	// Key differs between any two instances.
	Key() string
	// Done is closed when the instance has ended; nil where only its
	// connection tells.
	Done() <-chan struct{}
	// Exit says how it ended.
	Exit() string
	// Stale reports whether another instance has taken this one's place.
	Stale() bool
	// Stop ends it and waits for its end; ctx ends the wait early.
	Stop(ctx context.Context, grace time.Duration) error
	// Release lets go of it and leaves it running.
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
