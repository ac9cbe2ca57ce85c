package csitest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/status"
)

// recorder writes calls to the journal, and tracks the state of volumes as far as the caller knows
// it.
type recorder struct {
	mu     sync.Mutex
	file   *os.File
	muted  bool // set after a crash, so that the journal gets no further entries
	failed error
	past   Journal
	at     map[int64]int // maps the number of a call to its index in past.Calls
	view   view
	used   map[string]int // number of calls to which each fault has applied
	passed map[string]int // number of calls that each fault has skipped
	live   map[*live]bool
}

// live is a call that is running.
type live struct {
	call   Call
	caller callerAddr
	ctx    context.Context
	done   chan struct{} // closed when the call has ended
	late   bool          // the answer came too late for the caller; valid after done is closed
	gone   time.Time     // time at which the caller gave up or died; zero before that
}

// left returns how long a call may still take effect after the time at. The caller of the call must
// have ended.
func (l *live) left(at time.Time) time.Duration {
	return l.promise() - at.Sub(l.gone)
}

// open reads the existing journal and records the start of the plugin.
func (r *recorder) open(path string) error {
	past, err := LoadJournal(path)
	if err != nil {
		return err
	}

	r.past, r.at, r.view, r.used, r.passed, r.live = past, map[int64]int{}, newView(), map[string]int{}, map[string]int{}, map[*live]bool{}
	r.past.Starts++
	r.replay()
	if r.file, err = openJournal(path); err != nil {
		return err
	}

	return writeEntry(r.file, entry{Event: eventOpen, Time: now(), Plugin: os.Getpid()})
}

// replay processes the calls in an existing journal. Calls for one volume overlap only if the
// caller broke a rule, so replay can process the beginning and the end of each call together.
func (r *recorder) replay() {
	for i, c := range r.past.Calls {
		r.at[c.Seq] = i
		r.view.begin(c)
		if c.Ended() {
			r.view.end(c)
		}

		r.count(c)
	}
}

// count updates the counters of the faults that applied to a call or skipped it.
func (r *recorder) count(c Call) {
	if c.Fault != "" {
		r.used[c.Fault]++
	}
	for _, id := range c.Passed {
		r.passed[id]++
	}
}

func (r *recorder) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Join(r.failed, r.file.Close())
}

func (r *recorder) mute() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.muted = true
}

// write appends an entry to the journal. The caller must hold the lock. If write fails, the method
// close returns the first error.
func (r *recorder) write(e entry) {
	if r.muted {
		return
	}
	if err := writeEntry(r.file, e); err != nil && r.failed == nil {
		r.failed = err
	}
}

func (r *recorder) history() Journal {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Journal{Calls: slices.Clone(r.past.Calls), Violations: slices.Clone(r.past.Violations), Starts: r.past.Starts}
}

// begin writes a call and its violations to the journal. It returns the fault that applies to the
// call, and the other running calls for the same volume.
func (r *recorder) begin(ctx context.Context, cfg Config, req request, control Control) (*live, *Fault, []*live) {
	r.mu.Lock()
	defer r.mu.Unlock()

	// Step 1: record the call.
	caller := callerOf(ctx)
	req.call.Seq = int64(len(r.past.Calls)) + 1
	req.call.Plugin, req.call.Caller, req.call.Start = os.Getpid(), caller.pid, now()
	fault, pass, err := control.pick(req.call, r.used, r.passed)
	req.call.Passed = pass
	if fault != nil {
		req.call.Fault = fault.ID
	}

	r.count(req.call)
	l := &live{call: req.call, caller: caller, ctx: ctx, done: make(chan struct{})}
	context.AfterFunc(ctx, func() {
		r.mu.Lock()
		defer r.mu.Unlock()

		l.gone = now()
	})

	r.at[l.call.Seq] = len(r.past.Calls)
	r.past.Calls = append(r.past.Calls, l.call)
	r.write(entry{Event: eventCall, Time: l.call.Start, Call: &l.call})

	// Step 2: check the rules against the state before this call.
	found := rulesBroken(ctx, cfg, r.view, req)
	if err != nil {
		found = append(found, Violation{Rule: RuleControl, Words: err.Error(), Time: now(), Seq: l.call.Seq, Method: l.call.Method, Volume: l.call.Volume})
	}

	for _, v := range found {
		r.violation(v)
	}

	r.view.begin(l.call)

	// Step 3: find the other running calls.
	var others []*live
	for o := range r.live {
		if l.call.meets(o.call) {
			others = append(others, o)
		}
	}

	r.live[l] = true
	return l, fault, others
}

