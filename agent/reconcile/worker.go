package reconcile

import (
	"context"
	"fmt"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// recheck is the interval at which the queue observes a waiting volume again. The kernel sends no
// signal when a hung mount or a mount of another program disappears.
const recheck = 10 * time.Second

// worker runs the steps of one volume.
type worker struct {
	q  *Queue
	id string
	e  *entry
}

// run runs the steps of a volume until no step is possible now.
func (w *worker) run() {
	defer w.q.workers.Done()
	defer w.q.release(w.id, w.e)
	for {
		w.q.mu.Lock()
		if w.q.stopped || !w.e.again {
			w.e.working = false
			w.q.mu.Unlock()
			return
		}
		w.e.again = false
		w.q.mu.Unlock()

		if w.e.lock(w.q.ctx) != nil {
			continue // the queue is stopping
		}
		more, news := w.runTurn()
		w.e.unlock()
		if news {
			w.q.notify(w.id)
		}
		if more {
			w.q.mu.Lock()
			w.e.again = true
			w.q.mu.Unlock()
		}
	}
}

// runTurn chooses the next step and runs it. The result more reports whether another step may be
// possible at once. The result news reports whether the waiting callers must be notified.
func (w *worker) runTurn() (more, news bool) {
	w.q.mu.Lock()
	w.e.stale = false // the record that this turn reads contains every earlier request
	w.q.mu.Unlock()
	whole, ok := w.q.o.Store.Volume(w.id)
	if !ok {
		return false, true
	}

	r, obs := w.observe(whole)
	w.q.mu.Lock()
	w.e.prune(whole)
	w.addState(&obs, r)
	w.q.mu.Unlock()

	a := volume.Next(r, obs)
	switch a.Kind {
	case volume.Settled, volume.Wait:
		w.recordRest(r, a, obs)
		if a.Kind == volume.Settled && r.Leftover && w.q.o.Undone != nil {
			if waiting := w.q.o.Undone(r); waiting != "" {
				w.q.Wake(waiting)
			}
			// the store could not save the deletion of the record
			if _, still := w.q.o.Store.Volume(w.id); still {
				w.q.timers.set(w.id, time.Now().Add(recheck))
			}
		}

		w.forgetIdle(a, r)
		return false, true
	}

	ctx, cancel := context.WithCancel(w.q.ctx)
	defer cancel()
	w.q.mu.Lock()
	long := a.RPC() || a.Kind == volume.Own
	if long && w.e.stale {
		w.q.mu.Unlock()
		return true, false
	}
	w.e.begin(a)
	if long {
		w.e.abandon = cancel
	}
	w.q.mu.Unlock()

	ctx = volume.WithProgress(ctx, w.recordProgress)
	done := w.forStorage(ctx, r, a, func() {
		out := w.perform(ctx, r, a, obs)
		w.e.glimpsed(a, out, time.Now())
		w.saveResult(r, a, obs, out)
		news = out.Err != nil || settles(a)
	})
	if !done {
		w.q.mu.Lock()
		w.e.running, w.e.abandon = nil, nil
		w.q.mu.Unlock()
	}

	return true, news
}

// observe observes the paths that a turn needs. If the host may have changed, observe observes all
// paths of the record. For a new intent, it skips the paths of settled claims.
func (w *worker) observe(whole volume.Record) (volume.Record, volume.Observed) {
	if !whole.Held() { // the volume has no mount and no device on this host
		return whole, volume.Observed{}
	}

	w.q.mu.Lock()
	all := w.e.whole || w.q.down
	w.e.whole = false
	w.q.mu.Unlock()
	seen := w.e.fresh(time.Now())
	if r, focused := volume.FocusRecord(whole, w.e.misplaced); focused && !all {
		obs := w.q.o.Host.Observe(w.q.ctx, volume.PathsToObserve(r), seen)
		if volume.FocusIsValid(r, obs, w.e.misplaced) {
			return r, obs
		}
		seen = volume.Glimpse{}
	}

	obs := w.q.o.Host.Observe(w.q.ctx, volume.PathsToObserve(whole), seen)
	w.e.misplaced = volume.MisplacedClaims(whole, obs)
	return whole, obs
}

// forStorage runs a step while no other call uses the same storage. Another such call may be
// running for a volume that had a different id before, or for a leftover record. The turn of a
// leftover record already holds the storage. Dropping a claim that was never mounted (Free) needs
// no call, so it does not wait.
//
// forStorage reports whether it ran the step. It does not run the step if ctx ends first, or if the
// id belongs to a different volume after the wait.
func (w *worker) forStorage(ctx context.Context, r volume.Record, a volume.Action, step func()) (done bool) {
	if r.Leftover || r.Volume.ExternalID == "" || a.Kind == volume.Free {
		step()
		return true
	}

	err := w.q.holdEntry(ctx, storage(r), func() error {
		if now, ok := w.q.o.Store.Volume(w.id); ok && now.Same(r) {
			step()
			done = true
		}

		return nil
	})

	return done && err == nil
}

// settles reports whether a successful step may be the change that a caller is waiting for: a claim
// is mounted or gone, or the volume has grown. After any other step, the queue runs either a step
// of this kind or a turn without work.
func settles(a volume.Action) bool {
	switch a.Kind {
	case call.NodePublish, volume.Own, volume.Bind, volume.Take, volume.Free, call.ControllerExpand, call.NodeExpand:
		return true
	default:
		return false
	}
}

// perform performs a step. If an earlier result is not on disk yet, and the new step needs this
// result on disk, perform first saves the record.
func (w *worker) perform(ctx context.Context, r volume.Record, a volume.Action, obs volume.Observed) volume.Outcome {
	if w.e.unsaved && building(r, a) {
		same := func(r volume.Record) volume.Record { return r }
		if err := w.q.o.Store.Intend(context.WithoutCancel(w.q.ctx), w.id, same); err != nil {
			return volume.Outcome{Err: volume.HostError(string(a.Kind), err), Unsent: true}
		}
		w.e.unsaved = false
	}

	return w.q.o.Host.Do(ctx, r, a, obs.Plugin)
}

// building reports whether a step may start only when the results of earlier steps are on disk.
// After a crash, the next agent needs these results. They show whether a new mount has replaced the
// recorded mount, and whether a wanted mount is being unmounted. They also show whether the volume is
// attached, and whether the host gives up its hold. If a claim is detached, its stored record already shows
// that the unmount follows, so nothing must be saved first.
func building(r volume.Record, a volume.Action) bool {
	switch a.Kind {
	case call.NodeUnpublish:
		return r.Claims[a.Alloc].Wanted
	case call.NodeUnstage:
		for _, c := range r.Claims {
			if c.Wanted {
				return true
			}
		}

		return false
	default:
		return a.Forward() || a.Kind == call.ControllerUnpublish || a.Kind == volume.GiveUp
	}
}

// addState adds the state of the queue to an observation of the host. The caller holds Queue.mu.
func (w *worker) addState(obs *volume.Observed, r volume.Record) {
	now := time.Now()
	obs.Halt, obs.Down = w.q.o.Halt, w.q.down
	obs.Plugin = w.q.o.Plugins.View(r.Volume.PluginID)
	obs.Parked = w.e.parked(now)
	if w.q.o.Blocked != nil && !r.Leftover {
		obs.Leftover = w.q.o.Blocked(r.Volume)
	}

	if obs.Leftover != "" {
		w.addPendingCalls(obs, r)
	}

	if d := obs.Plugin.Info.Driver; r.Leftover && d != "" && d != r.Volume.Driver {
		obs.Plugin = obs.Plugin.Barred(fmt.Sprintf("its driver is now %s, but the volume belongs to %s", d, r.Volume.Driver))
	}

	if r.Volume.Shared || r.Rescoping {
		w.addCluster(obs, r)
	}

	w.e.watched(obs, r, now)
	if _, ok := w.q.suspects.until(r.Key(), w.q.o.Plugins, now); ok {
		obs.AtWork = atWork
	}
}

// addPendingCalls adds to an observation the pending calls for the same storage, which a forced
// deregister may have left. The caller holds Queue.mu.
func (w *worker) addPendingCalls(obs *volume.Observed, r volume.Record) {
	if debt, ok := w.q.o.Store.Volume(storage(r)); ok {
		obs.Pending = &debt
	}
	if d, ok := w.q.entries[storage(r)]; ok {
		obs.PendingTry = d.attempt(func(volume.Action) bool { return true })
	}
	if at := obs.PendingTry; at != nil && at.Err != nil {
		obs.Leftover += fmt.Sprintf("; the last try failed: %v", at.Err)
	}
}

// watched adds to an observation which late effects are still possible, according to the watches in
// the record. If an earlier agent recorded a watch, the wait for its late effect starts now.
func (e *entry) watched(obs *volume.Observed, r volume.Record, now time.Time) {
	for _, w := range r.Node.Watches {
		switch {
		case w.Attachment && e.attachUntil.IsZero():
			e.watchAttachment(now, obs.Plugin)
		case !w.Attachment && e.watchUntil.IsZero():
			e.watch(now, obs.Plugin)
		}
	}

	e.correctWait(obs.Plugin)

	if e.watchOf == 0 {
		// The queue sees this plugin for the first time since the agent started. The call whose
		// late effect is watched may still be running in this plugin process.
		e.watchOf = obs.Plugin.Incarnation
	}

	obs.WatchOver = now.After(e.watchUntil) || e.watchOf != obs.Plugin.Incarnation && obs.Plugin.ReadyFor(call.NodePublish)
	obs.AttachmentOver = now.After(e.attachUntil)
}

// recordRest records that no step is possible now. It sets the time of the next observation,
// because the queue may get no signal of the change for which the volume waits.
func (w *worker) recordRest(r volume.Record, a volume.Action, obs volume.Observed) {
	w.q.mu.Lock()
	defer w.q.mu.Unlock()
	if a.Kind == volume.Settled {
		w.e.settle()
		return
	}

	now := time.Now()
	at := w.e.nextDue(now)
	w.e.waiting(a, at)
	if a.Cause == volume.CauseHalted {
		return
	}
	if len(r.Node.Watches) > 0 {
		at = sooner(at, now.Add(watchInterval(obs.Plugin)))
	}

	w.q.timers.set(w.id, sooner(at, now.Add(recheck)))
}

// saveResult records the result of a step.
func (w *worker) saveResult(r volume.Record, a volume.Action, obs volume.Observed, out volume.Outcome) {
	key := w.currentKey(r)
	var evs []volume.Event
	kept, saving := false, volume.SaveWithNext
	apply := func(now volume.Record) (volume.Record, volume.Saving) {
		evs, saving = nil, volume.SaveWithNext
		if kept = now.Same(r); !kept {
			return now, saving // the id now belongs to a different volume
		}
		next, made := volume.Apply(now, a, out)
		evs, saving = made, volume.Urgency(now, next)
		return next, saving
	}

	if a.Kind == volume.Plan || a.Kind == volume.Doubt {
		// Plan and Doubt are intents. An intent must be on disk before a step relies on it.
		intent := func(now volume.Record) volume.Record { next, _ := apply(now); return next }
		if err := w.q.o.Store.Intend(context.WithoutCancel(w.q.ctx), key, intent); err != nil {
			out = volume.Outcome{Err: volume.HostError(string(a.Kind), err), Unsent: true}
		}
	} else {
		err := w.q.o.Store.Save(context.WithoutCancel(w.q.ctx), key, apply)

		// During the save, a forced deregister may have replaced the record with a leftover record.
		if moved := w.currentKey(r); !kept && moved != key {
			err = w.q.o.Store.Save(context.WithoutCancel(w.q.ctx), moved, apply)
		}
		if err != nil {
			w.e.unsaved = w.e.unsaved || saving == volume.SaveFirst
			w.q.o.Log.Error("cannot save the result of a step; the agent keeps it in memory and saves it with the next change", "volume", w.id, "step", a.Kind, "error", err)
		}
	}

	now, moved := time.Now(), w.currentKey(r)
	w.q.mu.Lock()
	if w.hasYielded(a, out) {
		w.e.running, w.e.abandon = nil, nil
	} else {
		w.e.end(a, out, now)
	}

	w.e.expect(a, out, now, obs.Plugin)
	if _, owed := w.q.o.Store.Volume(moved); owed && moved != w.id {
		// the leftover record must also wait for the late effect
		w.q.entry(moved).expect(a, out, now, obs.Plugin)
	}
	w.q.mu.Unlock()

	w.logStep(a, out)
	w.q.o.Events(w.markInterrupted(evs, a, out))
}

// hasYielded reports whether the queue cancelled a step in favour of another step.
func (w *worker) hasYielded(a volume.Action, out volume.Outcome) bool {
	return a.Kind == volume.Own && out.Err != nil && out.Err.Code == volume.CodeCanceled && w.q.ctx.Err() == nil
}

// markInterrupted changes the events of a step that was cancelled because the agent is stopping.
// Such a step counts as interrupted, not as failed, because the next agent process continues it.
func (w *worker) markInterrupted(evs []volume.Event, a volume.Action, out volume.Outcome) []volume.Event {
	switch {
	case out.Err == nil || out.Err.Code != volume.CodeCanceled:
		return evs
	case w.hasYielded(a, out):
		return nil // the detach for which the step was cancelled has its own event
	case w.q.ctx.Err() == nil:
		return evs
	}

	for i := range evs {
		if evs[i].Type == volume.EventStepFailed {
			evs[i].Type = volume.EventStepInterrupted
			evs[i].Message = string(a.Kind) + " was interrupted because the agent is stopping; the next agent process continues it"
		}
	}

	return evs
}

// currentKey returns the key under which the record is stored now. If a forced deregister replaced
// the record with a leftover record during a call, the result of the call belongs to the leftover
// record.
func (w *worker) currentKey(r volume.Record) string {
	if now, ok := w.q.o.Store.Volume(w.id); ok && now.Same(r) {
		return w.id
	}
	r.Leftover = true
	return r.Key()
}

// expect starts a watch if the step may still take effect later.
func (e *entry) expect(a volume.Action, out volume.Outcome, now time.Time, p plugin.View) {
	switch {
	case !late(a, out):
	case attaches(a):
		e.watchAttachment(now, p)
	default:
		e.watch(now, p)
	}
}

// late reports whether a call may take effect after it has ended. A call that makes something may
// do so unless the plugin refused it. A call that undoes something may do so if the agent stopped
// waiting for it. ControllerUnpublishVolume may do so even after an error, because the storage
// system behind the plugin may continue.
func late(a volume.Action, out volume.Outcome) bool {
	if out.Err == nil || out.Unsent || !a.RPC() {
		return false
	}
	return (a.Forward() || attaches(a)) && out.Err.Uncertain() || !out.Err.Answered
}

// attaches reports whether a step is a ControllerPublish or a ControllerUnpublish.
func attaches(a volume.Action) bool {
	return a.Kind == call.ControllerPublish || a.Kind == call.ControllerUnpublish
}

// recordProgress records the progress of the current step.
func (w *worker) recordProgress(words string) {
	w.q.mu.Lock()
	if w.e.running != nil {
		w.e.running.Progress = words
	}
	w.q.mu.Unlock()
	w.q.notify(w.id)
}

// logStep logs single steps at debug level. Operators read events instead, because the event log
// limits repeated events.
func (w *worker) logStep(a volume.Action, out volume.Outcome) {
	if !w.q.o.Log.IsDebug() {
		return
	}

	l := w.q.o.Log.With("volume", w.id, "step", a.Kind, "alloc", a.Alloc)
	if out.Err != nil {
		l.Debug("step failed", "code", out.Err.Code, "message", out.Err.Message, "retry", out.Err.Retry)
		return
	}

	l.Debug("step done")
}

// Look observes a volume for a status request, and adds the state of the queue to the observation.
// If the volume needs a step, Look starts a worker.
func (q *Queue) Look(ctx context.Context, r volume.Record) (volume.Observed, *volume.Attempt) {
	obs := q.o.Host.Observe(ctx, r, volume.Glimpse{})
	_, exists := q.o.Store.Volume(r.Key())
	q.mu.Lock()
	defer q.mu.Unlock()
	if !exists {
		(&worker{q, r.Key(), newEntry()}).addState(&obs, r)
		return obs, nil
	}

	e, known := q.entries[r.Key()]
	if !known { // a status request must not create an entry
		e = newEntry()
	}

	(&worker{q, r.Key(), e}).addState(&obs, r)
	if k := volume.Next(r, obs).Kind; k != volume.Settled && k != volume.Wait {
		e := q.entry(r.Key())
		e.whole = true
		q.startTurn(r.Key(), e)
	}

	return obs, e.foremost(r)
}

// InPlace reports whether the mounts of a claim are still the mounts that the agent made for it.
func (q *Queue) InPlace(ctx context.Context, r volume.Record, alloc string) bool {
	c := r.Claims[alloc]
	r.Claims = map[string]volume.Claim{alloc: c}
	r.Node.Watches, r.Node.StagingPath = nil, ""
	obs := q.o.Host.Observe(ctx, r, volume.Glimpse{})
	return c.InPlace(obs.Targets[alloc], obs.Binds[alloc])
}
