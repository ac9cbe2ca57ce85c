package supervisor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/volagent/volagent/volmgr/csiclient"
	"github.com/volagent/volagent/volmgr/volume"
)

// worker drives one plugin through its life, in one goroutine.
type worker struct {
	*plugin
	inst   instance   // what runs, if anything
	served socketFile // that its client is connected to
	falls  pauses
	readyT time.Time // since when it is ready; zero if it is not
	// refusedClient is connected to a refused instance of which nothing else tells the end.
	refusedClient *csiclient.Client
	misnamed      string // the warning about the name of its driver; empty if there is none
}

// run drives the plugin until ctx ends, and leaves it running then.
func (p *plugin) run(ctx context.Context) {
	w := &worker{plugin: p, falls: pauses{Backoff: p.s.opts.Backoff}}
	defer w.release()
	if def, _ := p.definition(); def != nil {
		inst, err := p.runnerFor(def).Find(ctx)
		if err != nil {
			p.log.Warn("cannot look for the plugin's process", "error", err)
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
		w.log.Warn("cannot let go of the plugin's process", "error", err)
	}
	w.inst = nil
}

// drop takes the client away from those who use it.
func (w *worker) drop() {
	client := w.use(nil)
	if client == nil {
		return
	}
	if err := client.Close(); err != nil {
		w.log.Warn("cannot close the plugin's client", "error", err)
	}
}

// apply does what due announced: it stops the plugin, for good if that was
// asked for, and puts a changed definition in force. It returns false when the
// plugin is no more.
func (w *worker) apply(ctx context.Context) bool {
	w.mu.Lock()
	next, halt, paused, started, nothing := w.next, w.halt, w.paused, w.halted && !w.halt, w.def == nil || w.force
	registered := w.def != nil && w.def.Registered
	w.mu.Unlock()
	if next != nil && next.def == nil && !nothing && len(w.inUse()) > 0 {
		next = nil // only who asked for a stop is heard: the volumes still need the plugin
	}
	// Before anything is stopped: an agent that dies on the way leaves one that
	// goes on with it.
	if err := w.save(ctx, func(r *volume.PluginRecord) { r.Stopped = halt && !paused }); err != nil {
		w.log.Warn("cannot store whether the plugin was stopped on purpose", "error", err)
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
	if !started {
		w.overlooked(ctx)
	}
	if !w.stop(ctx) {
		return true // the agent is told to end: the next one goes on from here
	}
	w.quiet(ctx)
	w.drop()
	w.falls.reset()
	w.setQuiet(false) // the door opens when the plugin is ready
	w.take(&w.restart)
	if next != nil && !w.adopt(ctx) {
		return false
	}
	w.settleHalt(halt)
	return true
}

// settleHalt notes that what was wanted of a stop is so now.
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

// adopt puts the definition that waits in force.
func (w *worker) adopt(ctx context.Context) bool {
	if w.s.remove(w.plugin) {
		w.clear()
		if rec := w.record(); rec.Definition == nil && !rec.Stopped {
			return false // a bad file that is gone
		}
		if err := w.save(ctx, func(r *volume.PluginRecord) { *r = forgotten(*r) }); err != nil {
			w.log.Warn("cannot store that the plugin was removed", "error", err)
		}
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next != nil && w.next.def != nil {
		w.def, w.next, w.force = w.next.def, nil, false
	}
	return true
}

// clear takes the socket of a plugin that is no more away, with its directory. Its
// state and log stay.
func (w *worker) clear() {
	for _, path := range []string{w.paths().socket, w.paths().socketDir} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			w.log.Warn("cannot remove what was the plugin's", "path", path, "error", err)
		}
	}
}

// stop ends the instance, if it is ours to end. It returns false if ctx ended
// before the instance did.
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
		w.log.Error("cannot stop the plugin", "error", err)
		if !w.rest(ctx, w.falls.fell(0), false) {
			return false
		}
	}
	w.gone()
	return true
}

