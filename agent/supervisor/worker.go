package supervisor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/volagent/volagent/agent/supervisor/runner"
	"github.com/volagent/volagent/volmgr/csiclient"
	"github.com/volagent/volagent/volmgr/volume"
)

// worker drives one part of a plugin from start to end, in one goroutine.
type worker struct {
	*plugin
	inst   runner.Instance   // the running instance; nil if there is none
	served runner.SocketFile // the socket to which the client is connected
	falls  pauses
	readyT time.Time // when the plugin became ready; zero if it is not ready
	// refusedClient is connected to a refused instance whose end can only be seen on its
	// connection.
	refusedClient *csiclient.Client
	misnamed      string // the warning about the name of its driver; empty if there is none
}

// drive drives the plugin until ctx ends. The plugin then keeps running.
func (p *plugin) drive(ctx context.Context) {
	w := &worker{plugin: p, falls: pauses{Backoff: p.s.opts.Backoff}}
	defer w.release()

	if run := p.runner(); run != nil {
		inst, err := run.Find(ctx)
		if err != nil {
			p.logger.Warn("cannot look for the plugin's process", "error", err)
		}

		w.inst = inst
	}

	due := false
	for ctx.Err() == nil {
		if e := p.s.ends.Load(); e != nil {
			w.finish(e)
			return
		}
		if (due || p.due()) && !w.apply(ctx) {
			return
		}

		due = false
		switch def, fault := p.definition(); {
		case ctx.Err() != nil:
		case w.isHalted():
			w.rest(ctx, 0, true)
		case def == nil:
			w.broken(ctx, fault)
		default:
			due = w.serve(ctx, def)
		}
	}
}

// release lets go of the instance without stopping it.
func (w *worker) release() {
	w.drop()
	if w.inst == nil {
		return
	}
	if err := w.inst.Release(); err != nil {
		w.logger.Warn("cannot let go of the plugin's process", "error", err)
	}

	w.inst = nil
}

// drop withdraws the client from its users and closes it.
func (w *worker) drop() {
	client := w.use(nil)
	if client == nil {
		return
	}
	if err := client.Close(); err != nil {
		w.logger.Warn("cannot close the plugin's client", "error", err)
	}
}

// apply does the work that due announced. It stops the plugin, permanently if that was requested,
// and puts a changed definition into force. It returns false if the plugin was removed.
func (w *worker) apply(ctx context.Context) bool {
	w.mu.Lock()
	next, halt, paused, started, nothing := w.next, w.halt, w.paused, w.halted && !w.halt, w.def == nil || w.force
	registered := w.def != nil && w.def.Registered
	w.mu.Unlock()
	if next != nil && next.def == nil && !nothing && len(w.inUse()) > 0 {
		next = nil // volumes still need the plugin, so only a requested stop is done
	}

	// Stored before the plugin is stopped: if this agent dies on the way, the next one completes
	// the stop.
	if err := w.save(ctx, func(r *volume.PluginRecord) { r.Stopped = halt && !paused }); err != nil {
		w.logger.Warn("cannot store whether the plugin was stopped on purpose", "error", err)
	}

	why := "is being restarted on request"
	switch {
	case next != nil && next.def == nil && registered:
		why = "it was deregistered"
	case next != nil && next.def == nil:
		why = "its file was removed"
	case halt:
		why = "is being stopped on request"
	case started:
		why = "is being started on request"
	case next != nil && (registered || next.def.Registered):
		why = "its registration changed"
	case next != nil:
		why = "its file changed"
	}

	w.must(w.m.stop(why))
	run := w.runner()
	if run != nil && w.inst == nil && !started {
		w.sweep(ctx, run)
	}

	if !w.stop(ctx) {
		return true // the agent ends; the next one continues from here
	}

	if run != nil {
		run.Quiet(ctx)
	}

	w.drop()
	w.falls.reset()
	w.setQuiet(false) // calls are possible again once the plugin is ready
	w.take(&w.restart)
	if next != nil && !w.adopt(ctx) {
		return false
	}

	w.settleHalt(halt)
	return true
}

