package supervisor

import (
	"time"

	"github.com/volagent/volagent/volmgr/backoff"
)

// Backoff sets how long a plugin waits before it is started again. A zero field means its default.
type Backoff struct {
	// Base is the first pause, 500 ms by default. The pause doubles up to Max, 5 min by default.
	// Each pause varies by ±20 %, so that plugins that failed together do not restart together.
	Base, Max time.Duration
	// ResetAfter is how long a plugin must be ready before earlier failures are forgotten. The
	// default is 1 min.
	ResetAfter time.Duration
	// Burst is how many times in a row a plugin is restarted after only Base, if it was ready
	// before each failure. The default is 60. A plugin that becomes ready works, so something else
	// probably killed it. A plugin that never becomes ready has no burst. With the defaults, a
	// plugin that fails all day long is started a little more than 60 + 288 times.
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

// pauses counts the failures of one plugin and computes the pauses between its starts.
type pauses struct {
	Backoff
	failures int // failures since the last reset, except those that count for burst
	burst    int // failures after the plugin was ready, since the last reset
}

// fell counts a failure and returns the pause before the next start. readyFor is how long the
// plugin was ready before it failed, or 0 if it never became ready.
func (p *pauses) fell(readyFor time.Duration) time.Duration {
	if readyFor >= p.ResetAfter {
		p.reset()
	}

	if readyFor > 0 && p.burst < p.Burst {
		p.burst++
		return backoff.Jitter(p.Base)
	}

	p.failures++
	return backoff.Jitter(backoff.Delays{First: p.Base, Last: p.Max}.After(p.failures))
}

// reset forgets all failures.
func (p *pauses) reset() { p.failures, p.burst = 0, 0 }
