package supervisor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/volagent/volagent/agent/supervisor/part"
	"github.com/volagent/volagent/agent/supervisor/runner"
	"github.com/volagent/volagent/volmgr/plugin"
)

// worker drives one part of a plugin from its creation to its removal, in one goroutine.
type worker struct {
	*supervised
	checker *checker
	inst    runner.Instance // the running instance; nil if there is none
	falls   pauses
}

// drive drives a part until ctx ends. After that, the part's instance keeps running.
func drive(ctx context.Context, p *supervised) {
	w := &worker{supervised: p, checker: &checker{supervised: p}, falls: pauses{Backoff: p.opts.Backoff}}
	defer w.release()

	if run := p.runner(); run != nil {
		inst, err := run.Find(ctx)
		if err != nil {
			p.logger.Warn("cannot search for the plugin's process", "error", err)
		}

		w.inst = inst
	}

	for due := false; ctx.Err() == nil; {
		step, def, fault := w.decide(due)
		due = false
		switch step {
		case part.End:
			w.finish(w.ends.Load())
			return
		case part.Switch:
			if !w.follow(ctx) {
				return
			}

		case part.Rest:
			w.take(&w.desired.Retry)
			w.rest(ctx, 0, nil)
		case part.Refuse:
			w.broken(ctx, fault)
		default:
			due = w.serve(ctx, def)
		}
	}
}

// decide returns the next step of the part, together with the definition or the error that the step
// needs. The argument due is true if the previous step ended because the method due returned true.
func (w *worker) decide(due bool) (part.Step, *plugin.Definition, error) {
	due = due || w.due()
	w.mu.Lock()
	defer w.mu.Unlock()

	step := part.Next(w.desired, w.actual, w.ends.Load() != nil, part.Used)
	if due && step != part.End {
		step = part.Switch
	}

	return step, w.actual.Definition, w.desired.Fault
}

// release stops monitoring the instance and leaves it running.
func (w *worker) release() {
	w.drop()
	if w.inst == nil {
		return
	}
	if err := w.inst.Release(); err != nil {
		w.logger.Warn("cannot stop monitoring the plugin's process", "error", err)
	}

	w.inst = nil
}

// drop closes the client, so that callers no longer get it.
func (w *worker) drop() {
	client := w.use(nil)
	if client == nil {
		return
	}
	if err := client.Close(); err != nil {
		w.logger.Warn("cannot close the plugin's client", "error", err)
	}
}

// follow carries out the step Switch. It returns false if the plugin was removed.
func (w *worker) follow(ctx context.Context) bool {
	use := part.Unused
	if len(w.needed()) > 0 {
		use = part.Used
	}

	w.mu.Lock()
	plan, run := part.NewPlan(w.desired, w.actual, use), w.run
	w.mu.Unlock()
	if err := w.record.save(ctx, func(r *plugin.Record) { r.Stopped = plan.Wish == part.Stop }); err != nil {
		w.logger.Warn("cannot store whether the plugin was stopped on purpose", "error", err)
	}

	w.must(w.m.Stop(plan.Why))
	if run != nil && w.inst == nil && plan.Sweep {
		w.sweep(ctx, run)
	}

	if !w.stop(ctx) {
		return true // the agent is ending; the next agent carries out the step
	}
	if run != nil {
		run.Quiet(ctx)
	}

	w.drop()
	w.falls.reset()
	w.setQuiet(false) // end the block of new calls; they fail until the plugin is ready
	if plan.Adopt && !w.adopt(ctx) {
		return false
	}

	w.settle(plan)
	return true
}

// settle records that the worker has carried out a plan.
func (w *worker) settle(plan part.Plan) {
	if plan.Wish.Halts() {
		w.must(w.m.Stop(onRequest(w.id)))
	}

	w.mu.Lock()
	w.desired.Settle(&w.actual, plan)
	w.mu.Unlock()
	if plan.Wish.Halts() {
		w.siblings.notify(w.supervised)
	}
}

// sweep takes over an instance that runs although its start failed. It also removes the remains of
// an instance that has ended.
func (w *worker) sweep(ctx context.Context, run runner.Runner) {
	inst, err := run.Sweep(ctx)
	if w.inst = inst; err != nil && ctx.Err() == nil {
		w.logger.Warn("cannot find out whether the plugin has leftovers", "error", err)
	}
}

// adopt puts the pending definition into force. It returns false if the plugin was removed.
func (w *worker) adopt(ctx context.Context) bool {
	if w.siblings.remove(w.supervised) {
		w.clear()
		if rec := w.record.get(); rec.Definition == nil && !rec.Stopped {
			return false // the part never had a valid file, and its bad file has been removed
		}
		if err := w.record.save(ctx, func(r *plugin.Record) { *r = forgotten(*r) }); err != nil {
			w.logger.Warn("cannot store that the plugin was removed", "error", err)
		}

		return false
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	if d := &w.desired; d.Change != nil && !d.Leaves() {
		w.define(d.Change.Definition)
		d.Change, d.Force = nil, false
	}

	return true
}

// clear removes the socket of a removed plugin, and the directory of the socket. It keeps the state
// directory and the log.
func (w *worker) clear() {
	for _, path := range []string{w.paths.Socket, w.paths.SocketDir} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			w.logger.Warn("cannot remove the socket of a removed plugin", "path", path, "error", err)
		}
	}
}

