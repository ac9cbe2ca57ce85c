package supervisor

import (
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/backoff"
)

func TestBackoff(t *testing.T) {
	about := func(got, want time.Duration) bool { return got >= want*79/100 && got <= want*121/100 }
	p := pauses{Backoff: Backoff{}.withDefaults()}
	for i, want := range []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second,
		32 * time.Second, 64 * time.Second, 128 * time.Second, 256 * time.Second, 5 * time.Minute, 5 * time.Minute} {
		if got := p.fell(0); !about(got, want) {
			t.Errorf("fall %d: %s, want about %s", i, got, want)
		}
	}
	if got := p.fell(time.Minute); !about(got, 500*time.Millisecond) {
		t.Errorf("after a minute of being ready: %s", got)
	}
	// During a whole day, the plugin becomes ready and fails one second later, again and again.
	p.reset()
	falls := 0
	for left := 24 * time.Hour; left > 0; falls++ {
		left -= p.fell(time.Second) + time.Second
	}
	if falls < 300 || falls > 400 {
		t.Errorf("%d falls a day", falls)
	}
	spread := map[time.Duration]bool{}
	for range 20 {
		spread[backoff.Jitter(time.Second)] = true
	}
	if len(spread) < 10 {
		t.Errorf("no jitter: %v", spread)
	}
}
