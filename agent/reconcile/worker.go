package reconcile

import (
	"context"
	"fmt"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// recheck is the interval at which a waiting volume is observed again. A hung mount, or a mount
// that is not ours, gives no signal when it goes away.
const recheck = 10 * time.Second

// work does steps until no step can be done now.
func (q *Queue) work(id string, e *entry) {
	defer q.workers.Done()
	defer q.release(id, e)
	for {
		q.mu.Lock()
		if q.stopped || !e.again {
			e.working = false
			q.mu.Unlock()
			return
		}
		e.again = false
		q.mu.Unlock()

		if e.lock(q.ctx) != nil {
			continue // the queue is stopping
		}
		more, news := q.step(id, e)
		e.unlock()
		if news {
			q.notify(id)
		}
		if more {
			q.mu.Lock()
			e.again = true
			q.mu.Unlock()
		}
	}
}

// step does one turn. It reports whether another step may be possible at once, and whether the
// waiters of the volume must be notified.
func (q *Queue) step(id string, e *entry) (more, news bool) {
	q.mu.Lock()
	e.stale = false // the record already contains every earlier request
	q.mu.Unlock()
	r, ok := q.o.Store.Volume(id)
	if !ok {
		return false, true
	}
	return q.turn(id, e, r)
}

// turn decides on one step for a record and does it.
func (q *Queue) turn(id string, e *entry, whole volume.Record) (more, news bool) {
	r, obs := q.look(e, whole)
	q.mu.Lock()
	e.prune(whole)
	q.complete(&obs, r, e)
	q.mu.Unlock()

	a := volume.Next(r, obs)
	switch a.Kind {
	case volume.Settled, volume.Wait:
		q.rest(id, e, r, a, obs)
		if a.Kind == volume.Settled && r.Leftover && q.o.Undone != nil {
			if waiting := q.o.Undone(r); waiting != "" {
				q.Wake(waiting)
			}
			if _, still := q.o.Store.Volume(id); still { // the removal could not be saved
				q.timers.set(id, time.Now().Add(recheck))
			}
		}

		return false, true
	}

	ctx, cancel := context.WithCancel(q.ctx)
	defer cancel()
	q.mu.Lock()
	long := a.RPC() || a.Kind == volume.Own
	if long && e.stale {
		q.mu.Unlock()
		return true, false
	}
	e.begin(a)
	if long {
		e.abandon = cancel
	}
	q.mu.Unlock()

	ctx = volume.WithProgress(ctx, func(words string) { q.progress(id, e, words) })
	done := q.forStorage(ctx, id, r, a, func() {
		out := q.do(ctx, id, e, r, a, obs)
		e.glimpsed(a, out, time.Now())
		q.finish(id, e, r, a, obs, out)
		news = out.Err != nil || settles(a)
	})
	if !done {
		q.mu.Lock()
		e.running, e.abandon = nil, nil
		q.mu.Unlock()
	}

	return true, news
}

// look observes the part of a record that a turn needs. After a possible change on the host, that
// is the whole record. For a new intent, it is the unsettled part.
func (q *Queue) look(e *entry, whole volume.Record) (volume.Record, volume.Observed) {
	if !whole.Held() { // nothing to observe or to do
		return whole, volume.Observed{}
	}

	q.mu.Lock()
	all := e.whole || q.down
	e.whole = false
	q.mu.Unlock()
	seen := e.fresh(time.Now())
	if r, focused := whole.Focus(e.misplaced); focused && !all {
		obs := q.o.Host.Observe(q.ctx, r.ToSee(), seen)
		if r.StandsFor(obs, e.misplaced) {
			return r, obs
		}
		seen = volume.Glimpse{}
	}

	obs := q.o.Host.Observe(q.ctx, whole.ToSee(), seen)
	e.misplaced = whole.OutOfPlace(obs)
	return whole, obs
}

// forStorage runs a step while no other call uses the volume's storage. Such a call may be in
// flight for a volume that was registered under another id, or for a record of pending calls. The
// latter record has its storage to itself during its turn. Dropping a claim that was never mounted
// (Free) makes no call, so it does not wait. forStorage reports whether the step ran. The step does
// not run if the wait is cancelled, or if the id belongs to another volume afterwards.
func (q *Queue) forStorage(ctx context.Context, id string, r volume.Record, a volume.Action, step func()) (done bool) {
	if r.Leftover || r.Volume.ExternalID == "" || a.Kind == volume.Free {
		step()
		return true
	}

	err := q.alone(ctx, storage(r), func() error {
		if now, ok := q.o.Store.Volume(id); ok && now.Same(r) {
			step()
			done = true
		}

		return nil
	})

	return done && err == nil
}

// settles reports whether a successful step may complete the change that a caller waits for: a
// claim is mounted or gone, or the volume is larger. All other steps lead to such a step, or to a
// turn without work.
func settles(a volume.Action) bool {
	switch a.Kind {
	case volume.NodePublish, volume.Own, volume.Bind, volume.Take, volume.Free, volume.ControllerExpand, volume.NodeExpand:
		return true
	default:
		return false
	}
}

// do performs a step. If an earlier step had to be on disk and is not, it first saves the record
// when the new step builds on it.
func (q *Queue) do(ctx context.Context, id string, e *entry, r volume.Record, a volume.Action, obs volume.Observed) volume.Outcome {
	if e.unsaved && building(r, a) {
		same := func(r volume.Record) volume.Record { return r }
		if err := q.o.Store.Intend(context.WithoutCancel(q.ctx), id, same); err != nil {
			return volume.Outcome{Err: volume.HostError(string(a.Kind), err), Unsent: true}
		}
		e.unsaved = false
	}

	return q.o.Host.Do(ctx, r, a, obs.Plugin)
}

// building reports whether a step builds on the recorded results of earlier steps. Such a step
// waits until they are on disk. After a crash, the next agent must know whether a mount replaced
// the recorded one, a wanted mount is being undone, or the volume is no longer attached. The
// undoing of an unwanted mount need not be recorded, because the stored claim already announces it.
func building(r volume.Record, a volume.Action) bool {
	switch a.Kind {
	case volume.NodeUnpublish:
		return r.Claims[a.Alloc].Wanted
	case volume.NodeUnstage:
		for _, c := range r.Claims {
			if c.Wanted {
				return true
			}
		}

		return false
	default:
		return a.Forward() || a.Kind == volume.ControllerUnpublish
	}
}

// complete adds the queue's own knowledge to an observation. The caller holds mu.
func (q *Queue) complete(obs *volume.Observed, r volume.Record, e *entry) {
	now := time.Now()
	obs.Halt, obs.Down = q.o.Halt, q.down
	obs.Plugin = q.o.Plugins.View(r.Volume.PluginID)
	obs.Parked = e.parked(now)
	if q.o.Blocked != nil && !r.Leftover {
		obs.Leftover = q.o.Blocked(r.Volume)
	}

	if obs.Leftover != "" {
		q.pending(obs, r)
	}

	if d := obs.Plugin.Info.Driver; r.Leftover && d != "" && d != r.Volume.Driver {
		obs.Plugin = obs.Plugin.Barred(fmt.Sprintf("it is driver %s now, and this is a volume of %s", d, r.Volume.Driver))
	}

	e.watched(obs, r, now)
	if _, ok := q.suspected(r.Key(), now); ok {
		obs.AtWork = atWork
	}
}

// pending adds to an observation the state of the pending calls that a forced deregister left for
// the same storage. The caller holds mu.
func (q *Queue) pending(obs *volume.Observed, r volume.Record) {
	if debt, ok := q.o.Store.Volume(storage(r)); ok {
		obs.Pending = &debt
	}
	if d, ok := q.entries[storage(r)]; ok {
		obs.PendingTry = d.attempt(func(volume.Action) bool { return true })
	}
	if at := obs.PendingTry; at != nil && at.Err != nil {
		obs.Leftover += fmt.Sprintf("; the last try failed: %v", at.Err)
	}
}

// watched adds to an observation whether the late effects in a record's watches can still occur.
// The deadline of a watch that an earlier agent recorded starts now.
func (e *entry) watched(obs *volume.Observed, r volume.Record, now time.Time) {
	for _, w := range r.Node.Watches {
		switch {
		case w.Attachment && e.attachUntil.IsZero():
			e.watchAttachment(now, obs.Plugin)
		case !w.Attachment && e.watchUntil.IsZero():
			e.watch(now, obs.Plugin)
		}
	}

	if e.watchOf == 0 {
		// This is the first view of the plugin since a restart of the agent. The process that is
		// found may be the one that still runs the call.
		e.watchOf = obs.Plugin.Incarnation
	}

	obs.WatchOver = now.After(e.watchUntil) || e.watchOf != obs.Plugin.Incarnation && obs.Plugin.ReadyFor(volume.NodePublish)
	obs.AttachmentOver = now.After(e.attachUntil)
}

// rest records that no step is possible now, and when to observe the volume again. The awaited
// change may come without a signal.
func (q *Queue) rest(id string, e *entry, r volume.Record, a volume.Action, obs volume.Observed) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if a.Kind == volume.Settled {
		e.settle()
		return
	}

	now := time.Now()
	at := e.nextDue(now)
	e.waiting(a, at)
	if a.Cause == volume.CauseHalted {
		return
	}
	if len(r.Node.Watches) > 0 {
		at = sooner(at, now.Add(watchInterval(obs.Plugin)))
	}

	q.timers.set(id, sooner(at, now.Add(recheck)))
}

