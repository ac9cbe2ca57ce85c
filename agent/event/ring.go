package event

import (
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// ringSize is the number of events that the log keeps in memory.
const ringSize = 4096

// ring contains the last events. Its zero value is empty. base is the number of the last event
// before the ring received its first event.
type ring struct {
	buf  []Event
	base uint64
	seq  uint64
	more chan struct{}
}

// add appends one event and returns it with its number.
func (r *ring) add(e volume.Event, at time.Time) Event {
	r.seq++
	ev := Event{Event: e, Time: at, Seq: r.seq}
	if len(r.buf) < ringSize {
		r.buf = append(r.buf, ev)
	} else {
		r.buf[r.index(r.seq)] = ev
	}

	if r.more != nil {
		close(r.more)
		r.more = nil
	}

	return ev
}

func (r *ring) index(seq uint64) uint64 { return (seq - 1 - r.base) % ringSize }

// first returns the number of the oldest event in the ring. If the ring is empty, it returns the
// number of the next event.
func (r *ring) first() uint64 { return r.seq - uint64(len(r.buf)) + 1 }

// after returns the events with a number above seq, oldest first.
func (r *ring) after(seq uint64) []Event {
	var out []Event
	for s := max(r.first(), min(seq, r.seq)+1); s <= r.seq; s++ {
		out = append(out, r.buf[r.index(s)])
	}
	return out
}

// changed returns a channel that is closed when the next event arrives.
func (r *ring) changed() <-chan struct{} {
	if r.more == nil {
		r.more = make(chan struct{})
	}
	return r.more
}
