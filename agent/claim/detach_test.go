package claim_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

func TestDetach(t *testing.T) {
	w := newWorld()
	w.hold(t, "web")
	if err := w.service().Detach(t.Context(), "data", "web", false, patience); err != nil || w.claims() != "" {
		t.Errorf("%v, claims %q", err, w.claims())
	}
	want(t, w.service().Detach(t.Context(), "data", "web", false, patience), volume.ErrNotFound, `"web" has no claim on volume "data"`)
	want(t, w.service().Detach(t.Context(), "none", "web", false, patience), volume.ErrNotFound, `no volume "none"`)
	want(t, w.service().Detach(t.Context(), "data", "", false, patience), volume.ErrInvalid, "alloc id is missing")
}

// TestDetachJoins checks that a second detach joins the running detach. The agent stores one
// intent, and the end of the claim ends both calls.
func TestDetachJoins(t *testing.T) {
	w := newWorld()
	w.hold(t, "web")
	w.onWake = nil
	writes, wakes := w.writes, w.wakeCount()
	done := make(chan error, 3)
	for range cap(done) {
		go func() { done <- w.service().Detach(context.Background(), "data", "web", false, patience) }()
	}
	awaitWakes(t, w, wakes+cap(done))
	if n := w.writeCount() - writes; n != 1 {
		t.Errorf("%d writes, want 1", n)
	}
	w.obey()
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func awaitWakes(t *testing.T, w *world, n int) {
	t.Helper()
	limit := time.After(patience)
	for begun := w.wakeCount(); w.wakeCount() < n; {
		select {
		case <-time.After(time.Millisecond):
		case <-limit:
			t.Fatalf("%d wakes since %d, want %d", w.wakeCount(), begun, n)
		}
	}
}

func (w *world) wakeCount() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.wakes
}

func (w *world) writeCount() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.writes
}

// TestDetachNoWait checks that the claim is detaching when Detach without a wait returns.
func TestDetachNoWait(t *testing.T) {
	w := newWorld()
	w.hold(t, "web")
	w.onWake = nil
	if err := w.service().Detach(t.Context(), "data", "web", false, 0); err != nil || w.claims() != "-web" {
		t.Errorf("%v, claims %q", err, w.claims())
	}
}

// TestDetachUnfinished checks that the claim is still detaching after the wait has ended.
func TestDetachUnfinished(t *testing.T) {
	unpublish := volume.Action{Kind: call.NodeUnpublish, Alloc: "web"}
	gone, leave := context.WithCancel(context.Background())
	for _, tt := range []struct {
		name   string
		ctx    context.Context
		onWake func(*world)
		kind   error
		words  []string
	}{
		{"no answer", t.Context(), nil, volume.ErrTimeout, []string{`timed out: plugin "ebs" has not answered. Claim "web" is detached`, "keeps unmounting in the background"}},
		{"failures", t.Context(), failWith(unpublish, volume.RetryBackoff), volume.ErrTimeout, []string{"NodeUnpublishVolume", "no such device"}},
		{"waiting", t.Context(), func(w *world) {
			w.change(func() {
				w.attempt = &volume.Attempt{Action: volume.Action{Kind: volume.Wait, Reason: "target /t hangs"}}
			})
		}, volume.ErrTimeout, []string{"target /t hangs"}},
		{"a final error", t.Context(), failWith(unpublish, volume.RetryNever), errCall, []string{"NodeUnpublishVolume"}},
		{"another's forward error", t.Context(), failWith(volume.Action{Kind: call.NodeStage}, volume.RetryNever), volume.ErrTimeout, nil},
		{"the caller is gone", gone, func(*world) { leave() }, context.Canceled, nil},
		{"the plugin is down", t.Context(), func(w *world) {
			w.change(func() { w.setView(false, "crashed") })
		}, volume.ErrPluginUnavailable, []string{`plugin "ebs" is crashed`, "unmounts it when the plugin is ready"}},
	} {
		w := newWorld()
		w.hold(t, "web")
		w.onWake = once(tt.onWake)
		err := w.service().Detach(tt.ctx, "data", "web", false, w.waits(tt.kind))
		if errors.Is(tt.kind, errCall) {
			var ce *volume.CallError
			if !errors.As(err, &ce) {
				t.Errorf("%s: %v hides the call's error", tt.name, err)
			}
			continue
		}
		if err == nil {
			t.Errorf("%s: it is undone", tt.name)
			continue
		}
		want(t, err, tt.kind, tt.words...)
		if got := w.claims(); got != "-web" {
			t.Errorf("%s: the claims are %q", tt.name, got)
		}
	}
}

// TestDetachThenClaimedAnew checks that the wait for the end of a claim also ends when the same
// alloc makes a new claim.
func TestDetachThenClaimedAnew(t *testing.T) {
	w := newWorld()
	w.hold(t, "web")
	w.onWake = nil
	done := make(chan error, 1)
	before := w.wakeCount()
	go func() { done <- w.service().Detach(context.Background(), "data", "web", false, patience) }()
	awaitWakes(t, w, before+1)
	w.mu.Lock()
	w.onWake = (*world).obey
	w.mu.Unlock()
	w.change(func() {
		c := w.r.Claims["web"]
		c.Seq, c.Wanted, c.State = c.Seq+1, true, volume.Mounted
		w.r.Claims = map[string]volume.Claim{"web": c}
	})
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := w.claims(); got != "web" {
		t.Errorf("the claims are %q", got)
	}
}
