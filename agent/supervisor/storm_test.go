package supervisor

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/volagent/volagent/agent/event"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestDayOfCrashes checks a plugin that fails for 24 hours. The log and the events must take at
// most 1 MiB, no matter how soon the plugin fails each time. The last event must report the
// plugin's current state.
func TestDayOfCrashes(t *testing.T) {
	for _, tt := range []struct {
		name string
		// how long the plugin is ready before it fails; 0 means that it never becomes ready
		ready  time.Duration
		starts int // the maximum number of starts
	}{{"never ready", 0, 400}, {"falls at once", time.Second, 400}, {"falls after a minute", time.Minute + time.Second, 24 * 60}} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			var told atomic.Int64
			said, starts := 0, 0
			var last event.Event
			synctest.Test(t, func(t *testing.T) {
				events := event.Open(event.Options{
					Dir: dir, Told: func(e event.Event) { told.Add(int64(len(e.Message) + 100)) },
					Warn: func(msg string, err error) { t.Error(msg, err) },
				})
				add := func(v plugin.View) {
					events.Add(volume.Event{Type: volume.PluginEvent(v.State), Plugin: "p", Message: v.News()})
				}
				falls := pauses{Backoff: Backoff{}.withDefaults()}
				for begun := time.Now(); time.Since(begun) < 24*time.Hour; starts++ {
					add(plugin.View{State: string(Starting)})
					if tt.ready > 0 {
						add(plugin.View{Ready: true, State: string(Ready), Restarts: starts})
						time.Sleep(tt.ready)
					}
					add(plugin.View{State: string(BackingOff), Reason: "process exit status 2"})
					time.Sleep(falls.fell(tt.ready))
				}
				add(plugin.View{State: string(Starting)})
				add(plugin.View{Ready: true, State: string(Ready), Restarts: starts})
				time.Sleep(time.Hour)
				got, _ := events.After(0)
				last = got[len(got)-1]
				events.Close(context.Background())
			})
			files, err := filepath.Glob(filepath.Join(dir, "*"))
			if err != nil || len(files) == 0 {
				t.Fatalf("no events: %v", err)
			}
			for _, f := range files {
				info, err := os.Stat(f)
				if err != nil {
					t.Fatal(err)
				}
				said += int(info.Size())
			}
			said += int(told.Load())
			t.Logf("%d starts, %d bytes", starts, said)
			if starts > tt.starts || said > 1<<20 {
				t.Errorf("a day costs %d starts and %d bytes of log and events", starts, said)
			}
			if last.Type != "plugin-ready" {
				t.Errorf("it is ready at last, and what is told last is %q", last.Message)
			}
		})
	}
}
