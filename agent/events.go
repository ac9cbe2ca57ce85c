package agent

import (
	"context"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/event"
	"github.com/volagent/volagent/volmgr/volume"
)

// openEvents opens the event history of this data dir.
func (a *agent) openEvents() *event.Log {
	log := a.log.Named("event")
	return event.Open(event.Options{
		Dir:  filepath.Join(a.c.DataDir, "events"),
		Told: func(e event.Event) { tell(log, e) },
		Warn: func(message string, err error) { log.Warn(message, "error", err) },
	})
}

// tell writes an event to the agent's log. It logs failures as warnings, important changes at info
// level, and all other events at debug level.
func tell(log hclog.Logger, e event.Event) {
	level := hclog.Debug
	switch e.Type {
	case "step-failed", "warning", volume.EventRefused, "create-failed", "delete-failed",
		"plugin-unhealthy", "plugin-backing-off", "plugin-failed", "plugin-warning":
		level = hclog.Warn
	case "plugin-ready", "created", "registered", "updated", "deleted", "deregistered", "owner-gone", "runtime-created", "runtime-removed",
		"node-draining", "node-undrained", "restored":
		level = hclog.Info
	}

	if level == hclog.Debug && !log.IsDebug() {
		return
	}

	var about []any
	for _, pair := range [][2]string{{"volume", e.Volume}, {"alloc", e.Alloc}, {"plugin", e.Plugin}, {"part", e.Part}} {
		if pair[1] != "" {
			about = append(about, pair[0], pair[1])
		}
	}

	log.Log(level, e.Type, append(about, "message", e.Message)...)
}

// volumeEvents stores the events of volumes. It tells the supervisor when a claim is gone, because
// a change of the plugin may wait for that.
func (a *agent) volumeEvents(evs []volume.Event) {
	a.events.Add(evs...)
	for _, e := range evs {
		if e.Type == "bound" {
			a.watchMount(e)
		}
		if e.Type == "claim-detached" {
			a.plugins.Released(e.Plugin)
			a.reaper.Freed()
		}
	}
}

// watchMount watches a new mount that is the owner of its claim.
func (a *agent) watchMount(e volume.Event) {
	r, _ := a.db.Volume(e.Volume)
	if c := r.Claims[e.Alloc]; c.Wanted && c.Owner.Kind == volume.OwnerMount {
		a.owners.Watch(c.Keeper())
	}
}

// apiEvents converts events to API types.
type apiEvents struct{ log *event.Log }

// Read calls each for the stored events, the oldest first, and returns the number of the last
// event.
func (e apiEvents) Read(ctx context.Context, volumeID string, since time.Time, n int, each func(api.Event) error) (uint64, error) {
	return e.log.Read(ctx, event.Filter{Volume: volumeID, Since: since, N: n}, func(ev event.Event) error { return each(toEvent(ev)) })
}

// After returns the events above a number, and a channel that is closed at the next event.
func (e apiEvents) After(seq uint64) ([]api.Event, <-chan struct{}) {
	evs, more := e.log.After(seq)
	out := make([]api.Event, 0, len(evs))
	for _, v := range evs {
		out = append(out, toEvent(v))
	}
	return out, more
}

func toEvent(v event.Event) api.Event {
	return api.Event{
		Time: v.Time, Seq: v.Seq, Volume: v.Volume, Alloc: v.Alloc, Plugin: v.Plugin, Part: v.Part, Type: v.Type, Step: v.Step, Message: v.Message,
	}
}
