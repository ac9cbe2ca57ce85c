package claim_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/claim"
	"github.com/volagent/volagent/volmgr/volume"
)

// people implements claim.Owners for owners that are processes. Gone reports the end of a process
// only after a Check, unless the map told contains the pid.
type people struct {
	mu      sync.Mutex
	dead    map[int]bool
	told    map[int]bool
	watched []int
	checks  int
}

func newPeople() *people { return &people{dead: map[int]bool{}, told: map[int]bool{}} }

func (p *people) Gone(o volume.Owner) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.told[o.PID]
}

func (p *people) View(o volume.Owner) volume.OwnerView {
	if p.Gone(o) {
		return volume.OwnerView{Life: volume.LifeGone}
	}
	return volume.OwnerView{Life: volume.LifeRunning, PID: o.PID, Command: "rsync"}
}

func (p *people) Resolve(_ context.Context, o volume.Owner) (volume.Owner, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead[o.PID] {
		return o, volume.Errorf(volume.ErrRefused, "no such process")
	}
	o.StartTime = 7
	return o, nil
}

func (p *people) Watch(o volume.Owner) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watched = append(p.watched, o.PID)
}

func (p *people) Check(_ context.Context, owners []volume.Owner) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.checks++
	for _, o := range owners {
		p.told[o.PID] = p.dead[o.PID]
	}
}

// dies ends a process. If told is true, Gone reports the end without a Check.
func (p *people) dies(pid int, told bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dead[pid], p.told[pid] = true, told
}

func byPID(pid int) volume.Owner { return volume.Owner{Kind: volume.OwnerPID, PID: pid} }

// owned returns a world in which alloc "db" has claimed the volume. The owner of the claim is the
// process with pid 1.
func owned(t *testing.T) (*world, *claim.Service, *people) {
	t.Helper()
	w, p := newWorld(), newPeople()
	s := w.service()
	s.Owners = p
	_, c, err := s.Claim(t.Context(), "data", volume.Request{Alloc: "db", Terms: volume.Terms{Owner: byPID(1)}}, time.Second)
	if err != nil || c.Owner.StartTime != 7 || len(p.watched) == 0 || p.watched[0] != 1 {
		t.Fatalf("%+v, %v, watched %v", c, err, p.watched)
	}
	return w, s, p
}

// TestClaimAfterOwner checks a request that conflicts with an existing claim. If the owner of that
// claim has ended, the request detaches the claim, even if Gone does not report the end yet. If the
// owner is alive, the service refuses the request at once.
func TestClaimAfterOwner(t *testing.T) {
	for _, told := range []bool{false, true} {
		// "web" is another alloc; "db" is the same alloc after a restart
		for _, alloc := range []string{"web", "db"} {
			w, s, p := owned(t)
			begun := time.Now()
			_, _, err := s.Claim(t.Context(), "data", volume.Request{Alloc: alloc, Terms: volume.Terms{Owner: byPID(2)}}, 10*time.Second)
			if !errors.Is(err, volume.ErrRefused) || volume.IsDetaching(err) || time.Since(begun) > 5*time.Second || w.claims() != "db" {
				t.Fatalf("%s beside one that lives: %v, claims %q", alloc, err, w.claims())
			}
			p.dies(1, told)
			_, c, err := s.Claim(t.Context(), "data", volume.Request{Alloc: alloc, Terms: volume.Terms{Owner: byPID(2)}}, 10*time.Second)
			if err != nil || c.Owner.PID != 2 || w.claims() != alloc {
				t.Errorf("%s, told %t: %+v, %v, claims %q", alloc, told, c, err, w.claims())
			}
		}
	}
	w, s, p := owned(t)
	p.dies(1, false)
	_, _, err := s.Claim(t.Context(), "data", volume.Request{Alloc: "web"}, 0)
	want(t, err, volume.ErrDetaching)
	if got := w.claims(); got != "-db" && got != "" {
		t.Errorf("the claims are %q", got)
	}
	_, _, err = s.Claim(t.Context(), "data", volume.Request{Alloc: "web", Terms: volume.Terms{Owner: byPID(1)}}, time.Second)
	want(t, err, volume.ErrRefused, "no such process")
}

