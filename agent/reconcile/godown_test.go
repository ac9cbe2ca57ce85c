package reconcile_test

import (
	"context"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestGoDown checks that GoDown removes all volumes from the host and keeps their claims. If a step
// of one volume hangs, GoDown still removes the other volumes, and returns the hung volume.
func TestGoDown(t *testing.T) {
	s := newSetup(t, "a", "b", "hangs", "new")
	hang := make(chan struct{})
	defer close(hang)
	s.host.do = func(ctx context.Context, id string, a volume.Action) volume.Outcome {
		switch {
		case id == "new" && a.Kind == call.NodePublish:
			return failing(volume.RetryBackoff)
		case id == "hangs" && a.Kind == call.NodeUnpublish:
			select {
			case <-hang:
			case <-ctx.Done():
			}
			return failing(volume.RetryBackoff)
		}
		return volume.Outcome{}
	}
	s.Start()
	for _, id := range []string{"a", "b", "hangs"} {
		s.untilTaken(t, id)
	}
	s.until(t, "new", "tried", func(volume.Record) bool { at := s.Attempt("new", "a"); return at != nil && at.Err != nil })
	s.until(t, "new", "undone", func(r volume.Record) bool { return !r.OnHost() })

	bound, cancel := context.WithCancel(t.Context())
	done := make(chan []volume.Record)
	go func() { done <- s.GoDown(bound) }()
	for _, id := range []string{"a", "b", "new"} {
		s.until(t, id, "off the host", func(r volume.Record) bool { return !r.OnHost() })
	}
	untilTrue(t, "hanging", func() bool {
		at := s.Attempt("hangs", "a")
		return at != nil && at.Running && at.Action.Kind == call.NodeUnpublish
	})
	tried := len(s.host.did())
	s.Wake("a") // a wake must not mount anything during a shutdown
	s.Wake("new")
	s.until(t, "a", "at rest", func(volume.Record) bool {
		at := s.Attempt("a", "a")
		return at != nil && at.Action.Cause == volume.CauseDown
	})
	cancel()
	left := <-done
	if len(left) != 1 || left[0].Volume.ID != "hangs" || !left[0].OnHost() {
		t.Errorf("left are %+v", left)
	}
	for _, r := range s.store.Volumes() {
		if c := r.Claims["a"]; !c.Wanted {
			t.Errorf("the claim on %s is %+v", r.Volume.ID, c)
		}
	}
	if now := s.host.did(); len(now) != tried {
		t.Errorf("done meanwhile: %q", now[tried:])
	}
}

// TestGoDownWithoutPlugin checks that GoDown waits less long for a plugin that is not ready than
// for a plugin that works.
func TestGoDownWithoutPlugin(t *testing.T) {
	s := newSetup(t, "a")
	s.Start()
	s.untilTaken(t, "a")
	s.plugin.set(func(v *plugin.View) { v.Ready, v.State = false, "stopped" })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	if left := s.GoDown(ctx); len(left) != 1 || ctx.Err() != nil {
		t.Errorf("left are %+v, %v", left, ctx.Err())
	}
}