// finish records the result of a step.
func (q *Queue) finish(id string, e *entry, r volume.Record, a volume.Action, obs volume.Observed, out volume.Outcome) {
	key := q.home(id, r)
	var evs []volume.Event
	kept, saving := false, volume.SaveWithNext
	apply := func(now volume.Record) (volume.Record, volume.Saving) {
		evs, saving = nil, volume.SaveWithNext
		if kept = now.Same(r); !kept {
			return now, saving // the id now belongs to another volume
		}
		next, made := volume.Apply(now, a, out)
		evs, saving = made, volume.Urgency(now, next)
		return next, saving
	}

	if a.Kind == volume.Plan || a.Kind == volume.Doubt {
		// These are intents: they must be on disk before any step relies on them.
		intent := func(now volume.Record) volume.Record { next, _ := apply(now); return next }
		if err := q.o.Store.Intend(context.WithoutCancel(q.ctx), key, intent); err != nil {
			out = volume.Outcome{Err: volume.HostError(string(a.Kind), err), Unsent: true}
		}
	} else {
		err := q.o.Store.Save(context.WithoutCancel(q.ctx), key, apply)

		// It became a record of pending calls during the save.
		if moved := q.home(id, r); !kept && moved != key {
			err = q.o.Store.Save(context.WithoutCancel(q.ctx), moved, apply)
		}
		if err != nil {
			e.unsaved = e.unsaved || saving == volume.SaveFirst
			q.o.Log.Error("a step was done but could not be saved; it is kept in memory and saved with the next change", "volume", id, "step", a.Kind, "error", err)
		}
	}

	now, moved := time.Now(), q.home(id, r)
	q.mu.Lock()
	if q.yielded(a, out) {
		e.running, e.abandon = nil, nil
	} else {
		e.end(a, out, now)
	}

	e.expect(a, out, now, obs.Plugin)
	if _, owed := q.o.Store.Volume(moved); owed && moved != id {
		q.entry(moved).expect(a, out, now, obs.Plugin) // the pending calls wait for the late effect
	}
	q.mu.Unlock()

	q.log(id, a, out)
	q.o.Events(q.cutShort(evs, a, out))
}

