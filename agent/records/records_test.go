package records_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/provision"
	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/statedb"
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