// sweep takes over an instance of which no start succeeded, and removes the remains of one that has
// ended.
func (w *worker) sweep(ctx context.Context, run runner.Runner) {
	inst, err := run.Sweep(ctx)
	if w.inst = inst; err != nil && ctx.Err() == nil {
		w.logger.Warn("cannot tell whether anything is left of the plugin", "error", err)
	}
}

// settleHalt records that the requested stop or start is complete.
func (w *worker) settleHalt(halt bool) {
	if halt {
		w.must(w.m.stop(w.onRequest()))
	}

	w.mu.Lock()
	w.halted = halt
	w.mu.Unlock()
	if halt {
		w.s.notify(w.plugin)
	}
}

// isHalted reports whether the plugin was stopped on purpose.
func (w *worker) isHalted() bool {
	w.take(&w.kick)
	w.mu.Lock()
	defer w.mu.Unlock()

	return w.halted
}

// adopt puts the pending definition into force. It returns false if the plugin was removed.
func (w *worker) adopt(ctx context.Context) bool {
	if w.s.remove(w.plugin) {
		w.clear()
		if rec := w.record(); rec.Definition == nil && !rec.Stopped {
			return false // only a bad file, which is gone
		}
		if err := w.save(ctx, func(r *volume.PluginRecord) { *r = forgotten(*r) }); err != nil {
			w.logger.Warn("cannot store that the plugin was removed", "error", err)
		}

		return false
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	if w.next != nil && w.next.def != nil {
		w.define(w.next.def)
		w.next, w.force = nil, false
	}

	return true
}

// clear removes the socket of a removed plugin, with its directory. The state directory and the log
// stay.
func (w *worker) clear() {
	for _, path := range []string{w.paths.Socket, w.paths.SocketDir} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			w.logger.Warn("cannot remove what was the plugin's", "path", path, "error", err)
		}
	}
}

// stop ends the instance, if this agent owns it. It returns false if ctx ended before the instance
// did.
func (w *worker) stop(ctx context.Context) bool {
	if w.inst == nil {
		return true
	}

	for {
		err := w.inst.Stop(ctx, w.s.opts.StopGrace)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return false
		}

		w.logger.Error("cannot stop the plugin", "error", err)
		if !w.rest(ctx, w.falls.fell(0), false) {
			return false
		}
	}

	w.gone()
	return true
}

// gone records how the instance ended, and forgets the instance.
func (w *worker) gone() {
	if exit := w.inst.Exit(); exit != "" {
		w.mu.Lock()
		w.lastExit = exit
		w.mu.Unlock()
	}

	if err := w.inst.Release(); err != nil {
		w.logger.Warn("cannot let go of the plugin's process", "error", err)
	}

	w.inst = nil
	w.runs(nil)
}

// broken marks the plugin as failed because of its file, and waits for a change.
func (w *worker) broken(ctx context.Context, fault error) {
	w.take(&w.kick)
	w.must(w.m.refuse(fault.Error()))
	w.rest(ctx, 0, true)
}

// rest waits for d, or without limit if d is 0. It returns false early if ctx ends. If wakeable is
// set, it also returns early when a restart, a stop, a retry or a change is wanted.
func (w *worker) rest(ctx context.Context, d time.Duration, wakeable bool) bool {
	return w.restUntil(ctx, d, wakeable, nil)
}

// restUntil is like rest, but also returns early when over is closed.
func (w *worker) restUntil(ctx context.Context, d time.Duration, wakeable bool, over <-chan struct{}) bool {
	var timer <-chan time.Time
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		timer = t.C
	}

	wake := w.wake
	if !wakeable {
		wake = nil
	}

	for {
		select {
		case <-ctx.Done():
			return false
		case <-over:
			return true
		case <-timer:
			return true
		case <-wake:
			if w.take(&w.kick) || w.due() {
				return true
			}
		}
	}
}

// Reasons why serve ended. Any other error says why the plugin could not be started, or did not
// become ready in time.
var (
	errExited = errors.New("exited")
	errHung   = errors.New("hangs")
)

