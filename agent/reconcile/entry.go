package reconcile

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/volagent/volagent/volmgr/backoff"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// The first retry delay is firstDelay. Each failure doubles the delay, up to lastDelay. Each delay
// varies by ±20 %.
const (
	firstDelay = 500 * time.Millisecond
	lastDelay  = 5 * time.Minute
)

// burst limits how often the steps of one volume may fail while the retry delays alone decide when
// a step is retried. After that, the volume may fail once per lastDelay. The limit also holds if
// several steps fail, if undo steps succeed in between, or if the plugin stops and starts. A volume
// can therefore fail at most burst + 288 times a day. The queue still tries a new request at once. A step
// that waits for another host does not count.
const burst = 100

// defaultDeadline is the call deadline for a plugin whose deadline is unknown.
const defaultDeadline = 2 * time.Minute

// entry is the state of one volume in the queue. Queue.mu guards all fields, except sem itself and
// the fields that are guarded by sem.
type entry struct {
	sem chan struct{} // a semaphore; the goroutine that holds it may make calls for the volume
	// unsaved is set if a result that later steps build on could not be saved; guarded by sem
	unsaved bool
	last    volume.Glimpse // the observation that the last step made at its path; guarded by sem
	lastAt  time.Time
	// misplaced contains the claims whose mounts were missing or wrong in the last observation of
	// the whole volume. It is guarded by sem.
	misplaced map[string]bool
	whole     bool // the next turn also observes settled claims
	// number of goroutines that hold or await sem; the entry is kept while refs is positive
	refs    int
	working bool // a worker is running
	again   bool // the worker must run one more turn

	failed  map[string]*volume.Attempt // failed steps, by Action.Key
	running *volume.Attempt            // the current step
	abandon context.CancelFunc         // cancels the current call; nil if no call runs
	// the step that this turn chose is outdated, so its call must not start
	stale   bool
	renewed bool // the method due was called during the current step
	// due was called during the current step because of a new request
	asked  bool
	exempt map[string]bool // keys of failed steps that a new request made due
	// the reason why the volume waits; nil if the volume does not wait
	wait    *volume.Attempt
	outside *volume.Attempt // a create or delete call that is running or has failed
	// limits the rate of failures: each failure adds lastDelay to this time
	pace time.Time

	watchUntil  time.Time // when the wait for a late effect on a mount ends
	watchOf     uint64    // incarnation of the plugin process that may cause this late effect
	attachUntil time.Time // when the wait for a late ControllerPublish or ControllerUnpublish ends
	assumed     bool      // attachUntil assumes the default deadline, because no controller was known
}

func newEntry() *entry {
	return &entry{sem: make(chan struct{}, 1), failed: map[string]*volume.Attempt{}}
}

// empty reports whether the queue can delete the entry without losing state.
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

// freshFor is the maximum age of an observation that the next turn may reuse. A new observation
// would hardly be safer, because another program can unmount the path right after it.
const freshFor = 100 * time.Millisecond

func (e *entry) glimpsed(a volume.Action, out volume.Outcome, now time.Time) {
	e.last = volume.Glimpse{}
	if out.Sight != nil {
		e.last, e.lastAt = volume.Glimpse{Path: a.Path, Sight: *out.Sight}, now
	}
}

// fresh returns the observation of the last step if it is recent, and otherwise an empty one. It
// returns the same observation only once.
func (e *entry) fresh(now time.Time) volume.Glimpse {
	g := e.last
	if e.last = (volume.Glimpse{}); now.Sub(e.lastAt) > freshFor {
		return volume.Glimpse{}
	}
	return g
}

// begin records the start of a step.
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

