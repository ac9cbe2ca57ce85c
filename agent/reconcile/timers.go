package reconcile

import (
	"container/heap"
	"sync"
	"time"
)

// timers wakes each volume at its due time. A single timer serves all volumes.
type timers struct {
	fire func(id string)

	mu    sync.Mutex
	due   dueHeap
	at    map[string]time.Time // the earliest due time of each id in the heap
	timer *time.Timer
	over  bool
}

func newTimers(fire func(id string)) *timers {
	return &timers{fire: fire, at: map[string]time.Time{}}
}

// set ensures that the timer wakes id at t or earlier.
func (ts *timers) set(id string, t time.Time) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.over {
		return
	}
	if have, ok := ts.at[id]; ok && !t.Before(have) {
		return
	}

	ts.at[id] = t
	heap.Push(&ts.due, dueAt{t, id})
	ts.arm()
}

// arm sets the timer to the earliest due time. The caller holds mu.
func (ts *timers) arm() {
	if len(ts.due) == 0 || ts.over {
		return
	}

	wait := time.Until(ts.due[0].at)
	if ts.timer == nil {
		ts.timer = time.AfterFunc(wait, ts.run)
		return
	}

	ts.timer.Reset(wait)
}

// run wakes the volumes that are due.
func (ts *timers) run() {
	var ids []string
	ts.mu.Lock()
	for now := time.Now(); len(ts.due) > 0 && !ts.due[0].at.After(now); {
		d := heap.Pop(&ts.due).(dueAt)
		// if the times differ, an earlier heap entry has already woken this id
		if ts.at[d.id].Equal(d.at) {
			delete(ts.at, d.id)
			ids = append(ids, d.id)
		}
	}

	ts.arm()
	ts.mu.Unlock()
	for _, id := range ids {
		ts.fire(id)
	}
}

func (ts *timers) stop() {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.over = true
	if ts.timer != nil {
		ts.timer.Stop()
	}
}

type dueAt struct {
	at time.Time
	id string
}

type dueHeap []dueAt

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h dueHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *dueHeap) Push(x any)        { *h = append(*h, x.(dueAt)) }
func (h *dueHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
