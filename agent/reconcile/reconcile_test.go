package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/reconcile"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

func TestMountAndRelease(t *testing.T) {
	s := newSetup(t, "v")
	s.Wake("v")
	s.untilTaken(t, "v")
	s.release(t, "v", "a")
	s.Wake("v")
	s.untilFree(t, "v")
	// wait for the last events, which the queue emits after it has saved the record
	s.Stop(t.Context())
	if want := []string{"NodePublishVolume", "NodeUnpublishVolume", "free"}; !reflect.DeepEqual(s.host.did(), want) {
		t.Errorf("steps %q, want %q", s.host.did(), want)
	}
	var got []string
	for _, e := range s.events {
		got = append(got, string(e.Type))
	}
	if want := []string{"published", "claim-mounted", "unpublished", "claim-detached"}; !reflect.DeepEqual(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}
	if s.store.durable != 2 {
		t.Errorf("%d durable saves, want 2", s.store.durable)
	}
}

// TestStart checks that Start observes only volumes that may have a mount or a device on this host.
func TestStart(t *testing.T) {
	s := newSetup(t, "v")
	free := claimed(t, "free")
	s.store.put(free)
	s.Start()
	s.untilTaken(t, "v")
	s.Stop(t.Context()) // stop the queue, so that it observes no other volume
	if at := s.Attempt("free", ""); at != nil || !reflect.DeepEqual(s.host.looked, map[string]bool{"v": true}) {
		t.Errorf("a free volume was looked at: %+v, looked at %v", at, s.host.looked)
	}
}

// TestInFlight checks that at most one step of a volume runs at a time, and that steps of different
// volumes run at the same time.
func TestInFlight(t *testing.T) {
	var ids []string
	for i := range 20 {
		ids = append(ids, fmt.Sprintf("v%d", i))
	}
	s := newSetup(t, ids...)
	begun, pass := make(chan struct{}, len(ids)), make(chan struct{})
	s.host.do = func(context.Context, string, volume.Action) volume.Outcome {
		begun <- struct{}{}
		<-pass
		return volume.Outcome{}
	}
	for range 3 {
		for _, id := range ids {
			s.Wake(id)
		}
	}
	for range ids {
		<-begun // the test hangs here unless all steps run at the same time
	}
	for _, id := range ids {
		s.Wake(id)
	}
	close(pass)
	for _, id := range ids {
		s.untilTaken(t, id)
	}
	if s.host.most != len(ids) || len(s.host.did()) != len(ids) {
		t.Errorf("%d steps at once, %d in all, want %d", s.host.most, len(s.host.did()), len(ids))
	}
}

// TestIntentDuringStep checks an intent that arrives during a step. The queue must handle the
// intent after the step.
func TestIntentDuringStep(t *testing.T) {
	s := newSetup(t, "v")
	begun, pass := make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	s.host.do = func(context.Context, string, volume.Action) volume.Outcome {
		if once.CompareAndSwap(false, true) {
			close(begun)
			<-pass
		}
		return volume.Outcome{}
	}
	s.Wake("v")
	<-begun
	r, _ := s.store.Volume("v")
	s.store.put(admit(t, r, "b"))
	s.Wake("v")
	s.release(t, "v", "a")
	s.Wake("v")
	close(pass)
	s.until(t, "v", "b's alone", func(r volume.Record) bool {
		return len(r.Claims) == 1 && r.Claims["b"].State == volume.Mounted
	})
	if want := []string{"NodePublishVolume", "NodeUnpublishVolume", "free", "NodePublishVolume"}; !reflect.DeepEqual(s.host.did(), want) {
		t.Errorf("steps %q, want %q", s.host.did(), want)
	}
}

// TestBackoff checks that the queue retries a failed step with growing delays.
func TestBackoff(t *testing.T) {
	s := newSetup(t, "v")
	s.host.do = func(_ context.Context, _ string, a volume.Action) volume.Outcome {
		if a.Kind == call.NodePublish {
			return failing(volume.RetryBackoff)
		}
		return volume.Outcome{}
	}
	s.Wake("v")
	var third *volume.Attempt
	s.until(t, "v", "tried twice", func(volume.Record) bool {
		third = s.Attempt("v", "a")
		return third != nil && third.Tries >= 2 && !third.Running
	})
	var at []time.Time
	for i, step := range s.host.did() {
		if step == string(call.NodePublish) {
			at = append(at, s.host.times[i])
		}
	}
	// A busy host can delay the tries, but not bring them forward. TestDelays checks the upper
	// bounds.
	if gap := at[1].Sub(at[0]); gap < 400*time.Millisecond {
		t.Errorf("the second try came after %v, want 500 ms ± 20 %%", gap)
	}
	if next := third.Next.Sub(at[1]); next < 800*time.Millisecond {
		t.Errorf("the third try is due %v after the second, want 1 s ± 20 %%", next)
	}
	// Each failure emits an event that names the step.
	if evs := s.failures(); len(evs) != 2 || evs[0].Step != "NodePublishVolume" {
		t.Errorf("two failures are the events %+v", evs)
	}
	s.host.setDo(nil)
	s.Wake("v")
	s.untilTaken(t, "v")
	if at := s.Attempt("v", "a"); at != nil && at.Err != nil {
		t.Errorf("the failure is remembered after success: %+v", at)
	}
}

