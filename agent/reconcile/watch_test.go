package reconcile_test

import (
	"context"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// uncertain returns a setup in which a publish had an unknown outcome and was undone. The claim was
// then detached, so the volume only waits for a late effect.
func uncertain(t *testing.T, deadline time.Duration) *setup {
	t.Helper()
	s := newSetup(t, "v")
	s.plugin.set(func(v *volume.PluginView) { v.CallTimeout = deadline })
	s.host.do = func(_ context.Context, _ string, a volume.Action) volume.Outcome {
		if a.Kind == call.NodePublish {
			return volume.Outcome{Err: &volume.CallError{Step: "step", Code: "DeadlineExceeded", Retry: volume.RetryChange}}
		}
		return volume.Outcome{}
	}
	s.Wake("v")
	s.until(t, "v", "undone", func(r volume.Record) bool {
		return r.Claims["a"].Published == volume.Absent && count(s.host.did(), call.NodeUnpublish) == 1
	})
	s.release(t, "v", "a")
	s.Wake("v")
	s.until(t, "v", "detached", func(r volume.Record) bool { return len(r.Claims) == 0 })
	return s
}

// A mount that appears within the deadline of the call is undone again.
func TestLateEffect(t *testing.T) {
	s := uncertain(t, 10*time.Second) // watched paths are then observed twice a second
	if r, _ := s.store.Volume("v"); !r.Held() {
		t.Fatal("the volume is free before the deadline of an uncertain call")
	}
	s.host.mount("/t/v/a")
	s.until(t, "v", "undone again", func(volume.Record) bool { return count(s.host.did(), call.NodeUnpublish) == 2 })
	s.plugin.set(func(v *volume.PluginView) { v.Incarnation++ })
	s.PluginChanged("p")
	s.untilFree(t, "v")
	if n := count(s.host.did(), call.NodeUnpublish); n != 2 {
		t.Errorf("%d unpublishes, want 2: %q", n, s.host.did())
	}
	if len(s.host.mounts) != 0 {
		t.Errorf("still mounted: %v", s.host.mounts)
	}
}

// After the deadline the volume is no longer watched.
func TestWatchEnds(t *testing.T) {
	s := uncertain(t, 300*time.Millisecond)
	s.untilFree(t, "v")
}

// The watch ends when the process that might cause the late effect is gone.
func TestWatchEndsWithThePlugin(t *testing.T) {
	s := uncertain(t, time.Hour)
	s.plugin.set(func(v *volume.PluginView) { v.Ready = false })
	s.PluginChanged("p")
	if r, _ := s.store.Volume("v"); !r.Held() {
		t.Fatal("the watch ended while the plugin was down")
	}
	s.plugin.set(func(v *volume.PluginView) { v.Ready = true; v.Incarnation++ })
	s.PluginChanged("p")
	s.untilFree(t, "v")
}

// After a restart of the agent the plugin is unknown at first, and is then found still running. It
// does not count as another process, so the watch continues.
func TestWatchSurvivesReattach(t *testing.T) {
	s := newSetup(t, "v")
	r, _ := s.store.Volume("v")
	r.Claims = nil
	r.Node = volume.NodeSide{Watches: []volume.Watch{{Path: "/t/v/a", Alloc: "a"}}}
	s.store.put(r)
	s.plugin.set(func(v *volume.PluginView) { v.Ready, v.Incarnation, v.CallTimeout = false, 0, time.Hour })
	s.Start()
	s.until(t, "v", "watching", func(volume.Record) bool {
		at := s.Attempt("v", "")
		return at != nil && at.Action.Cause == volume.CauseWatch
	})
	s.plugin.set(func(v *volume.PluginView) { v.Ready, v.Incarnation = true, 1 })
	s.PluginChanged("p")
	looks := s.host.lookCount()
	untilTrue(t, "looked at again", func() bool { return s.host.lookCount() > looks })
	s.host.mount("/t/v/a")
	s.PluginChanged("p")
	untilTrue(t, "undone", func() bool { return count(s.host.did(), call.NodeUnpublish) == 1 })
}

func (h *host) lookCount() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.looks
}
