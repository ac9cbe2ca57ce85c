package event

import (
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// ringSize is the number of events that are kept in memory.
const ringSize = 4096

// ring holds the last events. The zero value is empty. base is the number of the last event before
// the first one that was added.
type ring struct {
	buf  []Event
	base uint64
	seq  uint64
	more chan struct{}
}

// add appends one event.
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

// first returns the number of the oldest event in the ring, or the next number if the ring is
// empty.
func (r *ring) first() uint64 { return r.seq - uint64(len(r.buf)) + 1 }

// after returns the events with a number above seq, the oldest first.
func (r *ring) after(seq uint64) []Event {
	var out []Event
	for s := max(r.first(), min(seq, r.seq)+1); s <= r.seq; s++ {
		out = append(out, r.buf[r.index(s)])
	}
	return out
}

// changed returns a channel that is closed at the next event.
func (r *ring) changed() <-chan struct{} {
	if r.more == nil {
		r.more = make(chan struct{})
	}
	return r.more
}
