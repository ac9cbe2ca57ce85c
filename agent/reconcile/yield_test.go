package reconcile_test

import (
	"context"
	"errors"
	"testing"

	"github.com/volagent/volagent/volmgr/volume"
)

// owning returns a queue with a volume that has two claims. For the first claim, the queue is
// changing the owner of the volume's files. This step runs until the queue cancels it.
func owning(t *testing.T) (s *setup, begun chan struct{}) {
	t.Helper()
	s, begun = newSetup(t), make(chan struct{}, 1)
	r := claimed(t, "v", "a", "b")
	c := r.Claims["a"]
	c.Own.UID = "1000"
	r.Claims["a"] = c
	s.store.put(r)
	first := true
	s.host.do = func(ctx context.Context, _ string, a volume.Action) volume.Outcome {
		if a.Kind != volume.Own || !first {
			return volume.Outcome{}
		}
		first = false
		begun <- struct{}{}
		<-ctx.Done()
		err := volume.HostError(string(a.Kind), errors.New("broken off"))
		err.Code = "Canceled"
		return volume.Outcome{Err: err, Unsent: true}
	}
	return s, begun
}

// TestOwnYieldsToOthers checks that a change of the owner of all files does not delay the detach of
// another claim, although the change can take hours. After the detach, the queue continues the
// change. It emits no failure event.
func TestOwnYieldsToOthers(t *testing.T) {
	s, begun := owning(t)
	s.Wake("v")
	<-begun
	s.release(t, "v", "b")
	s.Wake("v")
	s.Yield("v")
	s.until(t, "v", "free of b", func(r volume.Record) bool { _, ok := r.Claims["b"]; return !ok })
	s.untilTaken(t, "v")
	s.Stop(t.Context())
	for _, e := range s.events {
		if e.Type == "step-failed" {
			t.Errorf("it was told as a failure: %+v", e)
		}
	}
}

// TestOwnNotBegun checks a change of the file owner that the queue had chosen but not started when
// a claim was detached. The queue must not start this step after the detach.
func TestOwnNotBegun(t *testing.T) {
	s, begun := owning(t)
	s.host.look = func() {
		if r, _ := s.store.Volume("v"); r.Claims["a"].Published == volume.Present && r.Claims["a"].Wanted {
			s.release(t, "v", "a")
			s.Yield("v")
		}
	}
	s.Wake("v")
	s.until(t, "v", "free of a", func(r volume.Record) bool { _, ok := r.Claims["a"]; return !ok })
	s.Stop(t.Context())
	if len(begun) > 0 {
		t.Error("it was begun for a claim that was released")
	}
}
