package supervisor

import (
	"math/rand/v2"
	"time"
)

// Backoff says how long a plugin rests before it is started again. The zero
// value is the default of each field.
type Backoff struct {
	// Base is the first pause, 500 ms by default. It doubles up to Max, 5 min
	// by default. Each pause is ±20 % of its length, so that plugins that fell
	// together do not rise together.
	Base, Max time.Duration
	// ResetAfter is how long a plugin has to be ready, 1 min by default, for
	// its next fall to count as the first.
	ResetAfter time.Duration
	// Burst, 60 by default, is how many times in a row a plugin that had become
	// ready again is started after Base alone. Such a plugin works, and was
	// killed; what never becomes ready has no burst. With the defaults one that
	// falls all day long costs 60 + 288 starts and some.
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

// pauses counts one plugin's falls.
type pauses struct {
	Backoff
	next  time.Duration // the pause before jitter; 0 is Base
	burst int           // falls from ready since the last reset
}

// fell returns the pause after a fall. readyFor is how long the plugin had
// been ready; 0 if it never was.
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

// reset forgets all falls.
func (p *pauses) reset() { p.next, p.burst = 0, 0 }

// jitter returns d ±20 %.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}