// serve brings the plugin to ready from any state, keeps it there, and handles its end. It returns
// true if it ended because due returned true.
func (w *worker) serve(ctx context.Context, def *volume.PluginDefinition) (due bool) {
	w.take(&w.kick)
	run := w.runner()
	defer w.closeRefused()

	err := w.once(ctx, run, def)
	readyFor := time.Duration(0)
	if !w.readyT.IsZero() {
		readyFor, w.readyT = max(1, time.Since(w.readyT)), time.Time{}
	}

	switch {
	case ctx.Err() != nil:
	case errors.Is(err, runner.ErrDue):
		return true
	case errors.Is(err, runner.ErrRefused), unusable(err) && run.Traits().Owned:
		w.refused(ctx, run, def, err)
	case unusable(err):
		w.apart(ctx, def, err)
	case !run.Traits().Owned:
		w.unreachable(ctx, err, readyFor)
	case errors.Is(err, errReopened):
		w.another(ctx, err, readyFor)
	default:
		w.fell(ctx, err, readyFor)
	}

	return false
}

// once starts or takes over an instance, and serves it until something ends that. The returned
// reason is never nil.
func (w *worker) once(ctx context.Context, run runner.Runner, def *volume.PluginDefinition) error {
	w.begin(run)
	if w.inst == nil {
		inst, err := w.obtain(ctx, run)
		if err != nil {
			return err
		}

		w.inst = inst
	}

	if another := w.runs(w.inst); another && !run.Traits().Owned {
		w.m.replaced()
	}

	client, err := w.settle(ctx, run, def)
	if err != nil {
		return err
	}

	w.use(client)
	w.readyT = time.Now()
	w.must(w.m.ready())
	return w.watch(ctx, run, def, client)
}

// obtain starts an instance, unless one is already running. A start that failed half-way may have
// left one running.
func (w *worker) obtain(ctx context.Context, run runner.Runner) (runner.Instance, error) {
	inst, err := run.Find(ctx)
	if inst == nil && err == nil {
		inst, err = run.Start(ctx)
	}

	if inst == nil && err == nil {
		err = errExited
	}

	return inst, err
}

// begin enters the state starting, unless the plugin is already starting or unhealthy.
func (w *worker) begin(run runner.Runner) {
	reason, now := "starting", w.m.snapshot()
	switch {
	case w.inst == nil && now.state == BackingOff:
		reason = "again, after: " + now.reason
	case w.inst != nil:
		reason = "found running; asking whether it is ready"
	case !run.Traits().Owned:
		reason = "connecting to " + run.Traits().Socket
	}

	if s := now.state; s == Stopped || s == BackingOff || s == Failed {
		w.must(w.m.start(reason))
	}
}

// pause returns how long a plugin that ended waits before it is started again. A plugin that another
// program restarts does not wait, as long as it becomes ready in between.
func (w *worker) pause(readyFor time.Duration) time.Duration {
	pause := w.falls.fell(readyFor)
	if w.inst == nil || readyFor == 0 || w.falls.failures > 0 {
		return pause
	}
	if isClosed(w.inst.Done()) && w.inst.Restarts() {
		return 0
	}

	return pause
}

// fell handles the end of an instance, and ends one that is unusable. It then waits before the next
// start.
func (w *worker) fell(ctx context.Context, why error, readyFor time.Duration) {
	reason := why.Error()
	if errors.Is(why, errExited) && w.inst != nil {
		reason = "process " + w.inst.Exit()
		if readyFor == 0 {
			reason += " before it was ready"
		}
	}

	pause := w.pause(readyFor)
	next := time.Now().Add(pause)
	w.must(w.m.lost(reason, next))
	if errors.Is(why, errExited) && w.inst != nil {
		w.gone()
	} else if !w.stop(ctx) {
		return
	}

	w.drop()
	if left := time.Until(next); left > 0 {
		w.rest(ctx, left, true)
	}
}

// firstUnreachable is the pause before the first retry of a plugin that this agent does not run.
const firstUnreachable = time.Second

// longestUnreachable is the longest pause before a retry, for a socket that comes and goes.
const longestUnreachable = 30 * time.Second

// unreachable handles the end of an instance that this agent does not run.
func (w *worker) unreachable(ctx context.Context, why error, readyFor time.Duration) {
	w.must(w.m.unhealthy(why.Error()))
	w.drop()
	w.inst = nil
	w.runs(nil)
	pause := firstUnreachable
	if readyFor > 0 {
		pause = min(w.falls.fell(readyFor), longestUnreachable)
	}

	w.rest(ctx, pause, true)
}
