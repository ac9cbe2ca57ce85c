package reconcile

import "time"

// Delay is how long to wait after the n-th failure in a row.
func Delay(n int) time.Duration { return delay(n) }

// GlancesAtOnce bounds the looks of sweeps.
const GlancesAtOnce = glancesAtOnce

// Kept is of how many volumes anything is kept.
func (q *Queue) Kept() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.entries)
}