func (s *setup) failures() (evs []volume.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		if e.Type == "step-failed" {
			evs = append(evs, e)
		}
	}
	return evs
}

func (h *host) setDo(fn func(context.Context, string, volume.Action) volume.Outcome) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.do = fn
}

// TestWakeIsAtOnce checks that a new intent does not wait for the due time of a retry.
func TestWakeIsAtOnce(t *testing.T) {
	s := newSetup(t, "v")
	s.host.do = func(context.Context, string, volume.Action) volume.Outcome { return failing(volume.RetryBackoff) }
	for tries := 1; tries <= 6; tries++ { // after six failures, the next retry is due only in 16 s
		s.Wake("v")
		s.until(t, "v", "tried", func(volume.Record) bool {
			at := s.Attempt("v", "a")
			return at != nil && at.Tries >= tries && !at.Running
		})
	}
	s.host.setDo(nil)
	s.Wake("v")
	s.untilTaken(t, "v")
}

// TestFinalError checks that the queue does not retry a step with a final error until something
// changes.
func TestFinalError(t *testing.T) {
	for _, retry := range []volume.Retry{volume.RetryChange, volume.RetryNever} {
		s := newSetup(t, "v")
		s.host.do = func(_ context.Context, _ string, a volume.Action) volume.Outcome {
			if a.Kind == call.NodePublish {
				return failing(retry)
			}
			return volume.Outcome{}
		}
		s.Wake("v")
		s.until(t, "v", "failed", func(r volume.Record) bool {
			at := s.Attempt("v", "a")
			return r.Claims["a"].Published == volume.Absent && at != nil && at.Err != nil && !at.Running
		})
		select {
		case <-time.After(700 * time.Millisecond): // wait longer than the first retry delay
		case <-t.Context().Done():
		}
		if n := count(s.host.did(), call.NodePublish); n != 1 {
			t.Errorf("%s: %d tries, want 1", retry, n)
		}
		if at := s.Attempt("v", "a"); at == nil || at.Err == nil || !at.Next.IsZero() {
			t.Errorf("%s: the attempt is %+v", retry, at)
		}
		s.host.setDo(nil)
		s.PluginChanged("p")
		s.untilTaken(t, "v")
	}
}

func count(steps []string, k call.Method) (n int) {
	for _, s := range steps {
		if s == string(k) {
			n++
		}
	}
	return n
}

// TestParkedAlone checks that a failure of one claim does not delay another claim.
func TestParkedAlone(t *testing.T) {
	s := newSetup(t)
	s.store.put(claimed(t, "v", "bad", "a"))
	s.host.do = func(_ context.Context, _ string, a volume.Action) volume.Outcome {
		if a.Alloc == "bad" && a.Forward() {
			return failing(volume.RetryNever)
		}
		return volume.Outcome{}
	}
	s.Wake("v")
	s.untilTaken(t, "v")
	if at := s.Attempt("v", "a"); at != nil && at.Err != nil {
		t.Errorf("one claim is told of another's failure: %+v", at)
	}
	if at := s.Attempt("v", "bad"); at == nil || at.Err == nil {
		t.Errorf("the failed claim is told %+v", at)
	}
}

// TestPluginReady checks that the queue calls no plugin that is not ready. When the plugin becomes
// ready, the queue wakes its volumes.
func TestPluginReady(t *testing.T) {
	s := newSetup(t, "v")
	s.plugin.set(func(v *plugin.View) { v.Ready, v.State = false, "starting" })
	s.Wake("v")
	s.until(t, "v", "waiting", func(volume.Record) bool {
		at := s.Attempt("v", "a")
		return at != nil && at.Action.Cause == volume.CausePlugin
	})
	if steps := s.host.did(); len(steps) != 0 {
		t.Errorf("steps %q for a plugin that is not ready", steps)
	}
	s.plugin.set(func(v *plugin.View) { v.Ready = true })
	s.PluginChanged("other")
	s.PluginChanged("p")
	s.untilTaken(t, "v")
}

