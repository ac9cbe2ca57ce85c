package reconcile

import "time"

// Delay is how long to wait after the n-th failure in a row.
func Delay(n int) time.Duration { return delay(n) }
