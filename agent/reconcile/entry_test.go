package reconcile

import (
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestNextDue checks that a step that is due but cannot run sets no timer. Such a timer would fire
// again and again without a delay.
func TestNextDue(t *testing.T) {
	now := time.Now()
	e := newEntry()
	for i, next := range []time.Time{{}, now.Add(-time.Second), now, now.Add(time.Hour), now.Add(time.Minute)} {
		e.failed[string(rune('a'+i))] = &volume.Attempt{Next: next}
	}
	if got := e.nextDue(now); !got.Equal(now.Add(time.Minute)) {
		t.Errorf("next due in %s", got.Sub(now))
	}
	e.due(false)
	if got := e.nextDue(now); !got.IsZero() {
		t.Errorf("all are due, and the timer is set to %s", got)
	}
}

// TestPaceOfWaits lets a volume wait for another host more often than it may fail. A later failure of another step
// is retried as soon as usual.
func TestPaceOfWaits(t *testing.T) {
	now := time.Now()
	e := newEntry()
	end := func(k call.Method, code string) {
		a := volume.Action{Kind: k}
		e.begin(a)
		e.end(a, volume.Outcome{Err: &volume.CallError{Code: code, Retry: volume.RetryBackoff}}, now)
	}
	for range 2 * burst {
		end(volume.Acquire, volume.CodeHeld)
	}
	end(call.NodeUnpublish, "DeadlineExceeded")
	if in := e.nextDue(now).Sub(now); in > 2*firstDelay {
		t.Errorf("the first failure of a step is tried again in %s", in)
	}
}

// TestPace checks that after the burst, each failing volume is retried once in five minutes. No
// event that makes the failed steps due may shorten this time, except a new request: the queue
// tries a new request at once, but only once.
func TestPace(t *testing.T) {
	now := time.Now()
	e := newEntry()
	a := volume.Action{Kind: call.NodePublish, Alloc: "a"}
	failed := volume.Outcome{Err: &volume.CallError{Step: "x", Code: "Internal", Retry: volume.RetryBackoff}}
	due := func() bool { return !e.parked(now)[a.Key()] }
	fail := func() {
		e.begin(a)
		e.end(a, failed, now)
	}
	for i := range burst {
		fail()
		if e.due(false); !due() {
			t.Fatalf("after %d failures a plugin that becomes ready makes no step due", i+1)
		}
	}
	fail()
	if e.due(false); due() {
		t.Error("the budget has no end")
	}
	if in := e.nextDue(now).Sub(now); in <= 0 || in > lastDelay {
		t.Errorf("it is tried again in %v", in)
	}
	if at := e.attempt(func(volume.Action) bool { return true }); !at.Next.Equal(e.nextDue(now)) {
		t.Errorf("people are told %v, and it is %v", at.Next, e.nextDue(now))
	}
	if e.due(true); !due() {
		t.Error("a new request is not tried at once")
	}
	fail()
	if e.due(false); due() {
		t.Error("a new request is tried more than once")
	}
	now = now.Add(3 * lastDelay)
	if !due() {
		t.Error("it is never tried again")
	}
	now = now.Add(200 * lastDelay)
	for range 5 {
		fail()
	}
	if e.due(false); !due() {
		t.Error("a quiet day does not fill the budget again")
	}
}

// TestFresh checks that an observation is reused only by the next turn, and only while it is
// recent.
func TestFresh(t *testing.T) {
	now := time.Now()
	a := volume.Action{Kind: call.NodePublish, Alloc: "a", Path: "/t/a"}
	saw := volume.Outcome{Sight: &volume.Sight{Seen: volume.SeenMount}}
	e := newEntry()
	e.glimpsed(a, saw, now)
	if g := e.fresh(now.Add(freshFor)); g.Path != "/t/a" || g.Seen != volume.SeenMount {
		t.Errorf("just seen: %+v", g)
	}
	if g := e.fresh(now); g.Path != "" {
		t.Errorf("seen once and used twice: %+v", g)
	}
	e.glimpsed(a, saw, now)
	if g := e.fresh(now.Add(freshFor + 1)); g.Path != "" {
		t.Errorf("old: %+v", g)
	}
	e.glimpsed(a, saw, now)
	e.glimpsed(a, volume.Outcome{}, now)
	if g := e.fresh(now); g.Path != "" {
		t.Errorf("the step after it saw nothing: %+v", g)
	}
}

// TestCorrectWait checks when a wait for a late attachment ends that began before the agent knew the
// controller.
func TestCorrectWait(t *testing.T) {
	begun := time.Unix(1000, 0)
	view := func(timeout time.Duration) plugin.View { return plugin.View{ControllerTimeout: timeout} }
	for name, c := range map[string]struct {
		first, later time.Duration // of the controller; 0 while it is unknown
		want         time.Duration
	}{
		"unknown":              {0, 0, defaultDeadline},
		"a short time, later":  {0, time.Second, time.Second},
		"a long time, later":   {0, time.Hour, time.Hour},
		"known at once":        {time.Second, time.Second, time.Second},
		"changed by the admin": {time.Hour, time.Second, time.Hour}, // the call began under the old limit
	} {
		e := newEntry()
		e.watchAttachment(begun, view(c.first))
		for range 2 {
			e.correctWait(view(c.later))
		}
		if got := e.attachUntil.Sub(begun); got != c.want {
			t.Errorf("%s: the wait takes %s instead of %s", name, got, c.want)
		}
	}
}

// TestHeldTries checks that the waits for another host do not delay the retry of a step that then fails by
// itself. An announced call of a volume ends with this retry, and other hosts wait for that.
func TestHeldTries(t *testing.T) {
	now := time.Now()
	e := newEntry()
	a := volume.Action{Kind: call.ControllerPublish}
	fail := func(code string) time.Duration {
		e.begin(a)
		e.end(a, volume.Outcome{Err: &volume.CallError{Step: "x", Code: code, Retry: volume.RetryBackoff}}, now)
		return e.failed[a.Key()].Next.Sub(now)
	}
	for range 8 {
		fail(volume.CodeHeld)
	}
	if in := fail(volume.CodeInternal); in > 2*firstDelay {
		t.Errorf("the step is tried again in %s", in)
	}
	if in := fail(volume.CodeInternal); in < firstDelay {
		t.Errorf("after a second failure, the step is tried again in %s", in)
	}
}