func TestHalt(t *testing.T) {
	s := newSetup(t, "v")
	s.halt("in another mount namespace")
	s.Wake("v")
	s.until(t, "v", "halted", func(volume.Record) bool {
		at := s.Attempt("v", "a")
		return at != nil && at.Action.Cause == volume.CauseHalted
	})
	if steps := s.host.did(); len(steps) != 0 {
		t.Errorf("steps %q while halted", steps)
	}
}

// TestSaveFails checks that a failed save does not stop the work.
func TestSaveFails(t *testing.T) {
	s := newSetup(t, "v")
	s.store.fail = errFull
	s.Wake("v")
	s.untilTaken(t, "v")
}

// TestExclusive checks that Exclusive and a step of the volume never run at the same time.
func TestExclusive(t *testing.T) {
	s := newSetup(t, "v")
	begun, pass := make(chan struct{}), make(chan struct{})
	s.host.do = func(context.Context, string, volume.Action) volume.Outcome {
		close(begun)
		<-pass
		return volume.Outcome{}
	}
	s.Wake("v")
	<-begun
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := s.Exclusive(short, "v", func() error { t.Error("it ran beside a step"); return nil }); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it gave up with %v", err)
	}
	close(pass)
	s.untilTaken(t, "v")

	s.host.setDo(nil)
	s.release(t, "v", "a")
	before := len(s.host.did())
	err := s.Exclusive(t.Context(), "v", func() error {
		s.Wake("v")
		second, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if err := s.Exclusive(second, "v", func() error { return nil }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("two at once: %v", err)
		}
		if err := s.Exclusive(t.Context(), "another", func() error { return nil }); err != nil {
			t.Errorf("another volume: %v", err)
		}
		if n := len(s.host.did()); n != before {
			t.Errorf("%d steps ran meanwhile", n-before)
		}
		return errFull
	})
	if !errors.Is(err, errFull) {
		t.Errorf("its error is %v", err)
	}
	s.untilFree(t, "v")
}

