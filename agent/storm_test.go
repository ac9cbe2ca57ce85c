package agent

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/event"
	"github.com/volagent/volagent/agent/reconcile"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// storm simulates a volume with a failing plugin, and counts the attempts. It uses the fake clock
// of synctest.
type storm struct {
	queue *reconcile.Queue
	fail  func(a volume.Action, n int) *volume.CallError // returns the error of the n-th step
	away  string                                         // why the cluster of a shared volume cannot be reached

	mu       sync.Mutex
	record   volume.Record
	view     plugin.View
	mounts   map[string]volume.MountIdentity
	steps    int
	failures int
	per      map[call.Method]int
}

// Volume, Volumes, Save and Intend implement reconcile.Store.
func (s *storm) Volume(string) (volume.Record, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record, true
}

func (s *storm) Volumes() []volume.Record { r, _ := s.Volume(""); return []volume.Record{r} }

func (s *storm) Save(_ context.Context, _ string, fn func(volume.Record) (volume.Record, volume.Saving)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.record, _ = fn(s.record)
	return nil
}

func (s *storm) Intend(ctx context.Context, id string, fn func(volume.Record) volume.Record) error {
	return s.Save(ctx, id, func(r volume.Record) (volume.Record, volume.Saving) { return fn(r), volume.SaveFirst })
}

// View implements reconcile.Plugins.
func (s *storm) View(string) plugin.View {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.view
}

func (s *storm) plugin(ready bool, state string) {
	s.mu.Lock()
	s.view.Ready, s.view.State = ready, state
	s.view.Incarnation++
	s.mu.Unlock()
}

// Observe and Do implement reconcile.Host.
func (s *storm) Observe(_ context.Context, r volume.Record, _ volume.Glimpse) volume.Observed {
	s.mu.Lock()
	defer s.mu.Unlock()
	see := func(path string) volume.Sight {
		if m, ok := s.mounts[path]; ok {
			return volume.Sight{Seen: volume.SeenMount, Identity: m}
		}
		return volume.Sight{}
	}
	o := volume.Observed{Targets: map[string]volume.Sight{}, Watched: map[string]volume.Sight{}, Staging: see(r.Node.StagingPath)}
	for alloc, c := range r.Claims {
		o.Targets[alloc] = see(c.Target)
	}
	return o
}

func (s *storm) Do(_ context.Context, _ volume.Record, a volume.Action, _ plugin.View) volume.Outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps++
	s.per[a.Kind]++
	if err := s.fail(a, s.steps); err != nil {
		s.failures++
		return volume.Outcome{Err: err}
	}
	switch a.Kind {
	case volume.Acquire:
		return volume.Outcome{Token: volume.Token{Epoch: 1, Revision: int64(s.steps)}}
	case call.NodeStage, call.NodePublish:
		m := volume.MountIdentity{ID: uint64(s.steps)}
		s.mounts[a.Path] = m
		return volume.Outcome{Mount: &m}
	case call.NodeUnpublish, call.NodeUnstage:
		delete(s.mounts, a.Path)
	}
	return volume.Outcome{}
}

// counter counts the bytes written to the agent's log.
type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n += len(p)
	return len(p), nil
}

