package reconcile

import "time"

// Delay returns the wait after the n-th failure in a row.
func Delay(n int) time.Duration { return delay(n) }

// GlancesAtOnce limits the concurrent observations of all sweeps.
const GlancesAtOnce = glancesAtOnce

// Kept returns the number of volumes that have an entry.
func (q *Queue) Kept() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.entries)
}