// yielded reports whether a step was cancelled in favour of another one.
func (q *Queue) yielded(a volume.Action, out volume.Outcome) bool {
	return a.Kind == volume.Own && out.Err != nil && out.Err.Code == "Canceled" && q.ctx.Err() == nil
}

// cutShort rewords the events of a step that was cancelled because the agent stops. That is not a
// failure, and the next agent continues the step.
func (q *Queue) cutShort(evs []volume.Event, a volume.Action, out volume.Outcome) []volume.Event {
	switch {
	case out.Err == nil || out.Err.Code != "Canceled":
		return evs
	case q.yielded(a, out):
		return nil // a claim is being detached, which has already been reported
	case q.ctx.Err() == nil:
		return evs
	}

	for i := range evs {
		if evs[i].Type == "step-failed" {
			evs[i].Type = "step-interrupted"
			evs[i].Message = string(a.Kind) + " was broken off, because the agent is being stopped; the next one goes on with it"
		}
	}

	return evs
}

// home returns the key that a record has now. If a volume is deregistered by force during a call,
// its record may continue as a record of pending calls. The result of the call belongs there.
func (q *Queue) home(id string, r volume.Record) string {
	if now, ok := q.o.Store.Volume(id); ok && now.Same(r) {
		return id
	}
	r.Leftover = true
	return r.Key()
}

// expect starts to wait for the late effect that a step may have.
func (e *entry) expect(a volume.Action, out volume.Outcome, now time.Time, p volume.PluginView) {
	switch {
	case !late(a, out):
	case attaches(a):
		e.watchAttachment(now, p)
	default:
		e.watch(now, p)
	}
}

// late reports whether a call may still take effect later. A call that makes something may, unless
// it was refused. A call that undoes something may if it was given up. ControllerUnpublishVolume
// may even if the plugin answered with an error, because the storage system behind the plugin
// continues.
func late(a volume.Action, out volume.Outcome) bool {
	if out.Err == nil || out.Unsent || !a.RPC() {
		return false
	}
	return (a.Forward() || attaches(a)) && out.Err.Uncertain() || !out.Err.Answered
}

// attaches reports whether a step is a ControllerPublish or ControllerUnpublish.
func attaches(a volume.Action) bool {
	return a.Kind == volume.ControllerPublish || a.Kind == volume.ControllerUnpublish
}

// progress records the progress of the current step.
func (q *Queue) progress(id string, e *entry, words string) {
	q.mu.Lock()
	if e.running != nil {
		e.running.Progress = words
	}
	q.mu.Unlock()
	q.notify(id)
}

// log writes debug messages about single steps. Operators get events instead, and repeated events
// are held back.
func (q *Queue) log(id string, a volume.Action, out volume.Outcome) {
	if !q.o.Log.IsDebug() {
		return
	}

	l := q.o.Log.With("volume", id, "step", a.Kind, "alloc", a.Alloc)
	if out.Err != nil {
		l.Debug("step failed", "code", out.Err.Code, "message", out.Err.Message, "retry", out.Err.Retry)
		return
	}

	l.Debug("step done")
}
