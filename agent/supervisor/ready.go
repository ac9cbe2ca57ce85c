package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/volagent/volagent/agent/supervisor/pluginlog"
	"github.com/volagent/volagent/agent/supervisor/runner"
	"github.com/volagent/volagent/volmgr/csiclient"
	"github.com/volagent/volagent/volmgr/volume"
)

const (
	// firstPoll is the first pause between two checks of a plugin that was just started.
	firstPoll = 5 * time.Millisecond
	// slowestPoll is the longest pause between two checks for a socket that a plugin of this agent
	// is about to open.
	slowestPoll = 100 * time.Millisecond
	// slowestProbe is the longest pause between two probes of a plugin that is
	// not ready yet.
	slowestProbe = time.Second
	// unhealthyProbe is the longest pause between two probes of a plugin that was ready and then
	// failed a probe.
	unhealthyProbe = 5 * time.Second
	// lostLook is the pause before the next probe of a plugin whose connection was lost.
	lostLook = 500 * time.Millisecond
	// maxFailures is how many failed probes in a row mean that a plugin hangs.
	maxFailures = 3
)

// settle waits until the instance is ready, and returns as soon as it is. The instance opens its
// socket, reports that it is ready, identifies itself, and shares its mounts with the host. The
// caller owns the returned client.
func (w *worker) settle(ctx context.Context, run runner.Runner, def *volume.PluginDefinition) (*csiclient.Client, error) {
	limit, cancel := context.WithTimeoutCause(ctx, def.StartTimeout, errSlow)
	defer cancel()

	last := "it has not opened its socket " + run.Traits().Socket + run.Traits().Missing

	err := w.poll(limit, firstPoll, slowestPoll, func() bool {
		_, err := os.Stat(run.Traits().Socket)
		return err == nil
	})

	if err != nil {
		return nil, w.unsettled(limit, def, err, last)
	}

	w.served, _ = runner.StatSocket(run.Traits().Socket) // if it is gone again, the next socket counts as another
	last = "it has opened its socket " + run.Traits().Socket + ", and does not answer"
	client, err := csiclient.Dial(run.Traits().Socket, w.clientOptions(def))
	if err != nil {
		return nil, err
	}

	var info volume.PluginInfo
	err = w.poll(limit, firstPoll, slowestProbe, func() bool {
		ready, err := client.Probe(limit)
		if err == nil && ready {
			info, err = client.Info(limit)
		}

		switch {
		case err != nil && limit.Err() != nil: // the earlier reason says more
		case err != nil:
			last = err.Error()
		case !ready:
			last = "it says that it is not ready yet"
		default:
			return true
		}

		w.m.note("not ready yet: " + last)
		return false
	})

	if err == nil {
		err = w.introduce(ctx, def, info)
		if err == nil {
			err = w.share(ctx, run)
		}
	} else {
		err = w.unsettled(limit, def, err, last)
	}

	if err != nil && errors.Is(err, runner.ErrRefused) && w.inst.Done() == nil {
		w.refusedClient = client // the end of its connection shows that the refused instance has ended
		return nil, err
	}
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}

	return client, nil
}

// errSlow is the cause of a context that ended with the start timeout.
var errSlow = errors.New("start timeout")

// unsettled returns the reason why a plugin did not become ready.
func (w *worker) unsettled(limit context.Context, def *volume.PluginDefinition, err error, last string) error {
	if errors.Is(context.Cause(limit), errSlow) && !errors.Is(err, errExited) && !errors.Is(err, runner.ErrDue) {
		return fmt.Errorf("not ready after %s: %s", def.StartTimeout, last)
	}
	return err
}

// poll calls ok with growing pauses until it returns true, the instance ends, due returns true, or
// ctx ends.
func (w *worker) poll(ctx context.Context, first, slowest time.Duration, ok func() bool) error {
	for pause := first; !ok(); pause = min(2*pause, slowest) {
		if w.inst.Stale() {
			return errors.New("its socket was replaced or removed")
		}

		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
			continue
		case <-w.inst.Done():
			timer.Stop()
			return errExited
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-w.wake:
			timer.Stop()
			if w.due() {
				return runner.ErrDue
			}
		}
	}

	return nil
}

// clientOptions returns the options of a client for the plugin.
func (w *worker) clientOptions(def *volume.PluginDefinition) csiclient.Options {
	o := w.s.opts.Client
	o.NodeTimeout, o.ControllerTimeout, o.ProbeTimeout = def.NodeTimeout, def.ControllerTimeout, def.ProbeTimeout
	o.MaxInFlight = def.MaxInFlight
	o.Scrubber = w.scrub
	o.Exhausted = func() { w.s.askLimits(w.id) }
	w.scrub.Unmask(def.UnmaskedSecrets...)
	if w.s.opts.Observe != nil {
		o.Observer = w.s.opts.Observe(w.id)
	}

	switch def.Type {
	case typeNode:
		o.Services = csiclient.NodeOnly
	case typeController:
		o.Services = csiclient.ControllerOnly
	default:
		o.Services = csiclient.AllServices
	}

	return o
}

// named refuses a driver whose name CSI does not allow. If the agent has volumes of the plugin, it
// only warns, since a refusal would strand them.
func (w *worker) named(driver string) error {
	err := volume.CheckDriver(driver)
	switch {
	case err == nil:
		w.misnamed = ""
		return nil
	case w.s.opts.HasVolumes == nil || !w.s.opts.HasVolumes(w.id):
		return fmt.Errorf("%w: %w", runner.ErrRefused, err)
	}

	w.misnamed = err.Error() + "; it is used all the same, because volumes of it exist"
	return nil
}

