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

// recorder writes calls to the journal and tracks the facts that the caller knows about volumes.
type recorder struct {
	mu     sync.Mutex
	file   *os.File
	muted  bool // set after a crash
	failed error
	past   Journal
	at     map[int64]int // the index in past.Calls of each seq
	view   view
	used   map[string]int // the number of calls to which each fault applied
	passed map[string]int // the number of calls that each fault skipped
	live   map[*live]bool
}

// live is a call that is running.
type live struct {
	call   Call
	caller callerAddr
	ctx    context.Context
	done   chan struct{} // closed at the end of the call
	late   bool          // valid after done is closed
	gone   time.Time     // the time when the caller gave up or died; zero while it waits
}

// left returns for how long a call may still take effect after the end of its caller.
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

// replay processes the earlier calls. Calls for one volume overlap only if a rule was broken, so
// replay can process the begin and the end of each call together.
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

// count updates the counters of the faults that a call used or skipped.
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

// write appends an entry to the journal. The caller must hold the lock. The method close returns
// the first error of write.
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

// begin writes a call and the rules that it breaks. It returns the other running calls for the same
// volume.
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

	// Step 2: check the rules against the state before the call.
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

// targets returns the targets at which a volume is or may be published, as far as the caller knows.
func (r *recorder) targets(volume string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.view.of(volume).targets))
}

// inUse reports whether a volume is or may be in use, as far as the caller knows.
func (r *recorder) inUse(volume string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.view.of(volume).inUse()
}

// staged reports whether a volume is staged at path, as far as the caller knows. A staged block
// volume has no mount at that path.
func (r *recorder) staged(volume, path string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	vol := r.view.of(volume)
	return vol.staged != no && vol.staging == path
}

// violation records a violation. The caller must hold the lock.
func (r *recorder) violation(v Violation) {
	r.past.Violations = append(r.past.Violations, v)
	r.write(entry{Event: eventViolation, Time: v.Time, Violation: &v})
}

// end records the result of a call.
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

	// The caller's own deadline is never later than the one that the plugin sees. An answer that is
	// late here was therefore late for the caller.
	l.late = l.ctx.Err() != nil
	res.Late = l.late
	if r.muted {
		return // the plugin has crashed, so the caller gets no answer
	}

	l.call.Result = res
	r.past.Calls[r.at[l.call.Seq]].Result = res
	r.write(entry{Event: eventEnd, Time: res.End, Seq: l.call.Seq, Result: &res})
	r.view.end(l.call)
}

// goneWithin is the maximum time until the plugin notices the end of a caller.
const goneWithin = 2 * time.Second

// overlap reports a call that arrived while another call for its volume was running. A call whose
// caller gave up or died does not count. If the callers use different connections, the plugin may
// notice that end later than the new call. Therefore overlap waits a little.
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

	// gRPC also ends the context after an answer in time. The channel done distinguishes the two
	// cases.
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

// overtaken reports a call whose result may still be undone. An earlier call that the caller gave
// up may take effect after this call. The caller of overtaken must hold the lock.
func (r *recorder) overtaken(l, other *live) {
	if other.gone.IsZero() {
		other.gone = now() // the plugin notices only now that the earlier caller has ended
	}
	if !l.call.remakes(other.call) || other.left(l.call.Start) <= 0 {
		return
	}

	r.violation(Violation{
		Rule: RuleOvertaken, Words: fmt.Sprintf("the caller gave up this call %s earlier, and it may still take effect: %s", l.call.Start.Sub(other.gone), other.call), Time: now(),
		Seq: l.call.Seq, Method: l.call.Method, Volume: l.call.Volume,
	})
}
