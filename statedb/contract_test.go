package statedb_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestContract checks the guarantees that the store gives to its callers.
func TestContract(t *testing.T) {
	t.Run("order", order)
	t.Run("durability", durability)
	t.Run("failed commit", failedCommit)
	t.Run("atomicity", atomicity)
	t.Run("unknown fields", unknownFields)
	t.Run("damage", damage)
}

// rank returns a change that sets the number Node.Seq of the volume "v" to n. All tests of the
// contract make this change.
func rank(n uint64) func(*statedb.Tx) error {
	return func(tx *statedb.Tx) error {
		r, _ := tx.Volume("v")
		r.Node.Seq = n
		tx.PutVolume(r)
		return nil
	}
}

// verbs lists all ways to make a change, with the guarantees of each way. After each of them has
// succeeded, the change is in memory.
var verbs = map[string]struct {
	change       func(t *testing.T, db *statedb.DB, n uint64) error
	needsCommit  bool // the method waits for a commit before it returns
	killed       bool // the change survives a kill of the agent
	powerCut     bool // the change survives a power cut
	keptOnFailed bool // memory keeps the change if the commit fails
}{
	"Update": {change: func(t *testing.T, db *statedb.DB, n uint64) error {
		return db.Update(t.Context(), rank(n))
	}, needsCommit: true, killed: true, powerCut: true},
	"Happened": {change: func(t *testing.T, db *statedb.DB, n uint64) error {
		return db.Happened(t.Context(), rank(n))
	}, needsCommit: true, killed: true, powerCut: true, keptOnFailed: true},
	"Save with next": {change: saved(volume.SaveWithNext), keptOnFailed: true},
	"Save at once":   {change: saved(volume.SaveAtOnce), killed: true, keptOnFailed: true},
	"Save first":     {change: saved(volume.SaveFirst), needsCommit: true, killed: true, powerCut: true, keptOnFailed: true},
	"Save at once, of a kind that the log cannot hold": {change: func(t *testing.T, db *statedb.DB, n uint64) error {
		return db.Save(t.Context(), func(tx *statedb.Tx) volume.Saving {
			_ = rank(n)(tx) // the change from rank never fails
			statedb.RuntimeVolumes.Put(tx, runtimeVolume("data"))
			return volume.SaveAtOnce
		})
	}, needsCommit: true, killed: true, powerCut: true, keptOnFailed: true},
}

func saved(s volume.Saving) func(*testing.T, *statedb.DB, uint64) error {
	return func(t *testing.T, db *statedb.DB, n uint64) error {
		return db.Save(t.Context(), func(tx *statedb.Tx) volume.Saving {
			_ = rank(n)(tx) // the change from rank never fails
			return s
		})
	}
}

// order checks that each change sees all changes whose calls have already returned. It mixes all
// methods of changing the state. The file must contain the changes in the same order.
func order(t *testing.T) {
	db, path := fresh(t, statedb.Options{})
	do(t, db.Update, put(record("v")))
	var want uint64
	for range 5 {
		for name, v := range verbs {
			err := v.change(t, db, want+1)
			if r, _ := db.Volume("v"); err != nil || r.Node.Seq != want+1 || r.Generation != want+2 {
				t.Fatalf("%s: change %d made %d, generation %d: %v", name, want+1, r.Node.Seq, r.Generation, err)
			}
			want++
		}
	}
	do(t, db.Update, rank(want))
	if r, _ := open(t, copied(t, path), statedb.Options{}).Volume("v"); r.Node.Seq != want {
		t.Errorf("the file has %d, want %d", r.Node.Seq, want)
	}
}

// durability checks that a change survives a kill of the agent, or a power cut, if and only if its
// method guarantees this. The log need not survive a power cut.
func durability(t *testing.T) {
	for name, v := range verbs {
		t.Run(name, func(t *testing.T) {
			var stop atomic.Bool
			goOn := make(chan struct{})
			db, path := fresh(t, statedb.Options{Tap: func(p statedb.Point) {
				if p == statedb.BeforeCommit && stop.Load() {
					<-goOn
				}
			}})
			do(t, db.Update, put(record("v")))
			// If the method promises to return without a commit, the test blocks all commits. The
			// method must then return nevertheless.
			stop.Store(!v.needsCommit)
			defer close(goOn)

			if err := v.change(t, db, 7); err != nil {
				t.Fatal(err)
			}
			cut := copied(t, path)
			killed := copied(t, path)
			log, err := os.ReadFile(strings.TrimSuffix(path, ".db") + ".log")
			if err := errors.Join(err, os.WriteFile(strings.TrimSuffix(killed, ".db")+".log", log, 0o600)); err != nil {
				t.Fatal(err)
			}

			for what, at := range map[string]struct {
				path string
				want bool
			}{"a kill": {killed, v.killed}, "a power cut": {cut, v.powerCut}} {
				r, _ := open(t, at.path, statedb.Options{}).Volume("v")
				if got := r.Node.Seq == 7; got != at.want {
					t.Errorf("after %s the change is there: %t, want %t", what, got, at.want)
				}
			}
		})
	}
}