// end records the result of the current step.
func (e *entry) end(a volume.Action, out volume.Outcome, now time.Time) {
	at, err := e.running, out.Err
	e.running, e.abandon = nil, nil
	if err == nil {
		delete(e.failed, a.Key())
		return
	}
	if err.Code != volume.CodeHeld {
		e.slow(now) // a wait for another host is no failure, and must not delay a detach
	}
	if at.Err != nil && at.Err.Code == volume.CodeHeld && err.Code != volume.CodeHeld {
		at.Tries = 0 // the waits for another host say nothing about the step itself
	}
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

// slow counts a failure for the limit of their rate.
func (e *entry) slow(now time.Time) {
	if e.pace.Before(now) {
		e.pace = now
	}
	e.pace = e.pace.Add(lastDelay)
}

// notBefore returns the earliest time for the next retry of a failed step. A new request may retry
// earlier.
func (e *entry) notBefore() time.Time { return e.pace.Add(-burst * lastDelay) }

// dueNext returns the time at which a failed step may be retried. It returns the zero time if only
// a change can make the step due.
func (e *entry) dueNext(key string, at *volume.Attempt) time.Time {
	if floor := e.notBefore(); !at.Next.IsZero() && !e.exempt[key] && at.Next.Before(floor) {
		return floor
	}
	return at.Next
}

// delay returns the delay before the retry after n failures in a row.
func delay(n int) time.Duration {
	return backoff.Jitter(backoff.Delays{First: firstDelay, Last: lastDelay}.After(n))
}

// parked returns the keys of the steps that must wait. A step that waits for a change stays parked
// until the queue calls due.
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

// longAgo is the due time of a step that must be retried at once.
var longAgo = time.Unix(1, 0)

// due makes every failed step due. If a new request is the reason (asked), a step may run at once.
// Otherwise, a step may run as soon as the failure rate of the volume permits. If the current step
// fails later, it also becomes due, because it may have started before the reason for this call.
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

// prune deletes the failures of steps that no claim needs any longer.
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

// nextDue returns the earliest time at which a parked step may be retried, or the zero time. It
// skips steps that are already due, because they wait for something other than time.
func (e *entry) nextDue(now time.Time) time.Time {
	var t time.Time
	for key, at := range e.failed {
		if next := e.dueNext(key, at); next.After(now) {
			t = sooner(t, next)
		}
	}

	return t
}

// waiting records why the volume waits, and until when if that time is known.
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

// beginOutside records the start of a create or delete.
func (e *entry) beginOutside(step call.Method) {
	at := volume.Attempt{Action: volume.Action{Kind: step}, First: time.Now()}
	if e.outside != nil && e.outside.Action.Kind == step {
		at = *e.outside
	}
	at.Running = true
	e.outside = &at
}

// endOutside records the result of a create or delete.
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

// settle clears the state of an entry, because the volume now matches its claims.
func (e *entry) settle() {
	clear(e.failed)
	clear(e.exempt)
	e.wait, e.running, e.misplaced = nil, nil, nil
	e.watchUntil, e.attachUntil = time.Time{}, time.Time{}
}

// watch begins the wait for late effects on mounts. The wait ends after one call deadline, or when
// the plugin runs in a new process.
func (e *entry) watch(now time.Time, p plugin.View) {
	e.watchUntil, e.watchOf = now.Add(deadline(p.CallTimeout)), p.Incarnation
}

// watchAttachment begins the wait for a late ControllerPublish or ControllerUnpublish. The wait
// ends after one call deadline. A restart of the plugin does not end it, because the storage system
// continues without the plugin.
func (e *entry) watchAttachment(now time.Time, p plugin.View) {
	e.attachUntil, e.assumed = now.Add(deadline(p.ControllerTimeout)), p.ControllerTimeout <= 0
}

// correctWait corrects the end of this wait when a controller becomes known. After its start, an agent
// learns only later from the cluster which other host has the controller.
func (e *entry) correctWait(p plugin.View) {
	waits := e.assumed && !e.attachUntil.IsZero()
	if waits && p.ControllerTimeout > 0 {
		e.attachUntil, e.assumed = e.attachUntil.Add(p.ControllerTimeout-defaultDeadline), false
	}
}

// attempt returns the step that a status command shows for a volume. It considers only the steps
// for which concerns returns true. It prefers a failed step, and among failed steps the step with
// the most failures. If no step qualifies, attempt returns the reason why the volume waits.
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

// foremost returns the attempt that best explains the state of a volume.
func (e *entry) foremost(r volume.Record) *volume.Attempt {
	if r.Volume.Provision != volume.Provisioned && e.outside != nil {
		at := *e.outside
		return &at
	}
	return e.attempt(func(volume.Action) bool { return true })
}

// deadline returns the configured deadline of calls, or the default.
func deadline(configured time.Duration) time.Duration {
	return cmp.Or(max(0, configured), defaultDeadline)
}

// watchInterval returns the interval at which the queue observes watched paths.
func watchInterval(p plugin.View) time.Duration {
	return min(5*time.Second, max(100*time.Millisecond, deadline(p.CallTimeout)/20))
}

// sooner returns the earlier of two times. The zero time means never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
