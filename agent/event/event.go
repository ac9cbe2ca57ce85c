// Package event keeps the last transitions in a bounded ring, for people who
// ask what happened, and hands new ones to whoever follows.
package event

import (
	"sync"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// keep is how many events the ring holds.
const keep = 4096

// Event is a transition with its time and number.
type Event struct {
	volume.Event
	Time time.Time
	Seq  uint64
}

// Ring holds the last events. The zero value is ready to use.
type Ring struct {
	mu   sync.Mutex
	buf  []Event
	seq  uint64
	more chan struct{}
}

// Add appends events. It never blocks.
func (r *Ring) Add(evs ...volume.Event) {
	if len(evs) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now().UTC()
	for _, e := range evs {
		r.seq++
		ev := Event{Event: e, Time: now, Seq: r.seq}
		if len(r.buf) < keep {
			r.buf = append(r.buf, ev)
		} else {
			r.buf[(r.seq-1)%keep] = ev
		}
	}
	if r.more != nil {
		close(r.more)
		r.more = nil
	}
}

// After returns the events with a number above seq, the oldest first, and a
// channel that is closed when there are more.
func (r *Ring) After(seq uint64) ([]Event, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := uint64(1)
	if r.seq > uint64(len(r.buf)) {
		first = r.seq - uint64(len(r.buf)) + 1
	}
	var out []Event
	for s := max(first, min(seq, r.seq)+1); s <= r.seq; s++ {
		out = append(out, r.buf[(s-1)%keep])
	}
	if r.more == nil {
		r.more = make(chan struct{})
	}
	return out, r.more
}
