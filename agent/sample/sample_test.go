package sample

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestSampler simulates an hour. One plugin hangs, one has its own interval, one is never asked,
// and one has a volume with a running call.
func TestSampler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		asked := map[string]int{}
		hour, never := time.Hour/4, time.Duration(0)
		var records []volume.Record
		for _, id := range []string{"usual", "own", "never", "hung", "busy", "free"} {
			r := volume.Record{Volume: volume.Volume{ID: id, PluginID: id}}
			if id != "free" {
				r.Claims = map[string]volume.Claim{"a": {Alloc: "a", Published: volume.Present}}
			}
			records = append(records, r)
		}
		s := New(Options{
			Every: 5 * time.Minute, Log: hclog.NewNullLogger(),
			Volumes: func() []volume.Record { return records },
			View: func(id string) plugin.View {
				return plugin.View{StatsInterval: map[string]*time.Duration{"own": &hour, "never": &never}[id]}
			},
			Last: func(r volume.Record) *volume.Attempt { return &volume.Attempt{Running: r.Volume.ID == "busy"} },
			Report: func(ctx context.Context, id string) error {
				mu.Lock()
				asked[id]++
				mu.Unlock()
				if id == "hung" {
					<-ctx.Done()
				}
				return ctx.Err()
			},
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		s.Run(ctx)
		for id, want := range map[string][2]int{"usual": {10, 14}, "own": {3, 5}, "hung": {1, 1}, "never": {0, 0}, "busy": {0, 0}, "free": {0, 0}} {
			if n := asked[id]; n < want[0] || n > want[1] {
				t.Errorf("%s was asked %d times in an hour, want %d to %d", id, n, want[0], want[1])
			}
		}
	})
}
