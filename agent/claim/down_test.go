package claim_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// TestHostGoesDown checks that the service refuses new claims once the host shuts down. If a caller
// is still waiting for its claim, the service detaches this claim.
func TestHostGoesDown(t *testing.T) {
	w := newWorld()
	w.onWake = nil
	down := make(chan struct{})
	s := w.service()
	s.Down = down
	done := make(chan error)
	go func() {
		_, _, err := s.Claim(t.Context(), "data", volume.Request{Alloc: "a"}, time.Hour)
		done <- err
	}()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if r, _ := w.Volume("data"); len(r.Claims) == 1 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("it is not claimed")
		}
	}
	close(down)
	for range 2 {
		var err error
		select {
		case err = <-done:
		case <-time.After(patience):
			t.Fatal("it is still waited for")
		}
		if !errors.Is(err, volume.ErrRefused) || !strings.Contains(err.Error(), "this host is shutting down") {
			t.Errorf("%v", err)
		}
		if r, _ := w.Volume("data"); r.Claims["a"].Wanted {
			t.Errorf("it is claimed: %+v", r.Claims)
		}
		go func() {
			_, _, err := s.Claim(t.Context(), "data", volume.Request{Alloc: "b"}, 0)
			done <- err
		}()
	}
	if err := <-done; err == nil {
		t.Error("a claim was admitted")
	}
	if r, _ := w.Volume("data"); r.Claims["b"].Alloc != "" {
		t.Errorf("claims are %+v", r.Claims)
	}
}
