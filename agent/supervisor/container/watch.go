package container

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/container"
	"github.com/volagent/volagent/agent/pluginfile"
	"github.com/volagent/volagent/agent/supervisor/runner"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/proc"
)

const (
	// exitPatience limits how long the agent waits until the runtime reports how a container ended,
	// and until the last output is copied. Only then does the agent report the end of the
	// container.
	exitPatience = 5 * time.Second
	// removePatience limits how long the removal of a container may take. If the agent ends, the
	// removal is cancelled.
	removePatience = 8 * time.Second
	// exitLook is the pause between two inspections of a container that has ended. The runtime
	// notices the end a little later than the agent.
	exitLook = 20 * time.Millisecond
)

// instance is a container that the agent monitors through its main process.
type instance struct {
	*maker

	id      string
	key     string
	process *runner.Process // nil if the process ended before the agent began to monitor it

	cancel context.CancelFunc
	done   chan struct{} // closed when the container has ended and the field exit is set
	over   chan struct{} // closed when the monitoring goroutine has finished
	exit   string        // how the container ended; valid after done is closed
}

// watch starts to monitor a container. The monitoring continues until Release is called. The
// argument life is the context of the agent.
func watch(life context.Context, m *maker, it plugin.Process, process *runner.Process) *instance {
	ctx, cancel := context.WithCancel(context.Background())
	c := &instance{
		maker: m, id: it.Container, key: fmt.Sprintf("%s@%d", it.Container, it.StartTime), process: process,
		cancel: cancel, done: make(chan struct{}), over: make(chan struct{}),
	}

	go c.watch(ctx, life)
	return c
}

// watch waits until the container ends. It then asks the runtime how the container ended, copies
// the remaining lines of its log, and removes the container.
func (c *instance) watch(ctx, life context.Context) {
	defer close(c.over)

	if c.process != nil {
		select {
		case <-c.process.Done():
		case <-ctx.Done():
			return
		}
	}

	limit, stop := context.WithTimeout(ctx, exitPatience)
	c.exit = c.ended(limit)
	if err := c.opts.Output.Last(limit); err != nil {
		c.Logger.Debug("cannot read the last of a container's log", "container", c.id, "error", err)
	}

	stop()
	if ctx.Err() != nil {
		return // the agent stops monitoring; the next agent finds that the container has ended
	}

	close(c.done)
	limit, stop = context.WithTimeout(life, removePatience)
	defer stop()

	switch err := c.rt.Remove(limit, c.id); {
	case life.Err() != nil:
		return // the agent is ending; the next agent removes the container
	case err != nil:
		c.Logger.Warn("cannot remove the plugin's container, which has ended; the next start of the plugin does", "container", c.name(), "error", err)
		return
	}

	c.swept.Store(true)
}

// isOf reports whether the pid that the runtime reported belongs to the container. The process of a
// container has the nonce in its environment, or the container's id in the name of its cgroup. If
// the runtime is on another host or in a virtual machine, the pid belongs to an unrelated process
// of this host.
func isOf(c container.Container) bool {
	if nonce := c.Labels[labelIncarnation]; nonce != "" && runner.Environ(c.PID, pluginfile.EnvIncarnation) == nonce {
		return true
	}
	groups, err := proc.Cgroups(c.PID)
	return err == nil && slices.ContainsFunc(groups, func(g proc.Cgroup) bool { return strings.Contains(g.Path, c.ID) })
}

// ended asks the runtime how the container ended.
func (c *instance) ended(ctx context.Context) string {
	again := time.NewTicker(exitLook)
	defer again.Stop()
	for {
		it, err := c.rt.Inspect(ctx, c.id)
		switch {
		case err == nil && !it.Alive:
			return it.Exit()
		case err != nil && ctx.Err() == nil:
			return fmt.Sprintf("ended with an unknown status: %s", c.said(err))
		}

		select {
		case <-ctx.Done():
			return fmt.Sprintf("ended with an unknown status: %s does not report it", c.rt.Name())
		case <-again.C:
		}
	}
}

// PID implements runner.Instance.
func (c *instance) PID() int {
	if c.process == nil {
		return 0
	}
	return c.process.PID()
}

// Key implements runner.Instance.
func (c *instance) Key() string { return c.key }

// Done implements runner.Instance.
func (c *instance) Done() <-chan struct{} { return c.done }

// Exit implements runner.Instance.
func (c *instance) Exit() string {
	select {
	case <-c.done:
		return c.exit
	default:
		return ""
	}
}

// Restarts implements runner.Instance. It returns false, because only the agent starts the next
// container.
func (c *instance) Restarts() bool { return false }

// Stale implements runner.Instance. It always returns false, because a new container is a new
// instance.
func (c *instance) Stale() bool { return false }

// Stop implements runner.Instance. If the runtime does not stop the container, Stop kills the
// container's main process.
func (c *instance) Stop(ctx context.Context, grace time.Duration) error {
	if err := c.rt.Stop(ctx, c.id, grace); err != nil && ctx.Err() == nil && !c.hasEnded() {
		c.Logger.Warn("cannot stop the plugin's container; killing it", "container", c.name(), "error", err)
		if err := c.kill(ctx); err != nil {
			return err
		}
	}

	// Wait even after SIGKILL: a process in an uninterruptible system call dies later, and the
	// agent must not start a second instance before that.
	select {
	case <-c.over:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// kill kills the container's main process. If the process does not end soon, kill asks the runtime
// to kill the container. The reason may be a frozen process, which dies only after the runtime has
// thawed it.
func (c *instance) kill(ctx context.Context) error {
	if err := c.process.Signal(unix.SIGKILL); err != nil {
		return err
	}

	timer := time.NewTimer(exitPatience)
	defer timer.Stop()

	select {
	case <-c.process.Done():
	case <-ctx.Done():
	case <-timer.C:
		if err := c.rt.Kill(ctx, c.id); err != nil && !c.hasEnded() {
			return c.said(err)
		}
	}

	return nil
}

func (c *instance) hasEnded() bool {
	if c.process == nil {
		return true
	}
	select {
	case <-c.process.Done():
		return true
	default:
		return false
	}
}

// Release implements runner.Instance. A running container continues without being monitored. If the
// container has ended, Release waits until the monitoring goroutine has finished.
func (c *instance) Release() error {
	select {
	case <-c.done:
	default:
		c.cancel()
	}

	<-c.over
	c.cancel()
	if c.process == nil {
		return nil
	}

	return c.process.Release()
}
