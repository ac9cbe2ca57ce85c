package reconcile_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/reconcile"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// memory is a Store that keeps the records in memory.
type memory struct {
	mu      sync.Mutex
	records map[string]volume.Record
	durable int
	fail    error
	saving  func() // Save first calls saving, if it is set
}

func (m *memory) Volume(id string) (volume.Record, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.records[id]
	return r, ok
}

func (m *memory) Volumes() []volume.Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.records))
}

func (m *memory) Save(_ context.Context, id string, fn func(volume.Record) (volume.Record, volume.Saving)) error {
	if m.saving != nil {
		m.saving()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	saving := volume.SaveWithNext
	if r, ok := m.records[id]; ok {
		m.records[id], saving = fn(r)
	}
	switch saving {
	case volume.SaveAtOnce:
		m.durable++
	case volume.SaveFirst:
		m.durable++
		return m.fail
	}
	return nil
}

// Intend changes nothing if it cannot store the record.
func (m *memory) Intend(_ context.Context, id string, fn func(volume.Record) volume.Record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r, ok := m.records[id]; ok && m.fail == nil {
		m.records[id] = fn(r)
	}
	m.durable++
	return m.fail
}

// put stores a record, as code outside the queue does.
func (m *memory) put(r volume.Record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.records == nil {
		m.records = map[string]volume.Record{}
	}
	m.records[r.Key()] = r
}

func (m *memory) drop(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.records, id)
}

// fakePlugin is the fake plugin of all volumes.
type fakePlugin struct {
	mu sync.Mutex
	v  plugin.View
}

func (p *fakePlugin) View(string) plugin.View {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.v
}

func (p *fakePlugin) set(change func(*plugin.View)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.v)
}

// host is a fake host. The function do returns the outcome of each step. The fake records all
// mounts, and reports them in later observations.
type host struct {
	do   func(ctx context.Context, id string, a volume.Action) volume.Outcome
	look func() // called by each observation, if set

	mu      sync.Mutex
	mounts  map[string]volume.MountIdentity
	next    uint64
	looks   int
	looked  map[string]bool // the volumes that were observed
	running map[string]int  // running steps, by volume
	overlap bool            // whether two steps of one volume ran at the same time
	most    int             // the largest number of steps that ran at the same time
	steps   []string
	times   []time.Time
}

func (h *host) Observe(_ context.Context, r volume.Record, _ volume.Glimpse) volume.Observed {
	if h.look != nil {
		h.look()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.looks++
	if h.looked == nil {
		h.looked = map[string]bool{}
	}
	h.looked[r.Volume.ID] = true
	o := volume.Observed{Targets: map[string]volume.Sight{}, Watched: map[string]volume.Sight{}}
	for alloc, c := range r.Claims {
		o.Targets[alloc] = h.see(c.Target)
	}
	for _, w := range r.Node.Watches {
		o.Watched[w.Path] = h.see(w.Path)
	}
	return o
}

func (h *host) see(path string) volume.Sight {
	if m, ok := h.mounts[path]; ok {
		return volume.Sight{Seen: volume.SeenMount, Identity: m}
	}
	return volume.Sight{}
}

// mount simulates a late effect: it adds a mount that no step has reported.
func (h *host) mount(path string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.next++
	h.mounts[path] = volume.MountIdentity{ID: h.next}
}

func (h *host) Do(ctx context.Context, r volume.Record, a volume.Action, _ plugin.View) volume.Outcome {
	id := r.Volume.ID
	h.mu.Lock()
	h.running[id]++
	h.overlap = h.overlap || h.running[id] > 1
	h.most = max(h.most, len(h.running))
	h.steps = append(h.steps, string(a.Kind))
	h.times = append(h.times, time.Now())
	do := h.do
	h.mu.Unlock()
	var out volume.Outcome
	if do != nil {
		out = do(ctx, id, a)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.running[id]--; h.running[id] == 0 {
		delete(h.running, id)
	}
	if out.Err != nil {
		return out
	}
	switch a.Kind {
	case call.NodePublish:
		h.next++
		m := volume.MountIdentity{ID: h.next}
		h.mounts[a.Path], out.Mount = m, &m
	case call.NodeUnpublish:
		delete(h.mounts, a.Path)
	}
	return out
}

func (h *host) did() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.steps)
}

