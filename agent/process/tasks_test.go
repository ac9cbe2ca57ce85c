package process

import (
	"sync"
	"testing"
	"time"
)

// TestEnds checks that Ends returns even if a task never ends.
func TestEnds(t *testing.T) {
	var wg sync.WaitGroup
	if !Ends(&wg, time.Minute) {
		t.Error("no task, and it waits")
	}
	release := make(chan struct{})
	wg.Go(func() { <-release })
	if Ends(&wg, time.Millisecond) {
		t.Error("a task runs, and it does not wait")
	}
	close(release)
	if !Ends(&wg, time.Minute) {
		t.Error("the task has ended, and it waits")
	}
}
