package backoff_test

import (
	"math"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/backoff"
)

func TestAfter(t *testing.T) {
	d := backoff.Delays{First: 500 * time.Millisecond, Last: 10 * time.Second}
	for n, want := range map[int]time.Duration{
		0: 500 * time.Millisecond, 1: 500 * time.Millisecond, 2: time.Second, 3: 2 * time.Second,
		5: 8 * time.Second, 6: 10 * time.Second, 7: 10 * time.Second, math.MaxInt: 10 * time.Second,
	} {
		if got := d.After(n); got != want {
			t.Errorf("after %d failures: %s, want %s", n, got, want)
		}
	}
	if got := (backoff.Delays{First: time.Minute, Last: time.Second}).After(1); got != time.Second {
		t.Errorf("a first wait above the last one: %s", got)
	}
}

func TestJitter(t *testing.T) {
	seen := map[time.Duration]bool{}
	for range 100 {
		d := backoff.Jitter(time.Second)
		if seen[d] = true; d < 800*time.Millisecond || d > 1200*time.Millisecond {
			t.Fatalf("%s is not within 20 %% of a second", d)
		}
	}
	if len(seen) < 10 {
		t.Errorf("only %d different waits", len(seen))
	}
}