// setup is a queue together with its fake store, plugin and host.
type setup struct {
	*reconcile.Queue
	store  *memory
	plugin *fakePlugin
	host   *host

	mu     sync.Mutex
	events []volume.Event
}

// newSetup returns a setup with the given volumes. Each volume is claimed by one alloc.
func newSetup(t *testing.T, ids ...string) *setup {
	t.Helper()
	s := &setup{
		store:  &memory{},
		plugin: &fakePlugin{v: plugin.View{Known: true, Ready: true, State: "ready", Incarnation: 1, CallTimeout: time.Second}},
		host:   &host{mounts: map[string]volume.MountIdentity{}, running: map[string]int{}},
	}
	for _, id := range ids {
		s.store.put(claimed(t, id, "a"))
	}
	s.halt("")
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		s.Stop(ctx)
		if s.host.overlap {
			t.Error("two steps of one volume ran at once")
		}
	})
	return s
}

// halt replaces the queue with a new queue that makes no calls, for the reason why. If why is
// empty, the new queue makes calls.
func (s *setup) halt(why string) {
	s.Queue = reconcile.New(reconcile.Options{
		Store: s.store, Plugins: s.plugin, Host: s.host, Log: hclog.NewNullLogger(), Halt: why,
		Events: func(evs []volume.Event) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.events = append(s.events, evs...)
		},
	})
}

// claimed returns a volume with new claims.
func claimed(t *testing.T, id string, allocs ...string) volume.Record {
	t.Helper()
	r := volume.Record{Volume: volume.Volume{ID: id, PluginID: "p", Capabilities: []call.Capability{{
		Access: call.SingleNodeMultiWriter, Attachment: call.FileSystem,
	}}}}
	for _, alloc := range allocs {
		r = admit(t, r, alloc)
	}
	return r
}

func admit(t *testing.T, r volume.Record, alloc string) volume.Record {
	t.Helper()
	next, err := volume.Admit(r, volume.Request{Alloc: alloc, StagingPath: "/s/" + r.Volume.ID, Target: "/t/" + r.Volume.ID + "/" + alloc}, plugin.Info{}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return next
}

// release stores the intent to detach a claim.
func (s *setup) release(t *testing.T, id, alloc string) {
	t.Helper()
	r, _ := s.store.Volume(id)
	next, err := volume.Detach(r, alloc)
	if err != nil {
		t.Fatal(err)
	}
	s.store.put(next)
}

// until waits until the record of a volume meets a condition. It checks the condition only when the
// queue sends a notification, so a missing notification fails the test.
func (s *setup) until(t *testing.T, id string, what string, ok func(volume.Record) bool) {
	t.Helper()
	limit := time.After(60 * time.Second)
	for {
		changed := s.Changed(id)
		if r, there := s.store.Volume(id); there && ok(r) {
			return
		}
		select {
		case <-changed:
		case <-limit:
			r, _ := s.store.Volume(id)
			t.Fatalf("volume %q is not %s: %+v, attempt %+v, steps %v", id, what, r, s.Attempt(id, ""), s.host.did())
		}
	}
}

func (s *setup) untilTaken(t *testing.T, id string) {
	t.Helper()
	s.until(t, id, "mounted", func(r volume.Record) bool { return r.Claims["a"].State == volume.Mounted })
}

func (s *setup) untilFree(t *testing.T, id string) {
	t.Helper()
	s.until(t, id, "free", func(r volume.Record) bool { return !r.Held() })
}

// untilTrue polls until a condition is true. It serves conditions for which the queue sends no
// notification.
func untilTrue(t *testing.T, what string, ok func() bool) {
	t.Helper()
	limit := time.After(60 * time.Second)
	for !ok() {
		select {
		case <-time.After(time.Millisecond):
		case <-limit:
			t.Fatalf("not %s in time", what)
		}
	}
}

// failing returns the outcome of a failed step with the given kind of retry.
func failing(r volume.Retry) volume.Outcome {
	return volume.Outcome{Err: &volume.CallError{Step: "step", Code: "Internal", Message: "busy", Retry: r, Answered: true}}
}

var errFull = errors.New("no space left on device")
