package reconcile

import (
	"context"
	"fmt"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// recheck is the interval at which the queue observes a waiting volume again. When a hung mount, or
// a mount of another program, disappears, the kernel sends no signal.
const recheck = 10 * time.Second

// work runs the steps of a volume until no step is possible now.
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

// step runs one turn of the worker. It reports whether another step may be possible at once, and
// whether to notify the callers that wait for the volume.
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

// turn chooses the next step for the given record and runs it.
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

// look observes the paths of a record that a turn needs. If the host may have changed, look
// observes all paths of the record. For a new intent, it observes only the claims that are not
// settled.
func (q *Queue) look(e *entry, whole volume.Record) (volume.Record, volume.Observed) {
	if !whole.Held() { // the volume has nothing on this host
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

// forStorage runs a step while no other call uses the same storage. Such a call may be running for
// a volume that had another id before, or for a leftover record. A leftover record has its storage
// to itself during its turn. A claim that was never mounted needs no call (Free), so dropping it
// does not wait. forStorage reports whether it ran the step. It does not run the step if ctx ends
// first, or if the id belongs to another volume after the wait.
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

// settles reports whether a successful step can be the change for which a caller waits: a claim is
// mounted or gone, or the volume is larger. Every other step is followed by such a step, or by a
// turn without work.
func settles(a volume.Action) bool {
	switch a.Kind {
	case call.NodePublish, volume.Own, volume.Bind, volume.Take, volume.Free, call.ControllerExpand, call.NodeExpand:
		return true
	default:
		return false
	}
}

// do performs a step. If an earlier result is not on disk yet and the new step builds on it, do
// first saves the record.
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
// waits until these results are on disk. The next agent needs them after a crash. They tell whether
// a new mount replaced the recorded mount, whether a wanted mount is being unmounted, and whether
// the volume is attached. If a claim is detached, its record already announces the unmount, so the
// agent need not save it first.
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
		return a.Forward() || a.Kind == call.ControllerUnpublish
	}
}

// complete adds the state of the queue to an observation of the host. The caller holds mu.
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
		obs.Plugin = obs.Plugin.Barred(fmt.Sprintf("its driver is now %s, but the volume belongs to %s", d, r.Volume.Driver))
	}

	e.watched(obs, r, now)
	if _, ok := q.suspected(r.Key(), now); ok {
		obs.AtWork = atWork
	}
}

// pending adds to an observation the pending calls for the same storage that remain after a forced
// deregister. The caller holds mu.
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

// watched adds to an observation whether the late effects in the record's watches are still
// possible. For a watch that an earlier agent recorded, the deadline starts now.
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
		// The queue sees this plugin for the first time since the agent started. The plugin process
		// may be the process that is still running the call.
		e.watchOf = obs.Plugin.Incarnation
	}

	obs.WatchOver = now.After(e.watchUntil) || e.watchOf != obs.Plugin.Incarnation && obs.Plugin.ReadyFor(call.NodePublish)
	obs.AttachmentOver = now.After(e.attachUntil)
}

// rest records that no step is possible now, and sets the time of the next observation. The change
// for which the volume waits may come without a signal.
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
		// Plan and Doubt are intents. An intent must be on disk before a step relies on it.
		intent := func(now volume.Record) volume.Record { next, _ := apply(now); return next }
		if err := q.o.Store.Intend(context.WithoutCancel(q.ctx), key, intent); err != nil {
			out = volume.Outcome{Err: volume.HostError(string(a.Kind), err), Unsent: true}
		}
	} else {
		err := q.o.Store.Save(context.WithoutCancel(q.ctx), key, apply)

		// During the save, a forced deregister may have turned the record into a leftover record.
		if moved := q.home(id, r); !kept && moved != key {
			err = q.o.Store.Save(context.WithoutCancel(q.ctx), moved, apply)
		}
		if err != nil {
			e.unsaved = e.unsaved || saving == volume.SaveFirst
			q.o.Log.Error("cannot save the result of a step; the agent keeps it in memory and saves it with the next change", "volume", id, "step", a.Kind, "error", err)
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
		q.entry(moved).expect(a, out, now, obs.Plugin) // the leftover record waits for the late effect
	}
	q.mu.Unlock()

	q.log(id, a, out)
	q.o.Events(q.cutShort(evs, a, out))
}

// yielded reports whether the queue cancelled a step in favour of another step.
func (q *Queue) yielded(a volume.Action, out volume.Outcome) bool {
	return a.Kind == volume.Own && out.Err != nil && out.Err.Code == volume.CodeCanceled && q.ctx.Err() == nil
}

// cutShort changes the events of a step that was cancelled because the agent stops. Such a step has
// not failed, because the next agent process continues it.
func (q *Queue) cutShort(evs []volume.Event, a volume.Action, out volume.Outcome) []volume.Event {
	switch {
	case out.Err == nil || out.Err.Code != volume.CodeCanceled:
		return evs
	case q.yielded(a, out):
		return nil // the detach that caused the cancellation has its own event
	case q.ctx.Err() == nil:
		return evs
	}

	for i := range evs {
		if evs[i].Type == "step-failed" {
			evs[i].Type = "step-interrupted"
			evs[i].Message = string(a.Kind) + " was interrupted because the agent is stopping; the next agent process continues it"
		}
	}

	return evs
}

// home returns the key under which the record is stored now. A forced deregister during a call may
// turn the record into a leftover record. The result of the call belongs to that record.
func (q *Queue) home(id string, r volume.Record) string {
	if now, ok := q.o.Store.Volume(id); ok && now.Same(r) {
		return id
	}
	r.Leftover = true
	return r.Key()
}

// expect starts a watch for the late effect that a step may have.
func (e *entry) expect(a volume.Action, out volume.Outcome, now time.Time, p plugin.View) {
	switch {
	case !late(a, out):
	case attaches(a):
		e.watchAttachment(now, p)
	default:
		e.watch(now, p)
	}
}

// late reports whether a call may still take effect after it has ended. A call that makes something
// may do so unless the plugin refused it. A call that undoes something may do so if the agent gave
// it up. ControllerUnpublishVolume may do so even after an error, because the storage system behind
// the plugin may continue.
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

// progress records the progress of the current step.
func (q *Queue) progress(id string, e *entry, words string) {
	q.mu.Lock()
	if e.running != nil {
		e.running.Progress = words
	}
	q.mu.Unlock()
	q.notify(id)
}

// log writes debug messages about single steps. Operators read events instead, because the event
// log limits repeated events.
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

// Look observes a volume for its status and adds the state of the queue. If the volume needs a
// step, Look starts a worker.
func (q *Queue) Look(ctx context.Context, r volume.Record) (volume.Observed, *volume.Attempt) {
	obs := q.o.Host.Observe(ctx, r, volume.Glimpse{})
	_, exists := q.o.Store.Volume(r.Key())
	q.mu.Lock()
	defer q.mu.Unlock()
	if !exists {
		q.complete(&obs, r, newEntry())
		return obs, nil
	}

	e, known := q.entries[r.Key()]
	if !known { // a status request must not create an entry
		e = newEntry()
	}

	q.complete(&obs, r, e)
	if k := volume.Next(r, obs).Kind; k != volume.Settled && k != volume.Wait {
		e := q.entry(r.Key())
		e.whole = true
		q.begin(r.Key(), e)
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
