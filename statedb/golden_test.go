package statedb_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/volume"
)

// An earlier release wrote the files in testdata. They must never change.
//
//   - state.db is a backup with a seal, which is also a valid database.
//   - state.log has changes that are not in state.db.
//   - state.txt lists all keys and values of state.db.

// planted copies files from testdata to a new directory, and returns the path of the database.
func planted(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		raw, err := os.ReadFile(filepath.Join("testdata", name))
		if err := errors.Join(err, os.WriteFile(filepath.Join(dir, name), raw, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "state.db")
}

// dump returns all keys and values of a file as text, one per line.
func dump(t *testing.T, path string) string {
	t.Helper()
	var out strings.Builder
	peek(t, path, func(tx *bbolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bbolt.Bucket) error {
			return b.ForEach(func(k, v []byte) error {
				_, err := fmt.Fprintf(&out, "%s %q %s\n", name, k, v)
				return err
			})
		})
	})
	return out.String()
}

// golden returns the content of state.txt.
func golden(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile("testdata/state.txt")
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// TestGoldenRead checks that a database of an earlier release can be opened, and that opening and
// closing it changes no value.
func TestGoldenRead(t *testing.T) {
	path := planted(t, "state.db")
	db, err := statedb.Open(path, statedb.Options{})
	if err != nil {
		t.Fatal(err)
	}

	rich, _ := db.Volume("rich")
	if c := rich.Claims["a"]; c.Owner.Unit != "web.service" || !c.AtWritable || c.BoundMount.Backing != "/img" || c.Own.Mode != "0770" {
		t.Errorf("the claim is %+v", c)
	}
	equal(t, "context", rich.Volume.Context, map[string]string{"k": "é", "": ""})
	equal(t, "volumes", len(db.Volumes()), 4)
	equal(t, "loss", db.Node().Loss.Copy, time.Unix(9, 0).UTC())
	equal(t, "registered plugins", len(statedb.Registered.All(db)), 2)
	equal(t, "intents", statedb.Snapshots.All(db), []volume.SnapshotIntent{intent("nightly")})
	equal(t, "names", statedb.SnapshotNames.All(db), []volume.SnapshotName{intent("nightly").Named("snap-1")})
	equal(t, "runtimes", statedb.RuntimeVolumes.All(db), []volume.RuntimeVolume{runtimeVolume("data")})
	if p, _ := statedb.Plugins.Get(db, "p"); p.Info.NodeID != "n" {
		t.Errorf("the plugin is %+v", p)
	}
	if d, _ := statedb.Leftovers.Get(db, statedb.StorageKey("d", "ext-gone")); d.Record.Volume.ID != "gone" || len(d.Claims) != 1 {
		t.Errorf("the debt is %+v", d)
	}

	if err := errors.Join(db.Close(), statedb.Check(path)); err != nil {
		t.Fatal(err)
	}
	equal(t, "the file after a stop", dump(t, path), golden(t))
}

// TestGoldenLog opens the database of an earlier release together with its log, which contains
// newer records.
func TestGoldenLog(t *testing.T) {
	db, err := statedb.Open(planted(t, "state.db", "state.log"), statedb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]bool{"rich": true, "volume-00001": true, "volume-00002": false} {
		if got := taken(db, id); got != want {
			t.Errorf("%s: the log counts: %t, want %t", id, got, want)
		}
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}

// TestGoldenBackup reads the database of an earlier release as a backup.
func TestGoldenBackup(t *testing.T) {
	raw, err := os.ReadFile("testdata/state.db")
	if err != nil {
		t.Fatal(err)
	}
	db, _ := fresh(t, statedb.Options{})
	got, err := db.ReadBackup(bytes.NewReader(raw))
	if err != nil || got.Taken.IsZero() || len(got.Volumes()) != 4 || got.Node().ID != "n" {
		t.Errorf("%d volumes of node %q, taken %s, %v", len(got.Volumes()), got.Node().ID, got.Taken, err)
	}
}

// TestGoldenWrite copies all values of an earlier release's database to a new database. All bytes
// of the values must be the same.
func TestGoldenWrite(t *testing.T) {
	old := open(t, planted(t, "state.db"), statedb.Options{})
	db, path := fresh(t, statedb.Options{})
	do(t, db.Update, func(tx *statedb.Tx) error {
		for _, r := range old.Volumes() {
			r.Generation-- // cancels the increment in PutVolume
			tx.PutVolume(r)
		}
		tx.PutNode(old.Node())
		again(tx, old, statedb.Plugins)
		again(tx, old, statedb.Leftovers)
		again(tx, old, statedb.Registered)
		again(tx, old, statedb.Snapshots)
		again(tx, old, statedb.SnapshotNames)
		again(tx, old, statedb.RuntimeVolumes)
		return nil
	})
	equal(t, "the file", lines(dump(t, copied(t, path))), lines(golden(t)))
}

func again[V any](tx *statedb.Tx, from *statedb.DB, table *statedb.Table[V]) {
	for _, v := range table.All(from) {
		table.Put(tx, v)
	}
}

func lines(text string) []string { return slices.Collect(strings.Lines(text)) }
