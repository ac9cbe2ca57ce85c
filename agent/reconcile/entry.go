package reconcile

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// Retry delays: from firstDelay, doubled at each failure, to lastDelay, each
// ±20 %.
const (
	firstDelay = 500 * time.Millisecond
	lastDelay  = 5 * time.Minute
)

// A volume whose steps go on failing may do so burst times at the pace of their
// own delays, and from then on once a lastDelay, whatever makes them due: several
// steps that fail, undoing that succeeds in between, or a plugin that comes and
// goes. That is at most burst + 288 failures a day. A new request is tried at once
// all the same.
const burst = 100

// defaultDeadline is assumed for a plugin whose call deadline is not known.
const defaultDeadline = 2 * time.Minute

// entry is what the queue keeps of one volume. All fields are guarded by Queue.mu,
// but for sem and those that belong to its holder.
type entry struct {
	sem     chan struct{}  // held by whoever may make calls for the volume
	unsaved bool           // a step had to be on disk and is not; for the holder of sem
	last    volume.Glimpse // what the last step saw at its path; for the holder of sem
	lastAt  time.Time
	// misplaced are the claims that the last look at the whole volume found not to be in place; for
	// the holder of sem.
	misplaced map[string]bool
	whole     bool // the next turn looks at settled claims too
	refs      int  // who may hold or wait for sem; the entry stays as long
	working   bool // a worker runs
	again     bool // and is to take another turn

	failed  map[string]*volume.Attempt // failed steps by Action.Key
	running *volume.Attempt            // the step in hand
	abandon context.CancelFunc         // gives up its call; nil if it makes none
	stale   bool                       // what was decided in this turn is not to be called any more
	renewed bool                       // due was called during it
	asked   bool                       // and that was because of a new request
	exempt  map[string]bool            // failed steps that a new request made due
	wait    *volume.Attempt            // why nothing is done, if so
	outside *volume.Attempt            // a create or delete, in hand or failed
	pace    time.Time                  // until when the failures so far are spread at one a lastDelay

	watchUntil  time.Time // no late effect on a mount is expected after this
	watchOf     uint64    // the incarnation of the plugin that may have one
	attachUntil time.Time // no late effect on the attachment is expected after this
}

func newEntry() *entry {
	return &entry{sem: make(chan struct{}, 1), failed: map[string]*volume.Attempt{}}
}

// empty reports whether a new entry would be as good.
func (e *entry) empty(now time.Time) bool {
	return !e.unsaved && len(e.failed)+len(e.exempt) == 0 && e.wait == nil && e.running == nil && e.outside == nil && e.watchUntil.IsZero() && e.attachUntil.IsZero() && !e.pace.After(now)
}

