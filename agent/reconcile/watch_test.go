package reconcile_test

import (
	"context"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// uncertain returns a setup in which a publish had an unknown outcome and the queue has undone the
// publish. The claim is detached, so the volume only waits for a late effect.
func uncertain(t *testing.T, deadline time.Duration) *setup {
	t.Helper()
	s := newSetup(t, "v")
	s.plugin.set(func(v *plugin.View) { v.CallTimeout = deadline })
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

// TestLateEffect checks that the queue unmounts a mount that a call makes after it timed out, but
// within one call deadline.
func TestLateEffect(t *testing.T) {
	// this deadline makes the queue observe the watched paths twice a second
	s := uncertain(t, 10*time.Second)
	if r, _ := s.store.Volume("v"); !r.Held() {
		t.Fatal("the volume is free before the deadline of an uncertain call")
	}
	s.host.mount("/t/v/a")
	s.until(t, "v", "undone again", func(volume.Record) bool { return count(s.host.did(), call.NodeUnpublish) == 2 })
	s.plugin.set(func(v *plugin.View) { v.Incarnation++ })
	s.PluginChanged("p")
	s.untilFree(t, "v")
	if n := count(s.host.did(), call.NodeUnpublish); n != 2 {
		t.Errorf("%d unpublishes, want 2: %q", n, s.host.did())
	}
	if len(s.host.mounts) != 0 {
		t.Errorf("still mounted: %v", s.host.mounts)
	}
}

// TestWatchEnds checks that the queue no longer watches the volume after the deadline.
func TestWatchEnds(t *testing.T) {
	s := uncertain(t, 300*time.Millisecond)
	s.untilFree(t, "v")
}

// TestWatchEndsWithThePlugin checks that the watch ends when the plugin process that may cause the
// late effect has ended.
func TestWatchEndsWithThePlugin(t *testing.T) {
	s := uncertain(t, time.Hour)
	s.plugin.set(func(v *plugin.View) { v.Ready = false })
	s.PluginChanged("p")
	if r, _ := s.store.Volume("v"); !r.Held() {
		t.Fatal("the watch ended while the plugin was down")
	}
	s.plugin.set(func(v *plugin.View) { v.Ready = true; v.Incarnation++ })
	s.PluginChanged("p")
	s.untilFree(t, "v")
}

// TestWatchSurvivesReattach checks a restart of the agent while the plugin process keeps running.
// At first, the new agent does not know this process. When the agent finds the process, it must not
// treat it as a new process, so the watch continues.
func TestWatchSurvivesReattach(t *testing.T) {
	s := newSetup(t, "v")
	r, _ := s.store.Volume("v")
	r.Claims = nil
	r.Node = volume.NodeSide{Watches: []volume.Watch{{Path: "/t/v/a", Alloc: "a"}}}
	s.store.put(r)
	s.plugin.set(func(v *plugin.View) { v.Ready, v.Incarnation, v.CallTimeout = false, 0, time.Hour })
	s.Start()
	s.until(t, "v", "watching", func(volume.Record) bool {
		at := s.Attempt("v", "")
		return at != nil && at.Action.Cause == volume.CauseWatch
	})
	s.plugin.set(func(v *plugin.View) { v.Ready, v.Incarnation = true, 1 })
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
