package hold

import (
	"context"
	"sync"
	"testing"
	"time"
)

// TestLanes queues 2 000 releases and 2 000 status writes that do not end. An admission begins at
// once, and the figures show the queues.
func TestLanes(t *testing.T) {
	l := newLanes()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 2000 {
		for _, in := range []lane{releases, statuses} {
			wg.Go(func() {
				leave, err := l.enter(ctx, in)
				if err == nil {
					<-ctx.Done()
					leave()
				}
			})
		}
	}

	for {
		n, _ := l.queue(releases, time.Now())
		m, age := l.queue(statuses, time.Now())
		if n == 2000-atOnce[releases] && m == 2000-atOnce[statuses] && age > 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}

	soon, stop := context.WithTimeout(ctx, 5*time.Second)
	defer stop()
	for range atOnce[holds] {
		if _, err := l.enter(soon, holds); err != nil {
			t.Fatalf("an admission waits behind releases: %v", err)
		}
	}

	cancel()
	wg.Wait()
	if n, age := l.queue(releases, time.Now()); n != 0 || age != 0 {
		t.Errorf("after the end, %d releases wait, for %s", n, age)
	}
}