func (e *entry) lock(ctx context.Context) error {
	select {
	case e.sem <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (e *entry) unlock() { <-e.sem }

// freshFor is how long what a step saw at the end is good for the next decision.
// Whoever unmounts behind the agent's back may do so right after any look.
const freshFor = 100 * time.Millisecond

func (e *entry) glimpsed(a volume.Action, out volume.Outcome, now time.Time) {
	e.last = volume.Glimpse{}
	if out.Sight != nil {
		e.last, e.lastAt = volume.Glimpse{Path: a.Path, Sight: *out.Sight}, now
	}
}

// fresh is what the last step saw, once, if that is not long ago.
func (e *entry) fresh(now time.Time) volume.Glimpse {
	g := e.last
	if e.last = (volume.Glimpse{}); now.Sub(e.lastAt) > freshFor {
		return volume.Glimpse{}
	}
	return g
}

// begin notes the step in hand.
func (e *entry) begin(a volume.Action) {
	at := volume.Attempt{Action: a, First: time.Now()}
	if f, ok := e.failed[a.Key()]; ok {
		at = *f
		at.Action = a
	}
	at.Running = true
	delete(e.exempt, a.Key())
	e.running, e.renewed, e.asked, e.wait = &at, false, false, nil
}

// end notes how the step in hand went.
func (e *entry) end(a volume.Action, out volume.Outcome, now time.Time) {
	at, err := e.running, out.Err
	e.running, e.abandon = nil, nil
	if err == nil {
		delete(e.failed, a.Key())
		return
	}
	if e.pace.Before(now) {
		e.pace = now
	}
	e.pace = e.pace.Add(lastDelay)
	at.Running, at.Err, at.Unsent = false, err, out.Unsent
	at.Tries++
	at.Next = time.Time{}
	if err.Retry == volume.RetryBackoff {
		at.Next = now.Add(delay(at.Tries))
	}
	e.failed[a.Key()] = at
	if e.renewed {
		e.dueAt(at, e.asked)
	}
}

// notBefore is when the next failed step may be tried that nobody asked for anew.
func (e *entry) notBefore() time.Time { return e.pace.Add(-burst * lastDelay) }

// dueNext is when a failed step may be tried again; zero if it is not by itself.
func (e *entry) dueNext(key string, at *volume.Attempt) time.Time {
	if floor := e.notBefore(); !at.Next.IsZero() && !e.exempt[key] && at.Next.Before(floor) {
		return floor
	}
	return at.Next
}

// delay is how long to wait after the n-th failure in a row.
func delay(n int) time.Duration {
	d := lastDelay
	if n <= 10 {
		d = min(lastDelay, firstDelay<<(n-1))
	}
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}

// parked are the steps that are not to be tried yet. A step that waits for a
// change is parked until due is called.
func (e *entry) parked(now time.Time) map[string]bool {
	var keys map[string]bool
	for key, at := range e.failed {
		if next := e.dueNext(key, at); next.IsZero() || next.After(now) {
			if keys == nil {
				keys = map[string]bool{}
			}
			keys[key] = true
		}
	}
	return keys
}

// longAgo is when a step is due that is to be tried at once.
var longAgo = time.Unix(1, 0)

// due makes every failed step worth another try: at once if that was asked for,
// and else as soon as the volume's pace allows. So is the one in hand if it fails,
// because it may have begun with what has changed since.
func (e *entry) due(asked bool) {
	for _, at := range e.failed {
		e.dueAt(at, asked)
	}
	e.renewed, e.asked = true, e.asked || asked
}

func (e *entry) dueAt(at *volume.Attempt, asked bool) {
	at.Next = longAgo
	if !asked {
		return
	}
	if e.exempt == nil {
		e.exempt = map[string]bool{}
	}
	e.exempt[at.Action.Key()] = true
}

// prune forgets failures to make what nobody wants any more.
func (e *entry) prune(r volume.Record) {
	wanted := false
	for _, c := range r.Claims {
		wanted = wanted || c.Wanted
	}
	for key, at := range e.failed {
		a := at.Action
		if a.Forward() && (!wanted || a.Alloc != "" && !r.Claims[a.Alloc].Wanted) || !r.Volume.Expansion.Awaits(a) {
			delete(e.failed, key)
			delete(e.exempt, key)
		}
	}
}

// nextDue is when the first parked step may be tried again; zero if none will
// by itself. What is due already waits for something else.
func (e *entry) nextDue(now time.Time) time.Time {
	var t time.Time
	for key, at := range e.failed {
		if next := e.dueNext(key, at); next.After(now) {
			t = sooner(t, next)
		}
	}
	return t
}

// waiting notes why nothing is done, and until when if that is known.
func (e *entry) waiting(a volume.Action, until time.Time) {
	if a.Cause == volume.CauseWatch {
		if until = e.watchUntil; e.attachUntil.After(until) {
			until = e.attachUntil
		}
	}
	first := time.Now()
	if e.wait != nil && e.wait.Action.Cause == a.Cause {
		first = e.wait.First
	}
	e.wait = &volume.Attempt{Action: a, First: first, Next: until}
}

// beginOutside notes a create or delete in hand.
func (e *entry) beginOutside(step volume.Kind) {
	at := volume.Attempt{Action: volume.Action{Kind: step}, First: time.Now()}
	if e.outside != nil && e.outside.Action.Kind == step {
		at = *e.outside
	}
	at.Running = true
	e.outside = &at
}

// endOutside notes how it went.
func (e *entry) endOutside(err error) {
	at := *e.outside
	e.outside = nil
	var ce *volume.CallError
	if errors.As(err, &ce) {
		at.Running, at.Err = false, ce
		at.Tries++
		e.outside = &at
	}
}

// settle forgets failures: all that was wanted is there.
func (e *entry) settle() {
	clear(e.failed)
	clear(e.exempt)
	e.wait, e.running, e.misplaced = nil, nil, nil
	e.watchUntil, e.attachUntil = time.Time{}, time.Time{}
}

// watch expects late effects for one more deadline of the plugin as it is now.
func (e *entry) watch(now time.Time, p volume.PluginView) {
	e.watchUntil, e.watchOf = now.Add(deadline(p.CallTimeout)), p.Incarnation
}

// watchAttachment expects late effects on the attachment for one more deadline. A
// restart of the plugin does not end them: the storage system goes on without it.
func (e *entry) watchAttachment(now time.Time, p volume.PluginView) {
	e.attachUntil = now.Add(deadline(p.ControllerTimeout))
}

// attempt is the step to show people, of those that concern them: the one in
// hand if it failed before, else the one that failed most, else the one in
// hand, else the wait.
func (e *entry) attempt(concerns func(volume.Action) bool) *volume.Attempt {
	best := e.running
	if best != nil && !concerns(best.Action) {
		best = nil
	}
	for _, at := range e.failed {
		if concerns(at.Action) && (best == nil || at.Tries > best.Tries) {
			best = at
		}
	}
	if best != nil {
		cp := *best
		if !cp.Running {
			cp.Next = e.dueNext(cp.Action.Key(), best)
		}
		return &cp
	}
	if best = e.wait; best == nil {
		return nil
	}
	cp := *best
	return &cp
}

// foremost is the attempt that says most about a volume.
func (e *entry) foremost(r volume.Record) *volume.Attempt {
	if r.Volume.Provision != volume.Provisioned && e.outside != nil {
		at := *e.outside
		return &at
	}
	return e.attempt(func(volume.Action) bool { return true })
}

// deadline is the deadline of a service's calls.
func deadline(configured time.Duration) time.Duration {
	if configured > 0 {
		return configured
	}
	return defaultDeadline
}

// watchInterval is how often watched paths are looked at.
func watchInterval(p volume.PluginView) time.Duration {
	return min(5*time.Second, max(100*time.Millisecond, deadline(p.CallTimeout)/20))
}

// sooner is the earlier of two times, where zero means never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
