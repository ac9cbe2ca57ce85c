package drain_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/drain"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// world is a host with volumes. A detached claim is removed at once.
type world struct {
	mu       sync.Mutex
	records  map[string]volume.Record
	draining bool
	events   []string
	woken    []string
	fail     error // the error that each Detach returns
	stays    bool  // detached claims remain
	hold     func()
	halt     string
	strays   []volume.Occupant
}

func (w *world) Volumes() (all []volume.Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.records {
		all = append(all, r)
	}
	return all
}

func (w *world) Draining() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.draining
}

func (w *world) SetDraining(_ context.Context, draining bool) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	changed := w.draining != draining
	w.draining = draining
	return changed, nil
}

func (w *world) Detach(_ context.Context, id, alloc string, force bool, wait time.Duration) error {
	if force || wait != 0 {
		panic("a drain forces nothing and waits for no single claim")
	}
	if w.hold != nil {
		w.hold()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fail != nil {
		return w.fail
	}
	r := w.records[id]
	next, err := volume.Detach(r, alloc)
	if err == nil && !w.stays {
		next.Claims = map[string]volume.Claim{}
	}
	w.records[id] = next
	return err
}

func (w *world) Wake(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.woken = append(w.woken, key)
}

func (w *world) Look(context.Context, volume.Record) (volume.Observed, *volume.Attempt) {
	return volume.Observed{Plugin: plugin.View{Known: true, Ready: true}}, nil
}

func (w *world) Gone(o volume.Owner) bool { return o.PID > 100 }

func (w *world) View(volume.Owner) volume.OwnerView {
	return volume.OwnerView{Life: volume.LifeRunning, Command: "sh"}
}

func (w *world) Check(context.Context, []volume.Owner) {}

func (w *world) service() *drain.Service {
	return &drain.Service{
		Store: w, Claims: w, Queue: w, Owners: w, Halt: w.halt, Changed: func() {},
		Strays: func() []volume.Occupant { return w.strays },
		Events: func(evs ...volume.Event) {
			for _, e := range evs {
				w.events = append(w.events, string(e.Type))
			}
		},
	}
}

func claimed(id string, o volume.Owner) volume.Record {
	return volume.Record{
		Volume: volume.Volume{ID: id, PluginID: "p"}, Node: volume.NodeSide{Mode: &volume.Mode{}},
		Claims: map[string]volume.Claim{"a": {Alloc: "a", Wanted: true, State: volume.Mounted, Terms: volume.Terms{Owner: o}, Target: "/t/" + id}},
	}
}

func host(rs ...volume.Record) *world {
	w := &world{records: map[string]volume.Record{}}
	for _, r := range rs {
		w.records[r.Volume.ID] = r
	}
	return w
}

// TestDrain checks that Drain detaches the claims without a living owner and returns the other
// claims. A repeated drain emits no new event.
func TestDrain(t *testing.T) {
	w := host(
		claimed("none", volume.Owner{Kind: volume.OwnerNone}), claimed("gone", volume.Owner{Kind: volume.OwnerPID, PID: 101}),
		claimed("held", volume.Owner{Kind: volume.OwnerPID, PID: 7}), volume.Record{Volume: volume.Volume{ID: "free"}},
	)
	s := w.service()
	for range 2 {
		left, err := s.Drain(t.Context(), 0)
		if err != nil || len(left.Left) != 0 || len(left.Waiting) != 1 || left.Waiting[0].Volume != "held" || suggest.Words(left.Waiting[0].Command) != "kill 7" {
			t.Fatalf("left is %+v, %v", left, err)
		}
	}
	delete(w.records, "held")
	if left, err := s.Drain(t.Context(), time.Minute); err != nil || !left.Empty() {
		t.Errorf("left is %+v, %v", left, err)
	}
	w.strays = []volume.Occupant{{Message: "a mount"}}
	if left, _ := s.Drain(t.Context(), 0); left.Empty() {
		t.Error("what no record tells of counts for nothing")
	}
	for _, news := range []bool{true, false} {
		if changed, err := s.Undrain(t.Context()); err != nil || changed != news {
			t.Errorf("undrain: %t, %v", changed, err)
		}
	}
	if want := []string{"node-draining", "node-undrained"}; !slices.Equal(w.events, want) {
		t.Errorf("events are %q", w.events)
	}
}

// TestRelease checks that Release detaches the claims of one volume, and leaves other volumes alone. A claim
// without an owner stays as long as another claim has a living owner. The host is not draining.
func TestRelease(t *testing.T) {
	r := claimed("db", volume.Owner{Kind: volume.OwnerPID, PID: 7})
	r.Claims["plain"] = volume.Claim{Alloc: "plain", Wanted: true, State: volume.Mounted, Terms: volume.Terms{Owner: volume.Owner{Kind: volume.OwnerNone}}}
	w := host(r, claimed("other", volume.Owner{Kind: volume.OwnerNone}), claimed("ended", volume.Owner{Kind: volume.OwnerPID, PID: 101}))
	s := w.service()

	left := s.Release(t.Context(), "db")
	if len(left.Waiting) != 1 || left.Waiting[0].Alloc != "a" || suggest.Words(left.Waiting[0].Command) != "kill 7" || len(left.Left) != 1 {
		t.Errorf("left is %+v", left)
	}
	if !w.records["db"].Claims["plain"].Wanted {
		t.Error("the claim without an owner is detached")
	}

	delete(w.records["db"].Claims, "a")
	if left := s.Release(t.Context(), "db"); !left.Empty() {
		t.Errorf("left is %+v", left)
	}
	if left := s.Release(t.Context(), "ended"); !left.Empty() {
		t.Errorf("left is %+v", left)
	}
	if !w.records["other"].Claims["a"].Wanted || w.Draining() {
		t.Error("another volume is detached, or the host is draining")
	}
}

// TestDrainFailing checks that Drain returns a claim whose detach cannot be stored, with the
// command that solves the problem. A repeated drain wakes a volume whose claim is already
// detaching.
func TestDrainFailing(t *testing.T) {
	w := host(claimed("a", volume.Owner{Kind: volume.OwnerNone}))
	w.fail = volume.Errorf(errors.New("full"), "cannot write the state database").WithHint("df")
	left, err := w.service().Drain(t.Context(), 0)
	if err != nil || !slices.ContainsFunc(left.Left, func(o volume.Occupant) bool {
		return strings.Contains(o.Message, "cannot write the state database") && suggest.Words(o.Command) == "df"
	}) {
		t.Errorf("left is %+v, %v", left, err)
	}
	w.fail, w.stays = nil, true
	for range 2 {
		if left, err = w.service().Drain(t.Context(), 0); err != nil || len(left.Left) != 1 || left.Left[0].Alloc != "a" {
			t.Errorf("left is %+v, %v", left, err)
		}
	}
	// the first Drain detached the claim, so only this one wakes the volume
	if !slices.Equal(w.woken, []string{"a"}) {
		t.Errorf("woken were %q", w.woken)
	}
}

// TestDrainInParallel checks that Drain detaches claims in parallel.
func TestDrainInParallel(t *testing.T) {
	w := host()
	var all sync.WaitGroup
	all.Add(50)
	w.hold = func() { all.Done(); all.Wait() }
	for i := range 50 {
		id := fmt.Sprintf("v%d", i)
		w.records[id] = claimed(id, volume.Owner{Kind: volume.OwnerNone})
	}
	done := make(chan error, 1)
	go func() {
		_, err := w.service().Drain(context.Background(), 0)
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(100 * time.Second):
		t.Fatal("one release waits for another")
	}
}

// TestDrainEnds checks that the wait of Drain ends when its context ends and when an operator ends
// the drain. It also checks that Drain fails on a halted agent.
func TestDrainEnds(t *testing.T) {
	w := host(claimed("held", volume.Owner{Kind: volume.OwnerPID, PID: 7}))
	s := w.service()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(volume.ErrStopping)
	if _, err := s.Drain(ctx, time.Minute); !errors.Is(err, context.Canceled) {
		t.Errorf("broken off: %v", err)
	}
	if !w.Draining() {
		t.Error("a wait that is broken off ends the drain")
	}
	done := make(chan error, 1)
	go func() {
		_, err := s.Drain(context.Background(), time.Hour)
		done <- err
	}()
	for end := false; !end; {
		select {
		case err := <-done:
			if end = true; !errors.Is(err, volume.ErrRefused) {
				t.Errorf("ended by somebody: %v", err)
			}
		case <-time.After(20 * time.Millisecond):
			_, _ = w.SetDraining(context.Background(), false)
		}
	}
	w.halt = "no"
	if _, err := w.service().Drain(t.Context(), 0); !errors.Is(err, volume.ErrRefused) || w.Draining() {
		t.Errorf("on a halted host: %v", err)
	}
}