// targets returns the targets at which a volume is, or may be, published as far as the caller
// knows.
func (r *recorder) targets(volume string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.view.of(volume).targets))
}

// inUse reports whether a volume is, or may be, in use as far as the caller knows.
func (r *recorder) inUse(volume string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.view.of(volume).inUse()
}

// staged reports whether a volume is, or may be, staged at path as far as the caller knows. A mount
// check would not be enough, because a staged block volume has no mount at that path.
func (r *recorder) staged(volume, path string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	vol := r.view.of(volume)
	return vol.staged != no && vol.staging == path
}

// violation adds a violation to the journal. The caller must hold the lock.
func (r *recorder) violation(v Violation) {
	r.past.Violations = append(r.past.Violations, v)
	r.write(entry{Event: eventViolation, Time: v.Time, Violation: &v})
}

// end writes the result of a call to the journal.
func (r *recorder) end(l *live, resp any, err error) {
	s, _ := status.FromError(err)
	res := Result{End: now(), Code: s.Code().String(), Message: s.Message()}

	switch l.call.Method {
	case NodeUnpublish:
		res.Mounted = isMount(l.call.TargetPath)
	case NodeUnstage:
		res.Mounted = isMount(l.call.StagingPath)
	}

	if err == nil {
		res.told(resp)
	}

	r.mu.Lock()
	defer r.mu.Unlock()

	defer close(l.done)

	delete(r.live, l)

	// The deadline of the caller is never later than the deadline that the plugin sees. If the
	// answer is too late here, it is therefore too late for the caller.
	l.late = l.ctx.Err() != nil
	res.Late = l.late
	if r.muted {
		return // a crashed plugin sends no answer
	}

	l.call.Result = res
	r.past.Calls[r.at[l.call.Seq]].Result = res
	r.write(entry{Event: eventEnd, Time: res.End, Seq: l.call.Seq, Result: &res})
	r.view.end(l.call)
}

// goneWithin is the maximum time that the plugin needs to notice the end of a caller.
const goneWithin = 2 * time.Second

// overlap reports a call that arrived while another call for the same volume was running. A running
// call does not count if its caller has given up or died. If the callers use different connections,
// the plugin may receive the new call before it notices the end of the other caller. Therefore
// overlap waits for a short time.
func (r *recorder) overlap(l, other *live) {
	if l.caller.number != other.caller.number {
		timer := time.NewTimer(goneWithin)
		defer timer.Stop()

		select {
		case <-other.ctx.Done():
		case <-other.done:
		case <-timer.C:
		}
	}

	r.mu.Lock()
	defer r.mu.Unlock()

	// gRPC ends the context of a call also after an answer in time. The channel done distinguishes
	// this case from the end of the caller.
	select {
	case <-other.done:
		if other.late {
			r.overtaken(l, other)
			return
		}
	default:
		if other.ctx.Err() != nil {
			r.overtaken(l, other)
			return
		}
	}

	r.violation(Violation{
		Rule: RuleInFlight, Words: "this call was still running: " + other.call.String(), Time: now(),
		Seq: l.call.Seq, Method: l.call.Method, Volume: l.call.Volume,
	})
}

// overtaken reports a call whose result an earlier call may still undo. The caller gave up the
// earlier call, but that call may still take effect. The mutex must be held.
func (r *recorder) overtaken(l, other *live) {
	if other.gone.IsZero() {
		other.gone = now() // only now does the plugin notice that the earlier caller has ended
	}
	if !l.call.remakes(other.call) || other.left(l.call.Start) <= 0 {
		return
	}

	r.violation(Violation{
		Rule: RuleOvertaken, Words: fmt.Sprintf("the caller gave up this call %s earlier, and it may still take effect: %s", l.call.Start.Sub(other.gone), other.call), Time: now(),
		Seq: l.call.Seq, Method: l.call.Method, Volume: l.call.Volume,
	})
}
