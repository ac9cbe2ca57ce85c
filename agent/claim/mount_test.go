package claim_test

import (
	"context"
	"errors"
	"testing"

	"github.com/volagent/volagent/agent/claim"
	"github.com/volagent/volagent/volmgr/volume"
)

// mounted is a fake set of owners in which only the mount with ID 1 has ended.
type mounted struct{ *people }

func (mounted) Gone(o volume.Owner) bool { return o.Mount.ID == 1 }

// places implements claim.Places without any effect. It counts the calls.
type places struct {
	lent, back int
	fail       error
	guardable  bool
	asked      int
}

func (p *places) Lend(string, string, string, volume.Descriptor) (func(), error) {
	p.lent++
	return func() { p.back++ }, p.fail
}

func (p *places) Guardable(_ context.Context, _, _, at string) *volume.GuardedDir {
	p.asked++
	if !p.guardable {
		return nil
	}
	return &volume.GuardedDir{Path: at, Inode: 7}
}

// TestReapMount checks that Reap decides by the record that is stored when Reap runs. The claim
// that the caller passes may be out of date, because the agent may have mounted the volume again
// since the caller read it.
func TestReapMount(t *testing.T) {
	w := newWorld()
	w.onWake = nil
	s := w.service()
	s.Owners = mounted{newPeople()}
	if _, _, err := s.Claim(t.Context(), "data", volume.Request{Alloc: "web", Terms: volume.Terms{At: "/srv", Owner: volume.Owner{Kind: volume.OwnerMount, PID: 7}}}, 0); err != nil {
		t.Fatal(err)
	}
	record := func(bound volume.Side, m *volume.MountIdentity) volume.Claim {
		w.mu.Lock()
		defer w.mu.Unlock()
		c := w.r.Claims["web"]
		c.State, c.Bound, c.BoundMount = volume.Mounted, bound, m
		w.r.Claims = map[string]volume.Claim{"web": c}
		return c
	}
	seen := record(volume.Present, &volume.MountIdentity{ID: 1})
	for _, now := range []struct {
		bound volume.Side
		m     *volume.MountIdentity
	}{{volume.Failed, nil}, {volume.Unknown, nil}, {volume.Absent, nil}, {volume.Present, &volume.MountIdentity{ID: 2}}} {
		record(now.bound, now.m)
		if err := s.Reap(t.Context(), "data", seen); err != nil || w.claims() != "web" {
			t.Errorf("bound %s as %+v: %v, claims %q", now.bound, now.m, err, w.claims())
		}
	}
	seen = record(volume.Present, &volume.MountIdentity{ID: 1})
	if err := s.Reap(t.Context(), "data", seen); err != nil || w.claims() != "-web" {
		t.Errorf("it is gone: %v, claims %q", err, w.claims())
	}
}

// TestLend checks that the service gives back the caller's file descriptor when the request ends.
// If a request cannot use its descriptor, the service refuses the request before it stores
// anything.
func TestLend(t *testing.T) {
	fd := &volume.Descriptor{PID: 1, FD: 3}
	w := newWorld()
	p := &places{guardable: true}
	s := w.service()
	s.Places = p
	claimed := func(s *claim.Service, q volume.Request, wait bool) error {
		d := patience
		if !wait {
			d = 0
		}
		_, _, err := s.Claim(t.Context(), "data", q, d)
		return err
	}
	want(t, claimed(s, volume.Request{Alloc: "web", AtFD: fd}, true), volume.ErrInvalid, "at_fd needs at")
	want(t, claimed(s, volume.Request{Alloc: "web", Terms: volume.Terms{At: "/srv"}, AtFD: fd}, false), volume.ErrInvalid, "at_fd needs at")
	want(t, claimed(w.service(), volume.Request{Alloc: "web", Terms: volume.Terms{At: "/srv"}, AtFD: fd}, true), volume.ErrInvalid, "at_fd needs at")
	want(t, claimed(s, volume.Request{Alloc: "web", Terms: volume.Terms{AtFlags: "nosuid"}}, true), volume.ErrInvalid, "at_flags")
	p.fail = errors.New("no such descriptor")
	want(t, claimed(s, volume.Request{Alloc: "web", Terms: volume.Terms{At: "/srv"}, AtFD: fd}, true), p.fail)
	if w.writes != 0 || p.lent != 1 || p.back != 0 {
		t.Errorf("%d writes, %d lent, %d given back", w.writes, p.lent, p.back)
	}
	p.fail = nil
	w.onWake = failWith(volume.Action{Kind: volume.Bind, Alloc: "web"}, volume.RetryChange)
	if err := claimed(s, volume.Request{Alloc: "web", Terms: volume.Terms{At: "/srv"}, AtFD: fd}, true); err == nil || p.lent != 2 || p.back != 1 {
		t.Errorf("%v; %d lent, %d given back", err, p.lent, p.back)
	}
	if r, _ := w.Volume("data"); len(r.Guards) != 1 || p.asked != 1 {
		t.Errorf("guarded are %v, asked for %d times", r.Guards, p.asked)
	}
	// A new claim may name a different own directory than the earlier claim of the alloc, which is
	// still being detached.
	if err := claimed(s, volume.Request{Alloc: "web", Terms: volume.Terms{At: "/other"}}, false); !volume.IsDetaching(err) || p.asked != 2 {
		t.Errorf("%v; asked for %d times", err, p.asked)
	}
}
