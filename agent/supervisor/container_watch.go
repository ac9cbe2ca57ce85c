package supervisor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/container"
	"github.com/volagent/volagent/agent/pluginfile"
	"github.com/volagent/volagent/volmgr/proc"
	"github.com/volagent/volagent/volmgr/volume"
)

const (
	// exitPatience bounds the wait for a runtime to report how a container ended, and for the rest
	// of its output. Until then the end is not published.
	exitPatience = 5 * time.Second
	// removePatience bounds the removal of a container. The removal also ends with the agent.
	removePatience = 8 * time.Second
	// exitLook is the pause between two inspections. The runtime notices the end a little later
	// than the agent does.
	exitLook = 20 * time.Millisecond
)

// runningContainer is a container that is watched through its main process.
type runningContainer struct {
	r    *containerRunner
	id   string
	key  string
	proc *process // nil if it had ended before it could be watched

	cancel context.CancelFunc
	done   chan struct{} // closed once it has ended and exit is set
	over   chan struct{} // closed once the watch has finished
	exit   string        // valid after done
}

// watchContainer watches the container until Release. life is the context of the agent.
func watchContainer(life context.Context, r *containerRunner, it volume.PluginProcess, proc *process) *runningContainer {
	ctx, cancel := context.WithCancel(context.Background())
	c := &runningContainer{
		r: r, id: it.Container, key: fmt.Sprintf("%s@%d", it.Container, it.StartTime), proc: proc,
		cancel: cancel, done: make(chan struct{}), over: make(chan struct{}),
	}

	go c.watch(ctx, life)
	return c
}

// watch waits for the container's end, asks how it ended, reads the rest of its log, and removes
// it.
func (c *runningContainer) watch(ctx, life context.Context) {
	defer close(c.over)

	if c.proc != nil {
		select {
		case <-c.proc.done:
		case <-ctx.Done():
			return
		}
	}

	limit, stop := context.WithTimeout(ctx, exitPatience)
	c.exit = c.ended(limit)
	if err := c.r.p.logs.last(limit); err != nil {
		c.r.p.log.Debug("cannot read the last of a container's log", "container", c.id, "error", err)
	}

	stop()
	if ctx.Err() != nil {
		return // the next agent finds the container ended
	}

	close(c.done)
	limit, stop = context.WithTimeout(life, removePatience)
	defer stop()

	switch err := c.r.rt.Remove(limit, c.id); {
	case life.Err() != nil:
		return // the next agent removes it
	case err != nil:
		c.r.p.log.Warn("cannot remove the plugin's container, which has ended; the next start of the plugin does", "container", c.r.name(), "error", err)
		return
	}

	c.r.p.sweep()
}

// isOf reports whether the process that the runtime names belongs to the container. Such a process
// has the nonce in its environment, or the container's id in the name of its cgroup. If the runtime
// is on another host or in a virtual machine, the pid is that of an unrelated process here.
func isOf(c container.Container) bool {
	if nonce := c.Labels[labelIncarnation]; nonce != "" && environ(c.PID, pluginfile.EnvIncarnation) == nonce {
		return true
	}
	groups, err := proc.Cgroups(c.PID)
	return err == nil && slices.ContainsFunc(groups, func(g proc.Cgroup) bool { return strings.Contains(g.Path, c.ID) })
}

// overlooked takes over an instance that runs although no start of it succeeded: the runtime or
// systemd started it, and then did not answer. It removes a container that has ended. For units,
// quiet does the work.
func (w *worker) overlooked(ctx context.Context) {
	def, _ := w.definition()
	if w.inst != nil || def == nil || def.Unit != "" {
		return
	}

	run := w.runnerFor(def)
	inst, err := run.Find(ctx)
	if c, ok := run.(*containerRunner); ok && inst == nil && err == nil && c.left != nil && c.ours(*c.left) {
		err = c.clear(ctx)
	}

	if w.inst = inst; err != nil && ctx.Err() == nil {
		w.log.Warn("cannot tell whether anything is left of the plugin", "error", err)
	}
}

// sweep records that the plugin's container is gone. The next start then need not ask the runtime.
func (p *plugin) sweep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.swept = true
}

// ended asks the runtime how the container ended.
func (c *runningContainer) ended(ctx context.Context) string {
	again := time.NewTicker(exitLook)
	defer again.Stop()
	for {
		it, err := c.r.rt.Inspect(ctx, c.id)
		switch {
		case err == nil && !it.Alive:
			return it.Exit()
		case err != nil && ctx.Err() == nil:
			return fmt.Sprintf("ended; how is unknown: %s", c.r.said(err))
		}

		select {
		case <-ctx.Done():
			return fmt.Sprintf("ended; how is unknown, since %s does not say", c.r.rt.Name())
		case <-again.C:
		}
	}
}

// PID implements instance.
func (c *runningContainer) PID() int {
	if c.proc == nil {
		return 0
	}
	return c.proc.pid
}

// Key implements instance.
func (c *runningContainer) Key() string { return c.key }

// Done implements instance.
func (c *runningContainer) Done() <-chan struct{} { return c.done }

// Exit implements instance.
func (c *runningContainer) Exit() string {
	select {
	case <-c.done:
		return c.exit
	default:
		return ""
	}
}

// Stale implements instance. It is false: another container is always another instance.
func (c *runningContainer) Stale() bool { return false }

// Stop implements instance. If the runtime does not stop the container, Stop kills the main process
// itself.
func (c *runningContainer) Stop(ctx context.Context, grace time.Duration) error {
	if err := c.r.rt.Stop(ctx, c.id, grace); err != nil && ctx.Err() == nil && !c.hasEnded() {
		c.r.p.log.Warn("cannot stop the plugin's container; killing it", "container", c.r.name(), "error", err)
		if err := c.kill(ctx); err != nil {
			return err
		}
	}

	// A process in an uninterruptible call dies later. No second instance may be started beside it,
	// so Stop waits.
	select {
	case <-c.over:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// kill kills the main process. A frozen process dies only after the runtime thaws it, so kill then
// asks the runtime.
func (c *runningContainer) kill(ctx context.Context) error {
	if err := c.proc.signal(unix.SIGKILL); err != nil {
		return err
	}

	timer := time.NewTimer(exitPatience)
	defer timer.Stop()

	select {
	case <-c.proc.done:
	case <-ctx.Done():
	case <-timer.C:
		if err := c.r.rt.Kill(ctx, c.id); err != nil && !c.hasEnded() {
			return c.r.said(err)
		}
	}

	return nil
}

func (c *runningContainer) hasEnded() bool {
	if c.proc == nil {
		return true
	}
	select {
	case <-c.proc.done:
		return true
	default:
		return false
	}
}

// Release implements instance. A running container keeps running, unwatched. For a container that
// has ended, Release waits until the watch has finished its work.
func (c *runningContainer) Release() error {
	select {
	case <-c.done:
	default:
		c.cancel()
	}

	<-c.over
	c.cancel()
	if c.proc == nil {
		return nil
	}

	return c.proc.Release()
}
