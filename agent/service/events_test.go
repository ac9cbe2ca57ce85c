package service

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/event"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestEvents checks that an event keeps all its fields when it is converted to the API. It also
// checks that Read and After return only events of the given volume, and that After skips earlier
// events.
func TestEvents(t *testing.T) {
	log := event.Open(event.Options{Dir: t.TempDir(), Told: func(event.Event) {}, Warn: func(msg string, err error) { t.Error(msg, err) }})
	defer log.Close(context.Background())
	log.Add(
		volume.Event{Type: "step-failed", Volume: "pg", Alloc: "web", Plugin: "p", Step: "NodeStageVolume", Message: "no space"},
		volume.Event{Type: "plugin-ready", Plugin: "p", Part: "controller", Message: "ready"},
	)

	events := Events{log}
	var read []api.Event
	last, err := events.Read(t.Context(), "pg", time.Time{}, 0, func(e api.Event) error { read = append(read, e); return nil })
	if err != nil || last != 2 || len(read) != 1 {
		t.Fatalf("%+v, last %d, %v", read, last, err)
	}
	want := api.Event{Time: read[0].Time, Seq: 1, Volume: "pg", Alloc: "web", Plugin: "p", Type: "step-failed", Step: "NodeStageVolume", Message: "no space"}
	if diff := cmp.Diff(want, read[0]); diff != "" {
		t.Error(diff)
	}
	after, last, more := events.After("", 1)
	if len(after) != 1 || after[0].Part != "controller" || last != 2 || more == nil {
		t.Errorf("after the first: %+v, last %d", after, last)
	}
	if others, last, _ := events.After("pg", 1); len(others) != 0 || last != 2 {
		t.Errorf("after the first, of volume pg: %+v, last %d", others, last)
	}
}
