package statedb_test

import (
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/volume"
)

func intent(name string) volume.SnapshotIntent {
	return volume.SnapshotIntent{
		PluginID: "p", Driver: "d", Name: name, Volumes: []string{"v01"}, Sources: []string{"ext-v01"}, Since: time.Unix(7, 0).UTC(),
	}
}

// TestSnapshots checks that the intent to make a snapshot is on disk until the intent is deleted. A
// snapshot and a group of the same name have separate intents.
func TestSnapshots(t *testing.T) {
	path := full(t)
	db := open(t, path, statedb.Options{})
	group := intent("nightly")
	group.Group = true
	do(t, db.Update, func(tx *statedb.Tx) error {
		if i, ok := statedb.Snapshots.Get(tx, intent("nightly").Key()); !ok || !i.Same(intent("nightly")) {
			t.Errorf("the intent is %+v, %t", i, ok)
		}
		statedb.Snapshots.Put(tx, group)
		return nil
	})
	equal(t, "intents", len(statedb.Snapshots.All(db)), 2)
	do(t, db.Update, func(tx *statedb.Tx) error { statedb.Snapshots.Delete(tx, intent("nightly").Key()); return nil })
	again := open(t, copied(t, path), statedb.Options{})
	equal(t, "after one was forgotten", statedb.Snapshots.All(again), []volume.SnapshotIntent{group})
}

// TestSnapshotsInOlderFile opens a file from a release that could not store snapshots. The file
// contains none, and can store them.
func TestSnapshotsInOlderFile(t *testing.T) {
	path := full(t)
	peek(t, path, func(tx *bbolt.Tx) error { return tx.DeleteBucket([]byte("snapshots")) })
	db := open(t, path, statedb.Options{})
	equal(t, "intents", len(statedb.Snapshots.All(db)), 0)
	do(t, db.Update, func(tx *statedb.Tx) error { statedb.Snapshots.Put(tx, intent("new")); return nil })
	equal(t, "intents", statedb.Snapshots.All(open(t, copied(t, path), statedb.Options{})), []volume.SnapshotIntent{intent("new")})
}

// TestSnapshotNames checks that the name of a snapshot is on disk, and in a backup, until the name
// is deleted. Several snapshot ids may have the same name.
func TestSnapshotNames(t *testing.T) {
	path := full(t)
	db := open(t, path, statedb.Options{})
	one, two := intent("nightly").Named("snap-1"), intent("nightly").Named("snap-2")
	do(t, db.Update, func(tx *statedb.Tx) error {
		statedb.SnapshotNames.Put(tx, one)
		statedb.SnapshotNames.Put(tx, two)
		return nil
	})
	equal(t, "names", len(statedb.SnapshotNames.All(open(t, copied(t, path), statedb.Options{}))), 2)
	do(t, db.Update, func(tx *statedb.Tx) error {
		statedb.SnapshotNames.Delete(tx, one.Key())
		equal(t, "names in the transaction", statedb.SnapshotNames.All(tx), []volume.SnapshotName{two})
		return nil
	})
	equal(t, "after one was forgotten", statedb.SnapshotNames.All(open(t, copied(t, path), statedb.Options{})), []volume.SnapshotName{two})
	s, _, err := statedb.Inspect(copied(t, path))
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "as inspect sees them", statedb.SnapshotNames.All(s), []volume.SnapshotName{two})
}

// TestCheckSnapshots checks that Check finds an intent that the agent cannot complete.
func TestCheckSnapshots(t *testing.T) {
	path := full(t)
	peek(t, path, set("snapshots", "x", `{"plugin_id":"p","driver":"d","name":"nightly","volumes":["a"]}`))
	err := statedb.Check(path)
	for _, words := range []string{`it is stored under "x"`, `snapshot "nightly" is of 1 volumes with 0 external ids`} {
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("got %v, want %q", err, words)
		}
	}
}
