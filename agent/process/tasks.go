package process

import (
	"context"
	"sync"
	"time"
)

// Ends waits until all tasks of a group have ended, but at most for the duration d. It reports
// whether they have ended. The limit is necessary because a task may be in a system call that never
// returns.
func Ends(wg *sync.WaitGroup, d time.Duration) bool {
	ended := make(chan struct{})
	go func() {
		wg.Wait()
		close(ended)
	}()

	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-ended:
		return true
	case <-timer.C:
		return false
	}
}

// Within runs fn with a context that times out after d.
func Within(d time.Duration, fn func(context.Context)) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	fn(ctx)
}
