package supervisor

import (
	"context"
	"errors"
	"time"

	"github.com/volagent/volagent/volmgr/plugin"
)

// Each method below handles one way in which a session with an instance can end.

// pause returns how long to wait before an ended plugin is started again. If another program
// restarts the plugin, the result is zero, as long as each instance becomes ready.
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

// fell handles the end of an instance. If the instance still runs but cannot be used, fell stops
// it. fell then waits until it is time for the next start.
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
	w.must(w.m.Lost(reason, next))
	if errors.Is(why, errExited) && w.inst != nil {
		w.gone()
	} else if !w.stop(ctx) {
		return
	}

	w.drop()
	if left := time.Until(next); left > 0 {
		w.rest(ctx, left, nil)
	}
}

// firstUnreachable is the pause before the first retry of a plugin that this agent does not run.
const firstUnreachable = time.Second

// longestUnreachable is the longest pause between retries for a plugin that this agent does not
// run.
const longestUnreachable = 30 * time.Second

// unreachable handles a lost connection to an instance that this agent does not run.
func (w *worker) unreachable(ctx context.Context, why error, readyFor time.Duration) {
	w.must(w.m.Unhealthy(why.Error()))
	w.drop()
	w.inst = nil
	w.runs(nil)
	pause := firstUnreachable
	if readyFor > 0 {
		pause = min(w.falls.fell(readyFor), longestUnreachable)
	}

	w.rest(ctx, pause, nil)
}

// apartLook is the interval at which the agent checks a socket whose instance does not share
// mounts, because a new instance may have replaced this instance.
const apartLook = time.Second

// apart handles an instance that this agent does not run and that does not share mounts with the
// host. It checks the plugin again at each probe interval, and at once when the socket has been
// replaced.
func (w *worker) apart(ctx context.Context, def *plugin.Definition, why error) {
	w.must(w.m.Unhealthy(why.Error()))
	w.drop()
	inst, again := w.inst, time.Now().Add(def.ProbeInterval)
	for {
		before := time.Now()
		if !w.rest(ctx, min(apartLook, def.ProbeInterval), nil) || inst.Stale() || time.Now().After(again) || time.Since(before) < apartLook {
			break
		}
	}

	w.inst = nil
	w.runs(nil)
}

// reopened handles an instance that has replaced its socket. The server may have lost its state. So
// the agent counts a new incarnation, and the plugin must identify itself again.
func (w *worker) reopened(ctx context.Context, why error, readyFor time.Duration) {
	w.must(w.m.Unhealthy(why.Error()))
	w.drop()
	w.m.Replaced()
	w.renew()
	w.rest(ctx, min(w.falls.fell(readyFor), longestUnreachable), nil)
}

// refused handles an instance that must not be used. If this agent runs the instance and no volume
// uses it, the agent stops it. The plugin then stays failed until an operator fixes the problem.
// Otherwise the instance keeps running. When it has ended or was replaced, the agent checks the
// plugin again.
func (w *worker) refused(ctx context.Context, s *session, why error) {
	w.drop()
	w.must(w.m.Refuse(why.Error()))
	if s.run.Owned && !w.holds() && !w.stop(ctx) {
		return
	}

	switch {
	case w.inst == nil:
		w.rest(ctx, 0, nil)
	case s.run.Owned:
		w.outlast(ctx, w.inst.Done())
	default:
		w.outlastForeign(ctx, s)
	}
}

// outlast waits until a refused instance of this agent has ended.
func (w *worker) outlast(ctx context.Context, ended <-chan struct{}) {
	if !w.rest(ctx, 0, ended) {
		return
	}
	if isClosed(ended) {
		w.gone()
		// Also wait before the next start, because the next instance may be refused, too.
		w.rest(ctx, w.falls.fell(0), nil)
	}
}

// outlastForeign waits until a refused instance that this agent does not run has ended, or until
// another instance serves its socket. If systemd opened the socket for the plugin, the socket stays
// the same. Then only the loss of the connection shows that the instance has ended.
func (w *worker) outlastForeign(ctx context.Context, s *session) {
	ended := w.inst.Done()
	if s.refused != nil {
		lost, stop := watchConnection(ctx, s.refused)
		defer stop()
		ended = lost
	}

	for w.rest(ctx, s.def.ProbeInterval, ended) {
		if isClosed(ended) || w.inst.Stale() || w.due() {
			break
		}
	}

	w.inst = nil
}

// isClosed reports whether a channel is closed.
func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
