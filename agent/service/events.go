// Package service converts between the types of the API and those of the services behind it.
package service

import (
	"context"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/event"
)

// Events converts events to API types.
type Events struct{ Log *event.Log }

// Read calls each for the stored events, the oldest first, and returns the number of the last
// event.
func (e Events) Read(ctx context.Context, volumeID string, since time.Time, n int, each func(api.Event) error) (uint64, error) {
	return e.Log.Read(ctx, event.Filter{Volume: volumeID, Since: since, N: n}, func(ev event.Event) error { return each(toEvent(ev)) })
}

// After returns the events above a number, and a channel that is closed at the next event.
func (e Events) After(seq uint64) ([]api.Event, <-chan struct{}) {
	evs, more := e.Log.After(seq)
	out := make([]api.Event, 0, len(evs))
	for _, v := range evs {
		out = append(out, toEvent(v))
	}
	return out, more
}

func toEvent(v event.Event) api.Event {
	return api.Event{
		Time: v.Time, Seq: v.Seq, Volume: v.Volume, Alloc: v.Alloc, Plugin: v.Plugin, Part: v.Part, Type: string(v.Type), Step: v.Step, Message: v.Message,
	}
}
