package service

import (
	"context"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/event"
)

// EventLog reads the events of recent days.
type EventLog interface {
	// Read calls the function each for the stored events, the oldest first. It returns the number
	// of the last event.
	Read(ctx context.Context, f event.Filter, each func(event.Event) error) (uint64, error)

	// After returns the events in memory that follow an event number. It also returns a channel
	// that is closed when the next event arrives.
	After(seq uint64) ([]event.Event, <-chan struct{})
}

// EventFilter selects events.
type EventFilter = event.Filter

// Events answers requests for events.
type Events struct{ do EventLog }

// Read calls the function each for the selected events, the oldest first. It returns the
// number of the last event, selected or not.
func (e Events) Read(ctx context.Context, f EventFilter, each func(api.Event) error) (uint64, error) {
	return e.do.Read(ctx, f, func(ev event.Event) error { return each(toEvent(ev)) })
}

// After returns the selected events in memory that follow an event number. It ignores the limits of
// the filter in time and number. It also returns the number of the last event, and a channel that
// is closed when the next event arrives.
func (e Events) After(f EventFilter, seq uint64) (out []api.Event, last uint64, more <-chan struct{}) {
	f.Since = time.Time{}
	all, more := e.do.After(seq)
	for _, v := range all {
		seq = v.Seq
		if f.Fits(v) {
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
