package supervisor

import (
	"time"

	"github.com/volagent/volagent/volmgr/backoff"
)

// Backoff sets how long the supervisor waits before it restarts a plugin. A zero field means the
// default.
type Backoff struct {
	// Base is the first pause, 500 ms by default. Each failure doubles the pause, up to Max, 5 min
	// by default. Each pause varies by ±20 %, so that plugins that failed together do not restart
	// together.
	Base, Max time.Duration
	// ResetAfter is how long a plugin must be ready until the supervisor forgets earlier failures.
	// The default is 1 min.
	ResetAfter time.Duration
	// Burst is how many times in a row the supervisor restarts a plugin after only the pause Base.
	// The default is 60. Only failures of a plugin that was ready count, because such a plugin
	// works, so another program probably killed it. A plugin that never becomes ready has no burst.
	// With the defaults, a plugin that fails all day is started a little more than 60 + 288 times.
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
	failures int // failures since the last reset, except those that burst counts
	burst    int // failures of the ready plugin since the last reset
}

// fell counts a failure and returns the pause before the next start. The argument readyFor is how
// long the plugin was ready before the failure, or 0 if it never became ready.
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