// gone forgets an instance that has ended.
func (w *worker) gone() {
	if exit := w.inst.Exit(); exit != "" {
		w.mu.Lock()
		w.lastExit = exit
		w.mu.Unlock()
	}
	if err := w.inst.Release(); err != nil {
		w.log.Warn("cannot let go of the plugin's process", "error", err)
	}
	w.inst = nil
	w.runs(nil)
}

// broken waits for a file that can be read.
func (w *worker) broken(ctx context.Context, fault error) {
	w.take(&w.kick)
	w.must(w.m.refuse(fault.Error()))
	w.rest(ctx, 0, true)
}

// rest waits for d, or for ever if d is 0. It ends early when ctx does, which
// gives false, or, if it may be woken, when something is wanted.
func (w *worker) rest(ctx context.Context, d time.Duration, wakeable bool) bool {
	return w.restUntil(ctx, d, wakeable, nil)
}

// restUntil is rest that ends early, too, when over is closed.
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

// Why serve ended; anything else is why the plugin could not be started, or
// did not become ready in time.
var (
	errExited  = errors.New("exited")
	errHung    = errors.New("hangs")
	errRefused = errors.New("refused")
)

// serve takes the plugin from wherever it is to ready, keeps it there, and
// deals with its end. It returns true if that is because due said so.
func (w *worker) serve(ctx context.Context, def *volume.PluginDefinition) (due bool) {
	w.take(&w.kick)
	run := w.runnerFor(def)
	defer w.closeRefused()
	err := w.once(ctx, run, def)
	readyFor := time.Duration(0)
	if !w.readyT.IsZero() {
		readyFor, w.readyT = max(1, time.Since(w.readyT)), time.Time{}
	}
	switch {
	case ctx.Err() != nil:
	case errors.Is(err, errDue):
		return true
	case errors.Is(err, errRefused), unusable(err) && run.Owned():
		w.refused(ctx, run, def, err)
	case unusable(err):
		w.apart(ctx, def, err)
	case !run.Owned():
		w.unreachable(ctx, err, readyFor)
	case errors.Is(err, errReopened):
		w.another(ctx, err, readyFor)
	default:
		w.fell(ctx, err, readyFor)
	}
	return false
}

// once starts, or takes over, an instance and serves it until something ends
// that; the reason is never nil.
func (w *worker) once(ctx context.Context, run runner, def *volume.PluginDefinition) error {
	w.begin(run)
	if w.inst == nil {
		inst, err := w.obtain(ctx, run)
		if err != nil {
			return err
		}
		w.inst = inst
	}
	if another := w.runs(w.inst); another && !run.Owned() {
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

// obtain starts an instance, unless one is found to run: a start that failed
// half-way leaves one behind.
func (w *worker) obtain(ctx context.Context, run runner) (instance, error) {
	inst, err := run.Find(ctx)
	if inst == nil && err == nil {
		inst, err = run.Start(ctx)
	}
	if inst == nil && err == nil {
		err = errExited
	}
	return inst, err
}

// begin enters the state in which a plugin is started.
func (w *worker) begin(run runner) {
	reason, now := "starting", w.m.snapshot()
	switch {
	case w.inst == nil && now.state == BackingOff:
		reason = "again, after: " + now.reason
	case w.inst != nil:
		reason = "found running; asking whether it is ready"
	case !run.Owned():
		reason = "connecting to " + run.Socket()
	}
	if s := now.state; s == Stopped || s == BackingOff || s == Failed {
		w.must(w.m.start(reason))
	}
}

// fell deals with a plugin that ended, or is of no use and is ended: a pause,
// and then the next one.
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

// longestUnreachable is the longest pause before a socket that comes and goes
// is tried again.
const longestUnreachable = 30 * time.Second

// unreachable deals with the end of an instance that somebody else runs.
func (w *worker) unreachable(ctx context.Context, why error, readyFor time.Duration) {
	w.must(w.m.unhealthy(why.Error()))
	w.drop()
	w.inst = nil
	w.runs(nil)
	pause := slowestLook
	if readyFor > 0 {
		pause = min(w.falls.fell(readyFor), longestUnreachable)
	}
	w.rest(ctx, pause, true)
}
