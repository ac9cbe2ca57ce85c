package reconcile

import (
	"context"
	"fmt"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// recheck is how often a volume that waits is looked at again: a mount that hangs
// or is not ours gives no sign when it goes.
const recheck = 10 * time.Second

// work does steps until there is nothing to do now.
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
			continue // stopping
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

// step does one turn. It reports whether there may be more to do at once, and
// whether whoever waits for the volume is to be told.
func (q *Queue) step(id string, e *entry) (more, news bool) {
	q.mu.Lock()
	e.stale = false // whatever was asked for until now is in the record
	q.mu.Unlock()
	r, ok := q.o.Store.Volume(id)
	if !ok {
		return false, true
	}
	return q.turn(id, e, r)
}

// turn decides on one step of a record, and does it.
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
		if a.Kind == volume.Settled && r.Debt && q.o.Paid != nil {
			q.o.Paid(r)
			if _, still := q.o.Store.Volume(id); still { // that could not be saved
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

// look observes what a turn has to see of a record. That is all of it if something may have
// changed on the host; for a new intent it is what is not settled.
func (q *Queue) look(e *entry, whole volume.Record) (volume.Record, volume.Observed) {
	if !whole.Held() { // there is nothing to look at, and nothing to be done
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

// forStorage runs a step while nobody else is at the volume's storage: a call for
// what was registered under another id, or is a debt since, may be in flight. A
// debt has its storage by its own turn. A claim that was never mounted goes
// without: it need not wait for what is owed. It reports whether the step ran; it
// does not if the wait is given up, or the volume is another when it is over.
func (q *Queue) forStorage(ctx context.Context, id string, r volume.Record, a volume.Action, step func()) (done bool) {
	if r.Debt || r.Volume.ExternalID == "" || a.Kind == volume.Free {
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

// settles reports whether a step that went well may be what somebody waited
// for: a claim is mounted by it, or gone, or the volume is larger. All others lead
// to one that is, or to a turn with nothing to do.
func settles(a volume.Action) bool {
	switch a.Kind {
	case volume.NodePublish, volume.Own, volume.Bind, volume.Take, volume.Free, volume.ControllerExpand, volume.NodeExpand:
		return true
	default:
		return false
	}
}

// do does a step. Behind one that had to be on disk and is not, some wait.
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

// building reports whether a step builds on what the steps before it have put on
// record. After a crash it would be too late to know that another mount was made
// than the one on record, that a wanted one is being undone, or that the volume
// is not attached any more. What nobody wants is known to be on its way out.
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

// complete adds to an observation what only the queue knows; mu is held.
func (q *Queue) complete(obs *volume.Observed, r volume.Record, e *entry) {
	now := time.Now()
	obs.Halt, obs.Down = q.o.Halt, q.down
	obs.Plugin = q.o.Plugins.View(r.Volume.PluginID)
	obs.Parked = e.parked(now)
	if q.o.Owed != nil && !r.Debt {
		obs.Debt = q.o.Owed(r.Volume)
	}
	if obs.Debt != "" {
		q.pending(obs, r)
	}
	if d := obs.Plugin.Info.Driver; r.Debt && d != "" && d != r.Volume.Driver {
		obs.Plugin = obs.Plugin.Barred(fmt.Sprintf("it is driver %s now, and this is a volume of %s", d, r.Volume.Driver))
	}
	e.watched(obs, r, now)
	if _, ok := q.suspected(r.Key(), now); ok {
		obs.AtWork = atWork
	}
}

// pending adds to an observation how the calls stand that a forced deregister left of the
// same storage; mu is held.
func (q *Queue) pending(obs *volume.Observed, r volume.Record) {
	if debt, ok := q.o.Store.Volume(storage(r)); ok {
		obs.Pending = &debt
	}
	if d, ok := q.entries[storage(r)]; ok {
		obs.PendingTry = d.attempt(func(volume.Action) bool { return true })
	}
	if at := obs.PendingTry; at != nil && at.Err != nil {
		obs.Debt += fmt.Sprintf("; the last try failed: %v", at.Err)
	}
}

// watched adds to an observation whether the late effects that a record watches for
// can still come. A watch that an earlier agent left begins now.
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
		// The plugin was not seen yet, after a restart of the agent: the one
		// that is found may have been at it all the time.
		e.watchOf = obs.Plugin.Incarnation
	}
	obs.WatchOver = now.After(e.watchUntil) || e.watchOf != obs.Plugin.Incarnation && obs.Plugin.ReadyFor(volume.NodePublish)
	obs.AttachmentOver = now.After(e.attachUntil)
}

// rest notes that nothing can be done now, and when to look again: whatever is
// waited for may come without a sign.
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

// finish records how a step went.
func (q *Queue) finish(id string, e *entry, r volume.Record, a volume.Action, obs volume.Observed, out volume.Outcome) {
	key := q.home(id, r)
	var evs []volume.Event
	kept, saving := false, volume.SaveWithNext
	apply := func(now volume.Record) (volume.Record, volume.Saving) {
		evs, saving = nil, volume.SaveWithNext
		if kept = now.Same(r); !kept {
			return now, saving // the id was given to another volume
		}
		next, made := volume.Apply(now, a, out)
		evs, saving = made, volume.Urgency(now, next)
		return next, saving
	}
	if a.Kind == volume.Plan || a.Kind == volume.Doubt {
		// These are intents: nothing may be done on them before they are on disk.
		intent := func(now volume.Record) volume.Record { next, _ := apply(now); return next }
		if err := q.o.Store.Intend(context.WithoutCancel(q.ctx), key, intent); err != nil {
			out = volume.Outcome{Err: volume.HostError(string(a.Kind), err), Unsent: true}
		}
	} else {
		err := q.o.Store.Save(context.WithoutCancel(q.ctx), key, apply)
		if moved := q.home(id, r); !kept && moved != key { // while that waited for a commit
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
		q.entry(moved).expect(a, out, now, obs.Plugin) // the debt waits for the late effect
	}
	q.mu.Unlock()
	q.log(id, a, out)
	q.o.Events(q.cutShort(evs, a, out))
}

// yielded reports whether a step was broken off because of another one.
func (q *Queue) yielded(a volume.Action, out volume.Outcome) bool {
	return a.Kind == volume.Own && out.Err != nil && out.Err.Code == "Canceled" && q.ctx.Err() == nil
}

// cutShort words a step that the end of the agent broke off: that is no failure,
// and the next agent goes on with it.
func (q *Queue) cutShort(evs []volume.Event, a volume.Action, out volume.Outcome) []volume.Event {
	switch {
	case out.Err == nil || out.Err.Code != "Canceled":
		return evs
	case q.yielded(a, out):
		return nil // a claim is being released, which is told already
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

// home is the key under which a record is now: a volume that was deregistered by
// force during a call may live on as a debt, and how the call ended is its.
func (q *Queue) home(id string, r volume.Record) string {
	if now, ok := q.o.Store.Volume(id); ok && now.Same(r) {
		return id
	}
	r.Debt = true
	return r.Key()
}

// expect begins the wait for the late effect that a step may have.
func (e *entry) expect(a volume.Action, out volume.Outcome, now time.Time, p volume.PluginView) {
	switch {
	case !late(a, out):
	case attaches(a):
		e.watchAttachment(now, p)
	default:
		e.watch(now, p)
	}
}

// late reports whether a call may have an effect that is yet to come: any that
// makes something unless it was refused, and one that undoes something if it was
// given up. One that detaches may have one even if the plugin answered with an error,
// because the storage system behind the plugin goes on.
func late(a volume.Action, out volume.Outcome) bool {
	if out.Err == nil || out.Unsent || !a.RPC() {
		return false
	}
	return (a.Forward() || attaches(a)) && out.Err.Uncertain() || !out.Err.Answered
}

// attaches reports whether a step changes the attachment.
func attaches(a volume.Action) bool {
	return a.Kind == volume.ControllerPublish || a.Kind == volume.ControllerUnpublish
}

// progress notes how far the step in hand is.
func (q *Queue) progress(id string, e *entry, words string) {
	q.mu.Lock()
	if e.running != nil {
		e.running.Progress = words
	}
	q.mu.Unlock()
	q.notify(id)
}

// log is for who debugs: what people need to know are the events, of which those
// that repeat are held back.
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
