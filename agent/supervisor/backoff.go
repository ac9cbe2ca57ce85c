package supervisor

import (
	"math/rand/v2"
	"time"
)

// Backoff sets how long a plugin waits before it is started again. A zero field means its default.
type Backoff struct {
	// Base is the first pause, 500 ms by default. The pause doubles up to Max, 5 min by default.
	// Each pause varies by ±20 %, so that plugins that failed together do not restart together.
	Base, Max time.Duration
	// ResetAfter is how long a plugin must be ready, 1 min by default, before its next failure
	// counts as the first.
	ResetAfter time.Duration
	// Burst, 60 by default, is how many times in a row a plugin that had become ready is restarted
	// after Base alone. Such a plugin works, and was killed. A plugin that never becomes ready has
	// no burst. With the defaults, a plugin that fails all day long costs a little more than 60 +
	// 288 starts.
	Burst int
}

func (b Backoff) withDefaults() Backoff {
	if b.Base <= 0 {
		b.Base = 500 * time.Millisecond
	}

	if b.Max <= 0 {
		b.Max = 5 * time.Minute
	}

	if b.ResetAfter <= 0 {
		b.ResetAfter = time.Minute
	}

	if b.Burst <= 0 {
		b.Burst = 60
	}

	return b
}

// pauses counts the failures of one plugin.
type pauses struct {
	Backoff
	next  time.Duration // the pause before jitter; 0 means Base
	burst int           // failures after being ready, since the last reset
}

// fell returns the pause after a failure. readyFor is how long the plugin had been ready; 0 if it
// never was.
func (p *pauses) fell(readyFor time.Duration) time.Duration {
	if readyFor >= p.ResetAfter {
		p.reset()
	}

	if readyFor > 0 && p.burst < p.Burst {
		p.burst++
		return jitter(p.Base)
	}

	pause := max(p.next, p.Base)
	p.next = min(2*pause, p.Max)
	return jitter(min(pause, p.Max))
}

// reset forgets all failures.
func (p *pauses) reset() { p.next, p.burst = 0, 0 }

// jitter returns d ±20 %.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}
