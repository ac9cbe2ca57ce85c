package reconcile_test

import (
	"context"
	"errors"
	"testing"

	"github.com/volagent/volagent/volmgr/volume"
)

// owning is a queue with a volume of two claims, of which the first has its root
// owned for as long as nobody breaks that off, the first time.
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

// To give what is in a volume to one claim's owner can take hours. Another claim of
// the volume goes all the same, and then that is gone on with: no failure, and no news.
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

// What was decided on before the release is not begun after it.
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
