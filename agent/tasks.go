package agent

import (
	"sync"
	"time"
)

// awaitTasks waits for the tasks that were told to end, for a bounded time.
func (a *agent) awaitTasks(wg *sync.WaitGroup) {
	if !ends(wg, tasksWithin) {
		a.log.Error("a task of the agent did not end; the agent ends without it", "waited", tasksWithin)
	}
}

// ends waits until all tasks of a group have ended, for at most d, and reports whether they have. A
// task may be in a system call that never returns.
func ends(wg *sync.WaitGroup, d time.Duration) bool {
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