// TestForgetDuringStep checks a volume that is deregistered and registered again during a call. The
// new volume must wait for that call.
func TestForgetDuringStep(t *testing.T) {
	s := newSetup(t, "v")
	begun, pass := make(chan struct{}), make(chan struct{})
	var calls atomic.Int32
	s.host.do = func(context.Context, string, volume.Action) volume.Outcome {
		if calls.Add(1) == 1 {
			close(begun)
			<-pass
		}
		return volume.Outcome{}
	}
	s.Wake("v")
	<-begun
	s.store.drop("v")
	s.Forget("v")
	s.store.put(claimed(t, "v", "a"))
	s.Wake("v")
	waits := make(chan error, 1)
	go func() { waits <- s.Exclusive(t.Context(), "v", func() error { return nil }) }()
	select {
	case err := <-waits:
		t.Errorf("two calls of one volume at once: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(pass)
	if err := <-waits; err != nil {
		t.Error(err)
	}
	s.untilTaken(t, "v")
}

// TestOneCallForStorage checks that the queue makes no other call for a storage volume while it
// makes the pending calls of this storage. This also holds if the leftover record is deleted
// meanwhile.
func TestOneCallForStorage(t *testing.T) {
	s := newSetup(t)
	of := func(r volume.Record) volume.Record {
		r.Volume.Driver, r.Volume.ExternalID = "d", "x"
		return r
	}
	debt := of(claimed(t, "old", "a"))
	c := debt.Claims["a"]
	c.Wanted, c.Published = false, volume.Failed
	debt.Claims = map[string]volume.Claim{"a": c}
	debt.Leftover = true
	s.store.put(debt)
	begun, pass := make(chan struct{}), make(chan struct{})
	s.host.do = func(context.Context, string, volume.Action) volume.Outcome {
		close(begun)
		<-pass
		return volume.Outcome{}
	}
	s.Wake(debt.Key())
	<-begun
	s.host.setDo(nil)
	s.store.drop(debt.Key())
	s.Forget(debt.Key())
	s.store.put(of(claimed(t, "new", "a")))
	s.Wake("new")
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	for _, key := range []string{debt.Key(), "new"} {
		if err := s.Exclusive(short, key, func() error { return nil }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%q: two calls of one storage volume at once: %v", key, err)
		}
	}
	if did := s.host.did(); len(did) != 1 {
		t.Errorf("two steps at once: %q", did)
	}
	// After Abandon, the volume does not wait for the call any longer.
	s.Abandon("new")
	close(pass)
	s.untilTaken(t, "new")
	if err := s.Exclusive(t.Context(), "new", func() error {
		again, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if err := s.Exclusive(again, debt.Key(), func() error { return nil }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a registration beside a call: %v", err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// TestAbandonBeforeCall checks that Abandon also drops a call that the queue has chosen but not
// started.
func TestAbandonBeforeCall(t *testing.T) {
	s := newSetup(t, "v")
	looking, pass := make(chan struct{}), make(chan struct{})
	var looks atomic.Int32
	s.host.look = func() {
		if looks.Add(1) == 1 {
			close(looking)
			<-pass
		}
	}
	s.host.do = func(ctx context.Context, _ string, a volume.Action) volume.Outcome {
		if a.Forward() {
			<-ctx.Done() // the plugin hangs until the call is cancelled
			return failing(volume.RetryBackoff)
		}
		return volume.Outcome{}
	}
	s.Wake("v")
	<-looking
	r, _ := s.store.Volume("v")
	next, err := volume.DetachWithout(r, "a", volume.ByLazy)
	if err != nil {
		t.Fatal(err)
	}
	s.store.put(next)
	s.Wake("v")
	s.Abandon("v")
	close(pass)
	s.untilFree(t, "v")
	if did := s.host.did(); !slices.Equal(did, []string{"free"}) {
		t.Errorf("steps: %q", did)
	}
}

// TestForcedWhileSaving checks a forced deregister while the queue saves the outcome of a call. The
// leftover record must contain this outcome.
func TestForcedWhileSaving(t *testing.T) {
	s := newSetup(t)
	r := claimed(t, "v", "a")
	r.Volume.Driver, r.Volume.ExternalID = "d", "x"
	s.store.put(r)
	debt := r
	debt.Leftover = true
	var once sync.Once
	s.store.saving = func() {
		once.Do(func() {
			s.store.drop("v")
			s.store.put(debt)
		})
	}
	s.Wake("v")
	untilTrue(t, "kept", func() bool {
		now, _ := s.store.Volume(debt.Key())
		return now.Claims["a"].Published == volume.Present
	})
}

// TestIdle checks that a settled queue has no goroutine and no active timer, and observes nothing.
func TestIdle(t *testing.T) {
	before := runtime.NumGoroutine()
	var ids []string
	for i := range 50 {
		ids = append(ids, fmt.Sprintf("v%d", i))
	}
	s := newSetup(t, ids...)
	for _, id := range ids {
		s.Wake(id)
	}
	for _, id := range ids {
		s.untilTaken(t, id)
	}
	untilTrue(t, "idle", func() bool { return runtime.NumGoroutine() <= before })
	s.host.mu.Lock()
	looks := s.host.looks
	s.host.mu.Unlock()
	select {
	case <-time.After(300 * time.Millisecond):
	case <-t.Context().Done():
	}
	s.host.mu.Lock()
	defer s.host.mu.Unlock()
	if s.host.looks != looks {
		t.Errorf("an idle queue looked %d times", s.host.looks-looks)
	}
}

// TestStop checks that Stop waits for the running steps and starts no other steps. It also checks
// that the wait has a time limit.
func TestStop(t *testing.T) {
	s := newSetup(t, "v", "w")
	begun, pass := make(chan struct{}, 2), make(chan struct{})
	s.host.do = func(ctx context.Context, id string, _ volume.Action) volume.Outcome {
		begun <- struct{}{}
		if id == "v" {
			<-pass
			return volume.Outcome{}
		}
		<-ctx.Done()
		return volume.Outcome{Err: &volume.CallError{Step: "step", Code: "Canceled", Retry: volume.RetryBackoff}}
	}
	s.Wake("v")
	s.Wake("w")
	<-begun
	<-begun
	since := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	close(pass)
	s.Stop(ctx)
	if took := time.Since(since); took < 500*time.Millisecond || took > 10*time.Second {
		t.Errorf("it took %v, want the 500 ms that it was given", took)
	}
	if r, _ := s.store.Volume("v"); r.Claims["a"].State != volume.Mounted {
		t.Errorf("the step that ended in time was not recorded: %+v", r.Claims["a"])
	}
	if r, _ := s.store.Volume("w"); r.Claims["a"].Published != volume.Failed || len(r.Node.Watches) != 1 {
		t.Errorf("the step that was cut short is recorded as %+v, watches %+v", r.Claims["a"], r.Node.Watches)
	}
	s.mu.Lock()
	for _, e := range s.events {
		if e.Volume == "w" && e.Type != "step-interrupted" {
			t.Errorf("a step that was cut short is told as %+v", e)
		}
	}
	s.mu.Unlock()
	steps := len(s.host.did())
	s.Wake("w")
	s.PluginChanged("p")
	if n := len(s.host.did()); n != steps {
		t.Errorf("%d steps after Stop", n-steps)
	}
}

// TestStopHung checks that Stop waits one second longer for a step that ignores the end of its
// context.
func TestStopHung(t *testing.T) {
	s := newSetup(t, "v")
	begun, pass := make(chan struct{}), make(chan struct{})
	defer close(pass)
	s.host.do = func(context.Context, string, volume.Action) volume.Outcome {
		close(begun)
		<-pass
		return volume.Outcome{}
	}
	s.Wake("v")
	<-begun
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	since := time.Now()
	s.Stop(ctx)
	if took := time.Since(since); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestLook(t *testing.T) {
	s := newSetup(t, "v")
	s.Wake("v")
	s.untilTaken(t, "v")
	r, _ := s.store.Volume("v")
	obs, at := s.Look(t.Context(), r)
	if at != nil || !obs.Plugin.Ready || obs.Targets["a"].Seen != volume.SeenMount {
		t.Errorf("seen %+v, attempt %+v", obs, at)
	}
	if !slices.Equal(s.host.did(), []string{"NodePublishVolume"}) {
		t.Errorf("a look did something: %q", s.host.did())
	}
}

// TestWakeDuringStep checks a wake during a step. If the step then fails, the queue must retry it
// at once, because the reason for the failure may be gone since the step began.
func TestWakeDuringStep(t *testing.T) {
	s := newSetup(t, "v")
	begun, pass := make(chan struct{}), make(chan struct{})
	var calls atomic.Int32
	s.host.do = func(_ context.Context, _ string, a volume.Action) volume.Outcome {
		if a.Kind == call.NodePublish && calls.Add(1) == 1 {
			close(begun)
			<-pass
			return failing(volume.RetryChange)
		}
		return volume.Outcome{}
	}
	s.Wake("v")
	<-begun
	s.Wake("v")
	close(pass)
	s.untilTaken(t, "v")
}

// TestDelays checks that a step that fails for a whole day is attempted at most 400 times.
func TestDelays(t *testing.T) {
	for n, want := range map[int]time.Duration{1: 500 * time.Millisecond, 2: time.Second, 9: 128 * time.Second, 10: 256 * time.Second, 11: 5 * time.Minute, 1 << 40: 5 * time.Minute} {
		for range 100 {
			if d := reconcile.Delay(n); d < want*8/10 || d > want*12/10 {
				t.Errorf("after failure %d comes a delay of %v, want %v ± 20 %%", n, d, want)
			}
		}
	}
	tries := 0
	for day := time.Duration(0); day < 24*time.Hour; day += reconcile.Delay(tries) {
		tries++
	}
	if tries > 400 {
		t.Errorf("%d attempts in a day", tries)
	}
}

// TestCall checks how the status of a volume shows a create or delete call. The status must show
// the call while it runs and after it has failed, but not after it has succeeded.
func TestCall(t *testing.T) {
	s := newSetup(t, "v")
	r, _ := s.store.Volume("v")
	r.Claims, r.Volume.Provision = nil, volume.Deleting
	s.store.put(r)
	look := func() *volume.Attempt { _, at := s.Look(t.Context(), r); return at }
	call := func(err error) error {
		return s.Call(t.Context(), "v", call.DeleteVolume, func() error {
			if at := look(); at == nil || at.Action.Kind != call.DeleteVolume || !at.Running || at.First.IsZero() {
				t.Errorf("while it runs: %+v", at)
			}
			return err
		})
	}
	for tries := range 2 {
		if err := call(failing(volume.RetryBackoff).Err); err == nil {
			t.Error("the error is lost")
		}
		if at := look(); at == nil || at.Running || at.Tries != tries+1 || at.Err == nil {
			t.Errorf("when it failed: %+v", at)
		}
	}
	if at := s.Attempt("v", "a"); at != nil {
		t.Errorf("whoever waits for a claim is told of %+v", at)
	}
	if err := call(nil); err != nil {
		t.Error(err)
	}
	if at := look(); at != nil {
		t.Errorf("when it went well: %+v", at)
	}
}
