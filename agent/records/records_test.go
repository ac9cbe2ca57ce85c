package records_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/provision"
	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

func open(t *testing.T) records.Store {
	t.Helper()
	db, err := statedb.Open(filepath.Join(t.TempDir(), "state.db"), statedb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return records.Store{DB: db}
}

func record(id string, claims ...volume.Claim) volume.Record {
	r := volume.Record{
		Volume: volume.Volume{ID: id, PluginID: "p", Driver: "d", ExternalID: "e-" + id},
		Node:   volume.NodeSide{StagingPath: "/s/" + id},
		Claims: map[string]volume.Claim{},
	}
	for _, c := range claims {
		r.Claims[c.Alloc] = c
	}
	return r
}

func put(t *testing.T, s records.Store, rs ...volume.Record) {
	t.Helper()
	err := s.Update(t.Context(), func(tx *statedb.Tx) error {
		for _, r := range rs {
			tx.PutVolume(r)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestChange checks that a refused change stores nothing. One refused change is a claim at a path
// that another volume uses.
func TestChange(t *testing.T) {
	s := open(t)
	at := func(alloc string) volume.Claim {
		c := volume.Claim{Alloc: alloc, Wanted: true, Target: "/t/" + alloc}
		c.At = "/srv"
		return c
	}
	put(t, s, record("a", at("one")), record("b"))

	err := s.Change(t.Context(), "b", func(r volume.Record) (volume.Record, bool, error) {
		return record("b", at("two")), true, nil
	})
	if err == nil || !strings.Contains(err.Error(), "/srv") {
		t.Errorf("a claim at the directory of another volume: %v", err)
	}
	if r, _ := s.Volume("b"); len(r.Claims) != 0 {
		t.Errorf("the refused claim is stored: %+v", r.Claims)
	}
	if err := s.Change(t.Context(), "c", nil); err == nil || !strings.Contains(err.Error(), `no volume "c"`) {
		t.Errorf("an unknown volume: %v", err)
	}
}

// TestLeftovers checks that the queue finds leftover records under their own keys. Settle must
// delete the leftover record, and return the waiting volume.
func TestLeftovers(t *testing.T) {
	s := open(t)
	put(t, s, record("new"))
	left := record("old")
	left.Volume.ExternalID, left.Leftover, left.Node.Attached = "e-new", true, volume.Present
	err := records.Provisioning{Store: s}.Update(t.Context(), func(tx provision.Tx) error {
		tx.PutLeftover(left, time.Unix(1, 0))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	all := records.WithLeftovers{Store: s}
	key := volume.LeftoverKey("d", "e-new")
	if r, ok := all.Volume(key); !ok || r.Volume.ID != "old" || len(all.Volumes()) != 2 {
		t.Fatalf("%+v, %t, %d in all", r, ok, len(all.Volumes()))
	}
	fresh, _ := s.Volume("new")
	if words := s.PendingFor(fresh.Volume); !strings.Contains(words, `"old"`) {
		t.Errorf("the new volume waits for %q", words)
	}
	if waiting, err := s.Settle(t.Context(), left); err != nil || waiting != "new" {
		t.Errorf("settled too early? %q, %v", waiting, err)
	}
	if _, ok := all.Volume(key); !ok {
		t.Fatal("a leftover that is still connected was deleted")
	}

	err = all.Save(t.Context(), key, func(r volume.Record) (volume.Record, volume.Saving) {
		r.Node.Attached = volume.Absent
		return r, volume.SaveFirst
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Settle(t.Context(), left); err != nil {
		t.Fatal(err)
	}
	if _, ok := all.Volume(key); ok || s.PendingFor(fresh.Volume) != "" {
		t.Error("the settled leftover is still there")
	}
}

// owners is a fake in which all owners have ended.
type owners struct{}

func (owners) Gone(volume.Owner) bool             { return true }
func (owners) View(volume.Owner) volume.OwnerView { return volume.OwnerView{Life: volume.LifeGone} }

// TestLiving checks that Living shows a claim as detaching if the owner of the claim has ended.
func TestLiving(t *testing.T) {
	s := open(t)
	put(t, s, record("a", volume.Claim{Alloc: "one", Wanted: true, Terms: volume.Terms{Owner: volume.Owner{Kind: volume.OwnerPID, PID: 7}}}))
	r, ok := records.Living{Store: s, Owners: owners{}}.Volume("a")
	if !ok || r.Claims["one"].Wanted {
		t.Errorf("%+v", r.Claims)
	}
	if stored, _ := s.Volume("a"); !stored.Claims["one"].Wanted {
		t.Error("the stored claim changed")
	}
}

// TestReserve checks that one free place of a plugin goes to only one volume, whether claims or moves want it. A
// claim counts while it waits for a volume of another host. When a reservation ends, its place is free again.
func TestReserve(t *testing.T) {
	s := open(t)
	s.Reserved = &records.Reservations{}
	p := plugin.Info{ID: "p", Driver: "d", MaxVolumes: 2}
	put(t, s, record("a"), record("b"), record("c"))
	if err := s.Update(t.Context(), func(tx *statedb.Tx) error { statedb.Plugins.Put(tx, plugin.Record{ID: p.ID, Info: p}); return nil }); err != nil {
		t.Fatal(err)
	}
	claim := func(id string) error {
		return s.Change(t.Context(), id, func(r volume.Record) (volume.Record, bool, error) {
			r.Claims = map[string]volume.Claim{"w": {Alloc: "w", Wanted: true, Target: "/t/" + id}}
			return r, true, nil
		})
	}
	reserve := func(id string) error { return s.Reserve(t.Context(), record(id).Volume, p) }
	full := func(what string, err error, names string) {
		t.Helper()
		if !errors.Is(err, volume.ErrRefused) || !strings.Contains(err.Error(), names) {
			t.Errorf("%s: %v", what, err)
		}
	}

	if err := errors.Join(claim("a"), reserve("x"), reserve("x")); err != nil {
		t.Fatal(err)
	}
	full("a claim beside a reservation", claim("b"), "has 2: a, x (reserved)")
	full("a reservation beside another", reserve("y"), "has 2: a, x (reserved)")
	s.Reserved.Drop("x")
	if err := claim("b"); err != nil {
		t.Errorf("a claim after the end of a reservation: %v", err)
	}
	full("a reservation on a full host", reserve("x"), "has 2: a, b")
	full("a claim on a full host", claim("c"), "has 2: a, b")

	// Of many claims and reservations at once, exactly one gets the place.
	s = open(t)
	s.Reserved = &records.Reservations{}
	p.MaxVolumes = 1
	if err := s.Update(t.Context(), func(tx *statedb.Tx) error { statedb.Plugins.Put(tx, plugin.Record{ID: p.ID, Info: p}); return nil }); err != nil {
		t.Fatal(err)
	}
	var got atomic.Int32
	var all sync.WaitGroup
	for i := range 8 {
		claimed, reserved := fmt.Sprint("claimed", i), fmt.Sprint("reserved", i)
		put(t, s, record(claimed))
		for _, try := range []func() error{func() error { return claim(claimed) }, func() error { return reserve(reserved) }} {
			all.Go(func() {
				if try() == nil {
					got.Add(1)
				}
			})
		}
	}
	all.Wait()
	if n := got.Load(); n != 1 {
		t.Errorf("%d volumes have got one place", n)
	}
}