// day runs fn with the fake clock of synctest. It stores and logs events as the agent does. It
// returns the total number of bytes in the events and the log.
func day(t *testing.T, fn func(events *event.Log)) (bytes int) {
	t.Helper()
	dir := t.TempDir()
	var said counter
	log := hclog.New(&hclog.LoggerOptions{Name: "volagent", Level: hclog.Info, Output: &said})
	synctest.Test(t, func(t *testing.T) {
		events := event.Open(event.Options{Dir: dir, Told: func(e event.Event) { event.Tell(log.Named("event"), e) }, Warn: func(msg string, err error) { t.Error(msg, err) }})
		fn(events)
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
		bytes += int(info.Size())
	}
	return bytes + said.n
}

// TestDayOfFailure checks how much work and output a volume causes if it fails for 24 hours. The
// limits are 400 failed attempts, and 1 MiB of log and events.
func TestDayOfFailure(t *testing.T) {
	internal := func(a volume.Action, message string) *volume.CallError {
		return &volume.CallError{Step: string(a.Kind), Code: "Internal", Message: message, Retry: volume.RetryBackoff, Answered: true}
	}
	// The length is 1 KB, which is the maximum length of a stored error.
	long := strings.Repeat("some words of the plugin about this ", 28)
	every := func(kinds ...call.Method) func(volume.Action, int) *volume.CallError {
		return func(a volume.Action, _ int) *volume.CallError {
			for _, k := range kinds {
				if a.Kind == k {
					return internal(a, long)
				}
			}
			return nil
		}
	}
	flap := func(s *storm, events *event.Log, up, down time.Duration) {
		for range 24 * time.Hour / (up + down) {
			s.plugin(true, "ready")
			events.Add(volume.Event{Type: "plugin-ready", Plugin: "p", Message: "ready"})
			s.queue.PluginChanged("p")
			time.Sleep(up)
			s.plugin(false, "backing-off")
			events.Add(volume.Event{Type: "plugin-backing-off", Plugin: "p", Message: "backing-off: process exit status 2"})
			time.Sleep(down)
		}
	}
	asleep := func(*storm, *event.Log) { time.Sleep(24 * time.Hour) }
	for _, tt := range []struct {
		name   string
		allocs int
		gone   bool // whether the claims are being detached
		fail   func(volume.Action, int) *volume.CallError
		run    func(*storm, *event.Log)
		least  int // the minimum of failed attempts for a meaningful test
	}{
		{"one step", 1, false, every(call.NodeStage), asleep, 250},
		{"a call that must change first", 1, false, func(a volume.Action, n int) *volume.CallError {
			err := internal(a, long)
			err.Retry = volume.RetryChange
			return err
		}, asleep, 1},
		{"the words change each time", 1, false, func(a volume.Action, n int) *volume.CallError {
			if a.Kind == call.NodePublish {
				return internal(a, fmt.Sprintf("request %d: <%s>", n, strings.Repeat(`"quoted" `, 100)))
			}
			return nil
		}, asleep, 250},
		{"the undoing fails now and then", 1, false, func(a volume.Action, n int) *volume.CallError {
			if a.Kind == call.NodeStage || a.Kind == call.NodeUnstage && n%3 != 0 {
				return internal(a, long)
			}
			return nil
		}, asleep, 250},
		{"twenty unmounts are busy", 20, true, every(call.NodeUnpublish), asleep, 350},
		{"twenty publishes fail", 20, false, every(call.NodePublish), asleep, 350},
		{"the plugin comes and goes", 1, false, every(call.NodePublish), func(s *storm, e *event.Log) { flap(s, e, 50*time.Second, 10*time.Second) }, 350},
		{"the plugin comes and goes, and the code says never", 1, false, func(a volume.Action, _ int) *volume.CallError {
			if a.Kind != call.NodePublish {
				return nil
			}
			err := internal(a, long)
			err.Retry = volume.RetryNever
			return err
		}, func(s *storm, e *event.Log) { flap(s, e, 50*time.Second, 10*time.Second) }, 350},
		{"the plugin is down", 1, false, every(call.NodeStage), func(s *storm, e *event.Log) {
			s.plugin(false, "backing-off")
			s.queue.Wake("v")
			time.Sleep(24 * time.Hour)
		}, 0},
		{"shared: the cluster refuses the hold", 1, false, every(volume.Acquire), asleep, 250},
		{"shared: another host has the hold", 1, false, func(a volume.Action, _ int) *volume.CallError {
			if a.Kind != volume.Acquire {
				return nil
			}
			return &volume.CallError{Step: string(a.Kind), Code: volume.CodeHeld, Message: long, Retry: volume.RetryBackoff, Answered: true}
		}, asleep, 250},
		{"shared: the hold cannot be given up", 1, true, every(volume.GiveUp), asleep, 250},
		{"shared: etcd is away, and the volume is woken each minute", 1, false, every(volume.Acquire), func(s *storm, _ *event.Log) {
			s.away = "etcd does not answer"
			for range 24 * 60 {
				time.Sleep(time.Minute)
				s.queue.Wake("v")
			}
		}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &storm{fail: tt.fail, mounts: map[string]volume.MountIdentity{}, per: map[call.Method]int{}}
			bytes := day(t, func(events *event.Log) {
				s.view = plugin.View{Known: true, Ready: true, State: "ready", Incarnation: 1, CallTimeout: 2 * time.Minute, Info: plugin.Info{Caps: plugin.Caps{Stage: true}}}
				s.record = stormRecord(t, tt.allocs, tt.gone)
				if s.record.Volume.Shared = strings.HasPrefix(tt.name, "shared: "); s.record.Volume.Shared && tt.gone {
					s.record.Node.Hold = volume.Hold{State: volume.Present, Operation: "o", Token: volume.Token{Epoch: 1, Revision: 1}}
				}
				s.queue = reconcile.New(reconcile.Options{
					Store: s, Plugins: s, Host: s, Log: hclog.NewNullLogger(), Events: func(evs []volume.Event) { events.Add(evs...) },
					Cluster: func(volume.Record) volume.Cluster { return volume.Cluster{Away: s.away} },
				})
				events.Add(volume.Event{Type: "agent-started"})
				if s.view.Ready && tt.least > 0 {
					s.queue.Wake("v")
				}
				tt.run(s, events)
				s.queue.Stop(context.Background())
			})
			t.Logf("%d failed of %d steps, %d bytes: %v", s.failures, s.steps, bytes, s.per)
			if s.failures > 400 || s.failures < tt.least {
				t.Errorf("%d attempts failed in a day: %v", s.failures, s.per)
			}
			if bytes > 1<<20 {
				t.Errorf("%d bytes of log and events", bytes)
			}
		})
	}
}

// stormRecord returns a record with the given number of claims. If gone is set, the claims are
// mounted and are being detached.
func stormRecord(t *testing.T, allocs int, gone bool) volume.Record {
	t.Helper()
	r := volume.Record{Volume: volume.Volume{ID: "v", PluginID: "p", Capabilities: []call.Capability{{
		Access: call.SingleNodeMultiWriter, Attachment: call.FileSystem,
	}}}}
	var err error
	for i := range allocs {
		alloc := fmt.Sprint("a", i)
		if r, err = volume.Admit(r, volume.Request{Alloc: alloc, StagingPath: "/s", Target: "/t/" + alloc}, plugin.Info{Caps: plugin.Caps{Stage: true}}, time.Now()); err != nil {
			t.Fatal(err)
		}
		if !gone {
			continue
		}
		if r, err = volume.Detach(r, alloc); err != nil {
			t.Fatal(err)
		}
		c := r.Claims[alloc]
		c.Published, c.Mount = volume.Present, &volume.MountIdentity{ID: uint64(i)}
		r.Claims = maps.Clone(r.Claims)
		r.Claims[alloc] = c
		r.Node.Staged = volume.Present
	}
	return r
}
