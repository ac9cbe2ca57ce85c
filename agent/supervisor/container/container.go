// Package container runs plugins as containers of podman or docker.
//
//	container.go  the runner: finds, starts and clears containers
//	watch.go      monitors a running container until it ends
//	maker.go      chooses the name and the settings of a container
package container

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/volagent/volagent/agent/container"
	"github.com/volagent/volagent/agent/supervisor/runner"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/proc"
)

// Runner runs a plugin in a container of podman or docker. The container belongs to the runtime, so
// it keeps running when the agent ends. The agent monitors the container's main process, like the
// process of any other plugin. It calls the runtime only to change or inspect the container. So if
// the runtime is down or hangs, a running plugin is not affected.
type Runner struct {
	*maker
	looked bool // whether look has queried the runtime
	// the existing container with the plugin's name; nil if there is none
	left *container.Container
}

// New returns the runner of a part whose definition describes a container.
func New(p runner.Part, opts Options) *Runner {
	return &Runner{maker: &maker{Part: p, opts: opts, rt: container.New(p.Definition.Container.Runtime).With(opts.Via)}}
}

// Traits implements runner.Runner.
func (r *Runner) Traits() runner.Traits {
	return runner.Traits{
		Owned: true, Ends: true, Socket: r.Paths.Socket, Log: r.opts.Output,
		Fix: runner.Fix{
			Mounts: func(root string, hostShared bool) string {
				if !hostShared {
					return ""
				}
				return fmt.Sprintf("%s must be mounted into the container with rshared", root)
			},
			Root:    "have the image's process run as root (USER 0)",
			Network: "run it with --network host",
		},
	}
}

// Sweep implements runner.Runner. It also removes a container that has ended.
func (r *Runner) Sweep(ctx context.Context) (runner.Instance, error) {
	inst, err := r.Find(ctx)
	if inst == nil && err == nil && r.left != nil && r.ours(*r.left) {
		err = r.clear(ctx)
	}
	return inst, err
}

// Quiet implements runner.Runner. It does nothing, because only the agent starts the container.
func (r *Runner) Quiet(context.Context) {}

// Find implements runner.Runner.
func (r *Runner) Find(ctx context.Context) (runner.Instance, error) {
	r.looked, r.left = false, nil
	was := r.Record.Process()
	if was.Container != "" && was.Boot == r.Boot {
		// If the main process is alive, there is no need to query the runtime.
		if st, err := proc.ReadStat(was.PID); err == nil && st.Began(was.StartTime) && st.Alive() {
			r.HideGiven(was.PID)
			return r.attach(ctx, was)
		}
	}

	if err := r.look(ctx); err != nil || r.left == nil {
		return nil, err
	}

	c, nonce := *r.left, r.left.Labels[labelIncarnation]
	if !r.ours(c) || !c.Alive || !isOf(c) || nonce != was.Nonce && c.Labels[labelDefinition] != r.made() {
		return nil, nil
	}
	if nonce != was.Nonce {
		r.Logger.Warn("found a running container that has no record", "container", r.name())
	}

	r.HideGiven(c.PID)
	return r.take(ctx, c, nonce)
}

// look asks the runtime for a container with this plugin's name. It asks only once.
func (r *Runner) look(ctx context.Context) error {
	if r.looked || r.swept.Swap(false) {
		r.looked = true
		return nil
	}

	c, err := r.rt.Inspect(ctx, r.name())
	switch {
	case err == nil:
		r.left = &c
	case !errors.Is(err, container.ErrNotFound):
		return r.said(err)
	}

	r.looked = true
	return nil
}

// take monitors a running container. If the container has just ended, take returns an instance that
// has ended.
func (r *Runner) take(ctx context.Context, c container.Container, nonce string) (runner.Instance, error) {
	it := plugin.Process{Nonce: nonce, Container: c.ID, PID: c.PID, Boot: r.Boot}
	st, err := proc.ReadStat(c.PID)
	if err == nil {
		it.StartTime = st.Start
	} else {
		it.PID = 0
	}

	return r.attach(ctx, it)
}

// attach monitors a running container and stores its identity.
func (r *Runner) attach(ctx context.Context, it plugin.Process) (runner.Instance, error) {
	var process *runner.Process
	if it.PID != 0 {
		var err error
		if process, err = runner.OpenProcess(it.PID, it.StartTime, runner.Reap); err != nil {
			return nil, err
		}
	}

	if err := r.Record.SaveProcess(ctx, it); err != nil {
		// Continue after a failed save, because the stored nonce is enough to find the container
		// again.
		r.Logger.Warn("cannot store which container serves the plugin", "container", it.Container, "error", err)
	}

	r.opts.Output.From(r.rt, it.Container)
	return watch(ctx, r.maker, it, process), nil
}

