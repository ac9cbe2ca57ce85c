// Package backoff computes the waits between retries.
package backoff

import (
	"math/rand/v2"
	"time"
)

// Delays are waits that start at First and double up to Last.
type Delays struct{ First, Last time.Duration }

// After returns the wait after n failures in a row; n counts from 1.
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

// Jitter returns a random wait between 80 % and 120 % of d, so that retries that began together
// do not stay together.
func Jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}
