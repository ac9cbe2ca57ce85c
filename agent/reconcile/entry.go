package reconcile

import (
	"context"
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

// defaultDeadline is assumed for a plugin whose call deadline is not known.
const defaultDeadline = 2 * time.Minute

// entry is what the queue keeps of one volume. All fields but sem are guarded
// by Queue.mu.
type entry struct {
	sem     chan struct{} // held by whoever may make calls for the volume
	refs    int           // who may hold or wait for sem; the entry stays as long
	working bool          // a worker runs
	again   bool          // and is to take another turn

	failed  map[string]*volume.Attempt // failed steps by Action.Key
	running *volume.Attempt            // the step in hand
	renewed bool                       // due was called during it
	wait    *volume.Attempt            // why nothing is done, if so

	watchUntil time.Time // no late effect is expected after this
	watchOf    uint64    // the incarnation of the plugin that may have one
}

func newEntry() *entry {
	return &entry{sem: make(chan struct{}, 1), failed: map[string]*volume.Attempt{}}
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

// begin notes the step in hand.
func (e *entry) begin(a volume.Action) {
	at := volume.Attempt{Action: a, First: time.Now()}
	if f, ok := e.failed[a.Key()]; ok {
		at = *f
		at.Action = a
	}
	at.Running = true
	e.running, e.renewed, e.wait = &at, false, nil
}

// end notes how the step in hand went, and returns whether a failure is the
// first of its kind in a row.
func (e *entry) end(a volume.Action, err *volume.CallError, now time.Time) (first bool) {
	at := e.running
	e.running = nil
	if err == nil {
		delete(e.failed, a.Key())
		return false
	}
	first = at.Err == nil || at.Err.Code != err.Code || at.Err.Message != err.Message
	at.Running, at.Err = false, err
	at.Tries++
	at.Next = time.Time{}
	if err.Retry == volume.RetryBackoff {
		at.Next = now.Add(delay(at.Tries))
	}
	if e.renewed {
		at.Next = longAgo
	}
	e.failed[a.Key()] = at
	return first
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
		if at.Next.IsZero() || at.Next.After(now) {
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

// due makes every failed step worth another try, at once. So is the one in hand
// if it fails, because it may have begun with what has changed since.
func (e *entry) due() {
	for _, at := range e.failed {
		at.Next = longAgo
	}
	e.renewed = true
}

// prune forgets failures to make what nobody wants any more.
func (e *entry) prune(r volume.Record) {
	wanted := false
	for _, c := range r.Claims {
		wanted = wanted || c.Wanted
	}
	for key, at := range e.failed {
		if a := at.Action; a.Forward() && (!wanted || a.Alloc != "" && !r.Claims[a.Alloc].Wanted) {
			delete(e.failed, key)
		}
	}
}

// nextDue is when the first parked step may be tried again; zero if none will
// by itself. What is due already waits for something else.
func (e *entry) nextDue(now time.Time) time.Time {
	var t time.Time
	for _, at := range e.failed {
		if at.Next.After(now) {
			t = sooner(t, at.Next)
		}
	}
	return t
}

// waiting notes why nothing is done, and until when if that is known.
func (e *entry) waiting(a volume.Action, until time.Time) {
	if a.Cause == volume.CauseWatch {
		until = e.watchUntil
	}
	e.wait = &volume.Attempt{Action: a, Next: until}
}

// settle forgets failures: all that was wanted is there.
func (e *entry) settle() {
	clear(e.failed)
	e.wait, e.running, e.watchUntil = nil, nil, time.Time{}
}

// watch expects late effects for one more deadline of the plugin as it is now.
func (e *entry) watch(now time.Time, p volume.PluginView) {
	e.watchUntil, e.watchOf = now.Add(deadline(p)), p.Incarnation
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
		return &cp
	}
	if best = e.wait; best == nil {
		return nil
	}
	cp := *best
	return &cp
}

func deadline(p volume.PluginView) time.Duration {
	if p.CallTimeout > 0 {
		return p.CallTimeout
	}
	return defaultDeadline
}

// watchInterval is how often watched paths are looked at.
func watchInterval(p volume.PluginView) time.Duration {
	return min(5*time.Second, max(100*time.Millisecond, deadline(p)/20))
}

// sooner is the earlier of two times, where zero means never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
