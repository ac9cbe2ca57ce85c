package service

import (
	"context"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/event"
)

// EventLog reads the events of recent days.
type EventLog interface {
	// Read calls each for the stored events, the oldest first. It returns the number of the last
	// event.
	Read(ctx context.Context, f event.Filter, each func(event.Event) error) (uint64, error)

	// After returns the events in memory whose number is higher than seq. It also returns a channel
	// that is closed when the next event occurs.
	After(seq uint64) ([]event.Event, <-chan struct{})
}

// Events answers requests for events.
type Events struct{ do EventLog }

// Read calls each for the events since a time, oldest first. If volumeID is empty, it reads the
// events of all volumes. If n is not 0, it reads only the last n events. It returns the number of
// the last event.
func (e Events) Read(ctx context.Context, volumeID string, since time.Time, n int, each func(api.Event) error) (uint64, error) {
	return e.do.Read(ctx, event.Filter{Volume: volumeID, Since: since, N: n}, func(ev event.Event) error { return each(toEvent(ev)) })
}

// After returns the events in memory whose number is higher than seq. If volumeID is empty, it
// returns the events of all volumes. It also returns the number of the last event, and a channel
// that is closed when the next event occurs.
func (e Events) After(volumeID string, seq uint64) (out []api.Event, last uint64, more <-chan struct{}) {
	all, more := e.do.After(seq)
	for _, v := range all {
		seq = v.Seq
		if volumeID == "" || v.Volume == volumeID {
			out = append(out, toEvent(v))
		}
	}
	return out, seq, more
}

func toEvent(v event.Event) api.Event {
	return api.Event{
		Time: v.Time, Seq: v.Seq, Volume: v.Volume, Alloc: v.Alloc, Plugin: v.Plugin, Part: v.Part, Type: string(v.Type), Step: v.Step, Message: v.Message,
	}
}
