// Package backoff computes how long to wait between retries, and waits.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Delays defines a sequence of delays that begins with First and doubles up to Last.
type Delays struct{ First, Last time.Duration }

// After returns the delay after n consecutive failures, where n is at least 1.
func (d Delays) After(n int) time.Duration {
	wait := min(d.First, d.Last)
	for range n - 1 {
		if wait > d.Last/2 {
			return d.Last
		}
		wait *= 2
	}
	return wait
}

// Jitter returns a random delay between 80 % and 120 % of d. Retries that begin at the same moment
// therefore drift apart.
func Jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}

// Pause waits for d, or until ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