// Start implements runner.Runner. It stores the nonce before a container can exist, and stores the
// container's process afterwards, as for a command. If the agent dies between the two steps, Find
// finds the container.
func (r *Runner) Start(ctx context.Context) (runner.Instance, error) {
	if err := r.clear(ctx); err != nil {
		return nil, err
	}
	if err := r.prepare(ctx); err != nil {
		return nil, err
	}

	spec, err := r.spec(ctx)
	if err != nil {
		return nil, err
	}

	it := plugin.Process{Nonce: spec.Labels[labelIncarnation], Boot: r.Boot}
	if err := r.Record.SaveProcess(ctx, it); err != nil {
		return nil, fmt.Errorf("cannot store that the plugin is being started: %w", err)
	}

	id, err := r.launch(ctx, spec)
	if err != nil {
		return nil, r.failed(ctx, err)
	}

	c, err := r.running(ctx, id)
	if err != nil {
		return nil, r.said(err)
	}

	return r.take(ctx, c, it.Nonce)
}

// failed returns the error that explains why there is no container. It also removes a container
// that was only partly started.
func (r *Runner) failed(ctx context.Context, err error) error {
	r.looked, r.left = false, nil
	if errors.Is(err, runner.ErrDue) || ctx.Err() != nil || r.look(ctx) != nil || r.left == nil {
		return r.said(err)
	}
	if !r.ours(*r.left) {
		return r.taken()
	}
	if !r.left.Alive {
		if err := r.rt.Remove(ctx, r.left.ID); err != nil {
			r.Logger.Debug("cannot remove a container that could not be started", "container", r.name(), "error", err)
		}
	}

	return r.said(err)
}

// taken returns the error for a container that has this plugin's name but that the agent did not
// make.
func (r *Runner) taken() error {
	return fmt.Errorf("cannot make container %s: a container with that name exists that this agent did not make; see %[2]s inspect %[1]s, and rename or remove it", r.name(), r.rt.Name())
}

// running inspects a container that was just started. It waits until the runtime reports the
// container's process, or reports that the container has ended.
func (r *Runner) running(ctx context.Context, id string) (container.Container, error) {
	limit, cancel := context.WithTimeout(ctx, exitPatience)
	defer cancel()

	again := time.NewTicker(exitLook)
	defer again.Stop()

	for {
		c, err := r.rt.Inspect(ctx, id)
		if err != nil || !c.Alive {
			return c, err
		}
		if isOf(c) {
			return c, nil
		}

		select {
		case <-again.C:
		case <-limit.Done():
			if ctx.Err() != nil {
				return c, ctx.Err()
			}

			return c, r.unseen(ctx, c)
		}
	}
}

// unseen ends a container that the agent cannot monitor, and returns the reason.
func (r *Runner) unseen(ctx context.Context, c container.Container) error {
	err := r.rt.Stop(ctx, c.ID, 0)
	if err == nil {
		err = r.rt.Remove(ctx, c.ID)
	}

	if err != nil {
		r.Logger.Warn("cannot end a container whose process is not visible", "container", r.name(), "error", r.said(err))
	}

	return fmt.Errorf("cannot find process %d of container %s: %s runs it on another host, or in another pid namespace", c.PID, r.name(), r.rt.Name())
}

// clear removes the container of an earlier start. If the container has ended, clear first copies
// the remaining lines of its log. clear also removes a container that still runs, because Find did
// not accept it. It does not touch containers that the agent did not make.
func (r *Runner) clear(ctx context.Context) error {
	if err := r.look(ctx); err != nil {
		return err
	}

	c := r.left
	switch {
	case c == nil:
		return nil
	case !r.ours(*c):
		return r.taken()
	case c.Alive:
		r.Logger.Warn("ending a container that cannot be taken over: it has no record and another definition, or its process is not visible", "container", r.name())
		if err := r.rt.Stop(ctx, c.ID, r.opts.StopGrace); err != nil {
			return fmt.Errorf("cannot end the container before this one: %w", r.said(err))
		}
	}

	r.opts.Output.From(r.rt, c.ID)
	if err := r.opts.Output.Last(ctx); err != nil {
		r.Logger.Debug("cannot read the output of a container", "container", c.ID, "error", err)
	}

	if err := r.rt.Remove(ctx, c.ID); err != nil {
		return fmt.Errorf("cannot remove the container before this one: %w", r.said(err))
	}

	return nil
}

// prepare makes the directories that the container needs on the host. It also makes the socket path
// free.
func (r *Runner) prepare(ctx context.Context) error {
	if err := r.Paths.Make(); err != nil {
		return err
	}

	root, shared := r.Paths.MountRoot, true
	if host := r.opts.Host; host != nil {
		if is, err := host.Shared(root); err == nil {
			shared = is
		}
	}

	if !shared {
		return fmt.Errorf("nothing that a container mounts in %s would be visible on the host, because that directory is not on a shared mount: "+
			"mount --make-rshared / (as systemd does), or, with nothing mounted there: mount --bind %[2]s %[2]s && mount --make-shared %[2]s", root, filepath.Dir(root))
	}

	who, taken, err := runner.FreeSocket(ctx, r.Paths.Socket)
	if taken {
		return runner.TakenError(who, r.Paths.Socket)
	}

	return err
}