// TestNoCheckWithoutOwners checks that the service refuses a request without a check of owners if
// no conflicting claim has an owner.
func TestNoCheckWithoutOwners(t *testing.T) {
	w, p := newWorld(), newPeople()
	s := w.service()
	s.Owners = p
	w.hold(t, "db")
	_, _, err := s.Claim(t.Context(), "data", volume.Request{Alloc: "web"}, time.Second)
	want(t, err, volume.ErrRefused)
	if p.checks != 0 {
		t.Errorf("%d checks", p.checks)
	}
}

func TestDetachOwned(t *testing.T) {
	w, s, _ := owned(t)
	want(t, s.Detach(t.Context(), "data", "db", false, time.Second), volume.ErrRefused, `"db"`, "pid 1 (rsync), which is running")
	if w.claims() != "db" {
		t.Errorf("the claims are %q", w.claims())
	}
	if err := s.Detach(t.Context(), "data", "db", true, time.Second); err != nil || w.claims() != "" {
		t.Errorf("by force: %v, claims %q", err, w.claims())
	}
	var p *people
	w, s, p = owned(t)
	p.dies(1, false)
	if err := s.Detach(t.Context(), "data", "db", false, time.Second); err != nil || w.claims() != "" {
		t.Errorf("after its end: %v, claims %q", err, w.claims())
	}
	w, s, _ = owned(t)
	w.onWake = nil
	if err := s.Detach(t.Context(), "data", "db", true, 0); err != nil {
		t.Fatal(err)
	}
	// this call joins the detach that is already running
	if err := s.Detach(t.Context(), "data", "db", false, 0); err != nil {
		t.Errorf("again: %v", err)
	}
}

// TestReap checks that Reap detaches only the given claim, and only after the end of the owner.
func TestReap(t *testing.T) {
	w, s, p := owned(t)
	r, _ := w.Volume("data")
	c := r.Claims["db"]
	if err := s.Reap(t.Context(), "data", c); err != nil || w.claims() != "db" {
		t.Errorf("one that lives: %v, claims %q", err, w.claims())
	}
	p.dies(1, true)
	w.onWake = nil // a late onWake would remove more claims than this test expects
	older := c
	older.Seq--
	if err := s.Reap(t.Context(), "data", older); err != nil || w.claims() != "db" {
		t.Errorf("an earlier claim of the alloc: %v, claims %q", err, w.claims())
	}
	writes := w.writes
	for range 3 {
		if err := s.Reap(t.Context(), "data", c); err != nil || w.claims() != "-db" {
			t.Errorf("%v, claims %q", err, w.claims())
		}
	}
	if err := s.Detach(t.Context(), "data", "db", false, 0); err != nil || w.writes != writes+1 {
		t.Errorf("%d writes for one release, %v", w.writes-writes, err)
	}
	w.there = false
	if err := s.Reap(t.Context(), "data", c); err != nil {
		t.Errorf("a volume that is no more: %v", err)
	}
}

// TestOwnerEndsWhileWaiting checks a claim whose owner ends while a caller waits for the claim. The
// agent detaches the claim once, and the call returns the reason.
func TestOwnerEndsWhileWaiting(t *testing.T) {
	w, p := newWorld(), newPeople()
	w.onWake = nil
	s := w.service()
	s.Owners = p
	done := make(chan error, 1)
	go func() {
		_, _, err := s.Claim(context.Background(), "data", volume.Request{Alloc: "db", Terms: volume.Terms{Owner: byPID(1)}}, 20*time.Second)
		done <- err
	}()
	var r volume.Record
	for end := time.Now().Add(60 * time.Second); len(r.Claims) == 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
		r, _ = w.Volume("data")
	}
	p.dies(1, true)
	if err := s.Reap(t.Context(), "data", r.Claims["db"]); err != nil {
		t.Fatal(err)
	}
	w.change(func() {})
	want(t, <-done, volume.ErrRefused, "was detached meanwhile")
}