// introduce checks the identity that the plugin reports, and stores it.
func (w *worker) introduce(ctx context.Context, def *volume.PluginDefinition, info volume.PluginInfo) error {
	info.ID = w.id
	wantNode := def.Type == typeNode || def.Type == typeMonolith
	wantController := def.Type == typeController || def.Type == typeMonolith
	switch {
	case wantNode && !info.HasNode:
		return fmt.Errorf("%w: its file says type %s, and it has no node service", runner.ErrRefused, def.Type)
	case wantController && !info.HasController:
		return fmt.Errorf("%w: its file says type %s, and it has no controller service", runner.ErrRefused, def.Type)
	}

	if err := w.named(info.Driver); err != nil {
		return err
	}

	switch was, part := w.s.other(w.plugin, info.Driver); {
	case part != "":
		return fmt.Errorf("%w: driver %q answers, and the part %q of plugin %q is driver %q: all parts are of one driver",
			runner.ErrRefused, info.Driver, part, w.id, was)
	case was != "":
		return fmt.Errorf("%w: driver %q answers, and plugin %q has been driver %q: its volumes would go to the wrong driver; give another driver an id of its own",
			runner.ErrRefused, info.Driver, w.id, was)
	}

	w.tellNodeID(info)
	err := w.save(ctx, func(r *volume.PluginRecord) { r.Info, r.Definition = info, def })
	if err != nil {
		// The plugin serves all the same. Without the record, its description is lost while it is
		// down.
		w.logger.Warn("cannot store what the plugin says of itself", "error", err)
	}

	return nil
}

// watch probes a ready plugin until it ends, hangs or is replaced, or until due returns true.
func (w *worker) watch(ctx context.Context, run runner.Runner, def *volume.PluginDefinition, client *csiclient.Client) error {
	lost, stop := watchConnection(ctx, client)
	defer stop()

	ended := w.inst.Done()
	if ended == nil {
		ended, lost = lost, nil
	}

	failures := 0
	timer := time.NewTimer(def.ProbeInterval)
	defer timer.Stop()

	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ended:
			return w.ended(run)
		case <-lost:
			// Most likely the process has just ended, and the channel ended is about to be closed.
			lost = nil
			timer.Reset(min(def.ProbeInterval, lostLook))
			continue

		case <-w.wake:
			if w.due() {
				return runner.ErrDue
			}
			if w.take(&w.limits) {
				w.askNode(ctx, def, client)
			}

			continue

		case <-timer.C:
		}

		if w.due() {
			return runner.ErrDue
		}
		if w.inst.Stale() {
			return errors.New("its socket was replaced or removed")
		}
		if run.Traits().Owned && w.reopened(run) {
			return errReopened
		}
		if err := w.probe(ctx, client, &failures); err != nil {
			return err
		}

		w.tidy(run)
		next := def.ProbeInterval
		if w.m.snapshot().state != Ready {
			next = min(next, unhealthyProbe)
		}

		timer.Reset(next)
	}
}

// errReopened says that a process of this agent made its socket anew and serves on the new one.
var errReopened = errors.New("its socket was made anew while its process went on")

// reopened reports whether the socket is not the one to which the client is connected. The process
// that was started may be a shell or the init of a container, and may have started another server.
// A missing socket does not count, since it may be about to appear.
func (w *worker) reopened(run runner.Runner) bool {
	now, err := runner.StatSocket(run.Traits().Socket)
	return err == nil && now != w.served
}

// another handles a process that serves on another socket. The new server may have lost its state,
// so it counts as another incarnation and must identify itself again.
func (w *worker) another(ctx context.Context, why error, readyFor time.Duration) {
	w.must(w.m.unhealthy(why.Error()))
	w.drop()
	w.m.replaced()
	w.renew()
	w.rest(ctx, min(w.falls.fell(readyFor), longestUnreachable), true)
}

// ended returns the error for the end of an instance.
func (w *worker) ended(run runner.Runner) error {
	if run.Traits().Owned {
		return errExited
	}
	return errors.New(w.inst.Exit())
}

// probe probes the plugin once. A plugin that reports that it is not ready is unhealthy, but does
// not count as hung: a restart could cost mounts and would not help.
func (w *worker) probe(ctx context.Context, client *csiclient.Client, failures *int) error {
	ready, err := client.Probe(ctx)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		*failures++
		w.must(w.m.unhealthy(fmt.Sprintf("probe %d of %d failed: %s", *failures, maxFailures, err)))
		if *failures >= maxFailures {
			return fmt.Errorf("%w: %d probes in a row failed, the last with %w", errHung, *failures, err)
		}

		return nil
	}

	*failures = 0
	if !ready {
		w.must(w.m.unhealthy("it says that it is not ready"))
	} else if w.m.snapshot().state == Unhealthy {
		w.must(w.m.ready())
	}

	return nil
}

// tidy limits the size of a running plugin's log.
func (w *worker) tidy(run runner.Runner) {
	if !run.Traits().Owned {
		return
	}

	err := pluginlog.Trim(w.paths.Log)
	if err != nil && !w.untidy {
		w.logger.Warn("cannot trim the plugin's log", "error", err)
	}

	w.untidy = err != nil
}

// watchConnection returns a channel that is closed when the client's connection is lost.
func watchConnection(ctx context.Context, client *csiclient.Client) (lost <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ch, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		if client.WaitLost(ctx) == nil {
			close(ch)
		}
	}()

	return ch, func() { cancel(); <-over }
}