// failedCommit makes the commit of a change fail. If the method of the change needs the commit, it
// must return the error. After the error, Update drops its change. The other methods keep their
// changes, and the next successful commit writes them.
func failedCommit(t *testing.T) {
	for name, v := range verbs {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "d", "state.db")
			if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			db := open(t, path, statedb.Options{})
			do(t, db.Update, put(record("v")))
			away := filepath.Dir(path) + "-away"
			if err := os.Rename(filepath.Dir(path), away); err != nil { // without its directory, every commit fails
				t.Fatal(err)
			}

			// The directory of the log is missing too, so even SaveAtOnce needs a commit.
			err := v.change(t, db, 7)
			if fails := name != "Save with next"; (err != nil) != fails {
				t.Errorf("it fails: %v, want %t", err, fails)
			}
			if r, _ := db.Volume("v"); (r.Node.Seq == 7) != v.keptOnFailed {
				t.Errorf("memory has it: %t, want %t", r.Node.Seq == 7, v.keptOnFailed)
			}

			if err := os.Rename(away, filepath.Dir(path)); err != nil {
				t.Fatal(err)
			}
			do(t, db.Update, put(record("other")))
			if r, _ := open(t, copied(t, path), statedb.Options{}).Volume("v"); (r.Node.Seq == 7) != v.keptOnFailed {
				t.Errorf("the file has it: %t, want %t", r.Node.Seq == 7, v.keptOnFailed)
			}
		})
	}
}

// atomicity checks that a refused update changes no value of any kind, neither in memory nor in the
// file. A successful update is one commit.
func atomicity(t *testing.T) {
	db, path := fresh(t, statedb.Options{})
	do(t, db.Update, put(record("v", "a")))
	before, commits := dump(t, copied(t, path)), db.Commits()
	all := func(tx *statedb.Tx) error {
		tx.DeleteVolume("v")
		tx.PutVolume(record("new", "a", "b"))
		statedb.Snapshots.Put(tx, intent("nightly"))
		tx.PutNode(statedb.Node{ID: "n"})
		return nil
	}

	err := db.Update(t.Context(), func(tx *statedb.Tx) error { return errors.Join(all(tx), errRefused) })
	if _, there := db.Volume("v"); !errors.Is(err, errRefused) || !there || len(statedb.Snapshots.All(db)) != 0 || db.Node().ID != "" {
		t.Errorf("a refused update changed memory: %v", err)
	}
	equal(t, "the file after a refused update", dump(t, copied(t, path)), before)
	equal(t, "commits", db.Commits(), commits)

	do(t, db.Update, all)
	equal(t, "commits", db.Commits(), commits+1)
	again := open(t, copied(t, path), statedb.Options{})
	if r, _ := again.Volume("new"); len(r.Claims) != 2 || len(again.Volumes()) != 1 || len(statedb.Snapshots.All(again)) != 1 || again.Node().ID != "n" {
		t.Errorf("the file has %+v, %+v", again.Volumes(), again.Node())
	}
}

// unknownFields checks that a file with fields of a newer release can be read. A value keeps these
// fields until this release rewrites the value.
func unknownFields(t *testing.T) {
	path := full(t)
	const extra = `"of_a_newer_release":1`
	peek(t, path, func(tx *bbolt.Tx) error {
		return tx.ForEach(func(_ []byte, b *bbolt.Bucket) error {
			values := map[string][]byte{}
			err := b.ForEach(func(k, v []byte) error {
				if v[0] == '{' {
					values[string(k)] = append([]byte("{"+extra+","), v[1:]...)
				}
				return nil
			})
			for k, v := range values {
				err = errors.Join(err, b.Put([]byte(k), v))
			}
			return err
		})
	})

	db, before := open(t, path, statedb.Options{}), dump(t, copied(t, path))
	do(t, db.Update, func(tx *statedb.Tx) error {
		r, _ := tx.Volume("v01")
		tx.PutVolume(r)
		statedb.Snapshots.Put(tx, intent("nightly"))
		return nil
	})
	rewritten := []string{`volumes "v01" `, fmt.Sprintf("snapshots %q ", intent("nightly").Key())}
	after := lines(dump(t, copied(t, path)))
	for i, line := range lines(before) {
		written := false
		for _, key := range rewritten {
			written = written || strings.HasPrefix(line, key)
		}
		switch {
		case written && strings.Contains(after[i], extra):
			t.Errorf("a value that was written has an unknown field: %s", after[i])
		case !written && after[i] != line:
			t.Errorf("a value that was not written changed:\n%s%s", line, after[i])
		}
	}
}

// damage checks, for each kind, that a value that cannot be decoded counts as damage. The error
// names the bucket and the key, and the file does not change.
func damage(t *testing.T) {
	for _, bucket := range append(statedb.Buckets(), "claims") {
		path := full(t)
		key := ""
		peek(t, path, func(tx *bbolt.Tx) error {
			b := tx.Bucket([]byte(bucket))
			if b == nil {
				t.Fatalf("no test stores a value in bucket %q; add one to full", bucket)
			}
			k, _ := b.Cursor().First()
			key = string(k)
			return b.Put(k, []byte("]"))
		})

		before, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		_, err = statedb.Open(path, statedb.Options{})
		var d *statedb.Damage
		if !errors.As(err, &d) || !strings.Contains(err.Error(), fmt.Sprintf("%s %q: ", bucket, key)) {
			t.Errorf("%s: %v", bucket, err)
		}
		if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, before) {
			t.Errorf("%s: the file changed (%v)", bucket, err)
		}
	}
}
