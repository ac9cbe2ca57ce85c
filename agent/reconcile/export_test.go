package reconcile

import "time"

// Delay exports delay for the tests in package reconcile_test.
func Delay(n int) time.Duration { return delay(n) }

// GlancesAtOnce exports glancesAtOnce for the tests in package reconcile_test.
const GlancesAtOnce = glancesAtOnce

// Kept returns the number of volumes for which the queue keeps an entry.
func (q *Queue) Kept() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.entries)
}