// stop ends the instance if this agent runs it. It returns false if ctx ended first.
func (w *worker) stop(ctx context.Context) bool {
	if w.inst == nil {
		return true
	}

	for {
		err := w.inst.Stop(ctx, w.opts.StopGrace)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return false
		}

		w.logger.Error("cannot stop the plugin", "error", err)
		select {
		case <-ctx.Done():
			return false
		case <-time.After(w.falls.fell(0)):
		}
	}

	w.gone()
	return true
}

// gone records how the instance ended, and then forgets the instance.
func (w *worker) gone() {
	if exit := w.inst.Exit(); exit != "" {
		w.mu.Lock()
		w.actual.LastExit = exit
		w.mu.Unlock()
	}

	if err := w.inst.Release(); err != nil {
		w.logger.Warn("cannot stop monitoring the plugin's process", "error", err)
	}

	w.inst = nil
	w.runs(nil)
}

// broken marks the plugin as failed because its file cannot be used, and waits until the file
// changes.
func (w *worker) broken(ctx context.Context, fault error) {
	w.take(&w.desired.Retry)
	w.must(w.m.Refuse(fault.Error()))
	w.rest(ctx, 0, nil)
}

// rest waits for the duration d, or without a time limit if d is 0. It returns early when the
// channel over is closed, or when the desired state requires a switch or a retry. It returns false
// if ctx has ended.
func (w *worker) rest(ctx context.Context, d time.Duration, over <-chan struct{}) bool {
	var timer <-chan time.Time
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		timer = t.C
	}

	for {
		select {
		case <-ctx.Done():
			return false
		case <-over:
			return true
		case <-timer:
			return true
		case <-w.wake:
			if w.take(&w.desired.Retry) || w.due() {
				return true
			}
		}
	}
}

// serve starts the plugin from any state, keeps it ready, and handles the end of its instance. It
// returns true if it ended because the method due returned true.
func (w *worker) serve(ctx context.Context, def *plugin.Definition) (due bool) {
	w.take(&w.desired.Retry)
	run := w.runner()
	s := &session{checker: w.checker, run: run.Traits(), def: def}
	defer s.closeRefused()

	readyFor, err := w.once(ctx, run, s)
	switch {
	case ctx.Err() != nil:
	case errors.Is(err, runner.ErrDue):
		return true
	case errors.Is(err, runner.ErrRefused), unusable(err) && s.run.Owned:
		w.refused(ctx, s, err)
	case unusable(err):
		w.apart(ctx, def, err)
	case !s.run.Owned:
		w.unreachable(ctx, err, readyFor)
	case errors.Is(err, errReopened):
		w.reopened(ctx, err, readyFor)
	default:
		w.fell(ctx, err, readyFor)
	}

	return false
}

// once starts an instance, or takes over a running one, and monitors it until it ends or must be
// stopped. It returns how long the instance was ready, or 0 if the instance never became ready. The
// returned error is the reason for the end, and is never nil.
func (w *worker) once(ctx context.Context, run runner.Runner, s *session) (readyFor time.Duration, err error) {
	w.begin(s.run)
	if w.inst == nil {
		inst, err := w.obtain(ctx, run)
		if err != nil {
			return 0, err
		}

		w.inst = inst
	}

	if another := w.runs(w.inst); another && !s.run.Owned {
		w.m.Replaced()
	}

	s.inst = w.inst
	client, err := s.settle(ctx)
	if err != nil {
		return 0, err
	}

	w.use(client)
	since := time.Now()
	w.must(w.m.Ready())
	err = s.watch(ctx, client)
	return max(1, time.Since(since)), err
}

// obtain returns the running instance, or starts one. An earlier start that failed may have left an
// instance running.
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

// begin changes the state to starting, unless the state is already starting or unhealthy.
func (w *worker) begin(run runner.Traits) {
	reason, now := "starting", w.m.Snapshot()
	switch {
	case w.inst == nil && now.State == part.BackingOff:
		reason = "again, after: " + now.Reason
	case w.inst != nil:
		reason = "found running; asking whether it is ready"
	case !run.Owned:
		reason = "connecting to " + run.Socket
	}

	if s := now.State; s == part.Stopped || s == part.BackingOff || s == part.Failed {
		w.must(w.m.Start(reason))
	}
}

// finish ends the instance because the host is shutting down, unless the caller of End wants to
// keep the plugin running.
func (w *worker) finish(e *hostEnd) {
	if run := w.runner(); w.inst == nil || run == nil || !run.Traits().Ends || e.keep(w.id) {
		return
	}

	w.must(w.m.Stop("this host is going down"))
	w.drop()
	if err := w.inst.Stop(e.ctx, w.opts.StopGrace); err != nil {
		w.logger.Warn("the plugin has not ended in time; it ends with the host", "error", err)
		return
	}

	w.gone()
}
