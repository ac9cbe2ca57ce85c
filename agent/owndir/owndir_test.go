package owndir

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr"
	"github.com/volagent/volagent/volmgr/volume"
)

func open(t *testing.T, fill func(*statedb.Tx)) Dirs {
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
	if err := db.Update(t.Context(), func(tx *statedb.Tx) error { fill(tx); return nil }); err != nil {
		t.Fatal(err)
	}
	return Dirs{Manager: volmgr.New(volmgr.Options{Root: t.TempDir()}), Records: records.Store{DB: db}}
}

// TestGuarded checks that a directory stays guarded as long as any other record names it. Leftover
// records count, too.
func TestGuarded(t *testing.T) {
	dir := volume.GuardedDir{Path: "/srv/a", Inode: 5}
	guarding := func(id, external string) volume.Record {
		return volume.Record{Volume: volume.Volume{ID: id, PluginID: "p", Driver: "d", ExternalID: external}, Guards: []string{dir.Path}, GuardDirs: []volume.GuardedDir{dir}}
	}
	d := open(t, func(tx *statedb.Tx) {
		tx.PutVolume(guarding("v", "e1"))
	})
	if !d.guarded(dir, "") || d.guarded(dir, "v") || d.guarded(volume.GuardedDir{Path: "/srv/b"}, "") {
		t.Errorf("guarded by v: %t; without v: %t; another directory: %t", d.guarded(dir, ""), d.guarded(dir, "v"), d.guarded(volume.GuardedDir{Path: "/srv/b"}, ""))
	}

	d = open(t, func(tx *statedb.Tx) {
		tx.PutVolume(guarding("v", "e1"))
		statedb.Leftovers.Put(tx, statedb.LeftoverOf(guarding("w", "e2"), time.Unix(1, 0)))
	})
	if !d.guarded(dir, "v") {
		t.Error("the leftover record does not count")
	}
}

// TestDropLeftover checks that a leftover record without pending work is deleted. DropLeftover must
// return the volume that waits for the storage.
func TestDropLeftover(t *testing.T) {
	left := volume.Record{Leftover: true, Volume: volume.Volume{ID: "old", PluginID: "p", Driver: "d", ExternalID: "e"}}
	d := open(t, func(tx *statedb.Tx) {
		tx.PutVolume(volume.Record{Volume: volume.Volume{ID: "new", PluginID: "p", Driver: "d", ExternalID: "e"}})
		statedb.Leftovers.Put(tx, statedb.LeftoverOf(left, time.Unix(1, 0)))
	})
	if waiting := d.DropLeftover(left, hclog.NewNullLogger()); waiting != "new" {
		t.Errorf("%q waits", waiting)
	}
	if n := len(statedb.Leftovers.All(d.Records)); n != 0 {
		t.Errorf("%d leftover records are stored", n)
	}
}
