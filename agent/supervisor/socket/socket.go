// Package socket monitors plugins that another program runs. The agent knows only the socket of
// such a plugin.
package socket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"time"

	"github.com/volagent/volagent/agent/supervisor/runner"
)

// These are the pauses between two checks whether a process serves the socket.
const (
	firstLook   = 5 * time.Millisecond
	slowestLook = time.Second
)

// Runner monitors a plugin that this agent does not run.
type Runner struct {
	path     string
	progress runner.Progress
}

// New returns the runner of a plugin that serves the socket at path.
func New(path string, progress runner.Progress) *Runner {
	return &Runner{path: path, progress: progress}
}

// Traits implements runner.Runner.
func (r *Runner) Traits() runner.Traits {
	return runner.Traits{
		Socket: r.path,
		Fix: runner.Fix{
			Mounts: func(root string, _ bool) string {
				return fmt.Sprintf("for a container, mount %[1]s into it with rshared (-v %[1]s:%[1]s:rshared); for a unit, remove the settings that give it its own mount namespace", root)
			},
			Root:    "run the process that serves " + r.path + " as root",
			Network: "run its container with --network host, its unit without PrivateNetwork=",
		},
	}
}

// Sweep implements runner.Runner. It does nothing, because the agent starts no instances, so none
// of their remains need removal.
func (r *Runner) Sweep(context.Context) (runner.Instance, error) { return nil, nil }

// Quiet implements runner.Runner. It does nothing, because the agent does not stop the instances.
func (r *Runner) Quiet(context.Context) {}

// Find implements runner.Runner. It finds nothing, because the agent stores nothing about the
// instances.
func (r *Runner) Find(context.Context) (runner.Instance, error) { return nil, nil }

// Start implements runner.Runner. It waits until a process listens on the socket.
func (r *Runner) Start(ctx context.Context) (runner.Instance, error) {
	for pause := firstLook; ; pause = min(2*pause, slowestLook) {
		who, err := runner.Connect(ctx, r.path)
		if err == nil {
			return &connection{path: r.path, who: who}, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}

		r.progress.Unhealthy(r.why(err))
		if err := runner.Wait(ctx, r.progress, pause, nil, nil); err != nil {
			return nil, err
		}
	}
}

// why describes the reason why the connection to the socket failed.
func (r *Runner) why(err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Sprintf("socket %s does not exist", r.path)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Sprintf("no process listens on socket %s", r.path)
	default:
		return fmt.Sprintf("cannot connect to socket %s: %s", r.path, err)
	}
}

// connection is the instance that serves a socket.
type connection struct {
	path string
	who  runner.Peer
}

// PID implements runner.Instance.
func (c *connection) PID() int { return c.who.PID }

// Key implements runner.Instance. If a process opens its socket again, it gets a different key,
// because it may have lost its state.
func (c *connection) Key() string { return fmt.Sprint(c.who) }

// Done implements runner.Instance. It returns nil, because the agent can notice the end only by the
// loss of the connection.
func (c *connection) Done() <-chan struct{} { return nil }

// Exit implements runner.Instance.
func (c *connection) Exit() string { return "lost the connection to socket " + c.path }

// Restarts implements runner.Instance. It returns false, because the agent cannot know whether
// another program starts the next instance.
func (c *connection) Restarts() bool { return false }

// Stale implements runner.Instance.
func (c *connection) Stale() bool {
	file, err := runner.StatSocket(c.path)
	return err != nil || file != c.who.File
}

// Stop implements runner.Instance. It does nothing, because the agent does not stop the instances.
func (c *connection) Stop(context.Context, time.Duration) error { return nil }

// Release implements runner.Instance.
func (c *connection) Release() error { return nil }
