package statedb_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/volume"
)

func await(t *testing.T, is func() bool) {
	t.Helper()
	for end := time.Now().Add(100 * time.Second); !is(); <-time.After(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not come")
		}
	}
}

// TestRefusedNotLogged lets the commit of a batch fail. The batch contains an update and a logged
// save. After a restart, the log must restore the change of the save, but not the refused update.
func TestRefusedNotLogged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	var db *statedb.DB
	commits, goOn := 0, make(chan struct{})
	began := make(chan struct{})
	db, err := statedb.Open(path, statedb.Options{Tap: func(p statedb.Point) {
		if p != statedb.BeforeCommit {
			return
		}
		switch commits++; commits {
		case 2:
			close(began)
			<-goOn
		case 3:
			db.CloseFile() // makes this commit and all later ones fail
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	do(t, db.Update, put(record("a")))
	var wg sync.WaitGroup
	same := func(tx *statedb.Tx) error {
		r, _ := tx.Volume("a")
		tx.PutVolume(r)
		return nil
	}
	wg.Go(func() { do(t, db.Update, same) })
	<-began // a commit of the volume is running, so later changes of the volume must wait
	wg.Go(func() {
		err := db.Update(t.Context(), func(tx *statedb.Tx) error {
			r, _ := tx.Volume("a")
			r.Node.Seq = 99
			tx.PutVolume(r)
			return nil
		})
		if err == nil {
			t.Error("the commit did not fail")
		}
	})
	await(t, func() bool { return db.Queued() == 1 })
	wg.Go(func() { take(t, db, "a") })
	await(t, func() bool { return db.Queued() == 2 })
	close(goOn)
	wg.Wait()
	if r, _ := db.Volume("a"); !taken(db, "a") || r.Node.Seq == 99 {
		t.Fatalf("in memory: %+v", r)
	}
	_ = db.Close() // Close reports an error, because no commit can succeed
	again, err := statedb.Open(path, statedb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if r, _ := again.Volume("a"); !taken(again, "a") || r.Node.Seq == 99 {
		t.Errorf("taken: %t; what was refused is there: %t", taken(again, "a"), r.Node.Seq == 99)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestLoggedAfterDoubt logs a record after a failed commit. The logged record must be newer than
// the record that the commit may have written.
func TestLoggedAfterDoubt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	var db *statedb.DB
	fail := false
	db, err := statedb.Open(path, statedb.Options{Tap: func(statedb.Point) {
		if fail {
			db.CloseFile()
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	do(t, db.Update, put(record("a")))
	before, _ := db.Volume("a")
	fail = true
	if err := db.Update(t.Context(), put(before)); err == nil {
		t.Fatal("the commit did not fail")
	}
	take(t, db, "a")
	if r, _ := db.Volume("a"); r.Generation < before.Generation+2 {
		t.Errorf("generation %d was told after %d was perhaps written", r.Generation, before.Generation+1)
	}
	_ = db.Close() // Close reports an error, because no commit can succeed
}

// TestLogIsBounded checks that the size of the log stays limited while changes arrive without a
// pause.
func TestLogIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	var db *statedb.DB
	var most int64
	stop := make(chan struct{})
	db, err := statedb.Open(path, statedb.Options{Tap: func(p statedb.Point) {
		if most = max(most, sizeOf(t, path)); p == statedb.BeforeCommit {
			<-time.After(time.Millisecond) // so that other changes can arrive
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	big := record("v")
	big.Volume.Context = map[string]string{"filler": strings.Repeat("x", 8<<10)}
	for w := range 4 {
		big.Volume.ID = fmt.Sprint("v", w)
		do(t, db.Update, put(big))
	}
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					take(t, db, fmt.Sprint("v", w))
				}
			}
		})
	}
	await(t, func() bool { return db.Commits() > 40 })
	close(stop)
	wg.Wait()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if most > 16<<20 {
		t.Errorf("the log grew to %d bytes", most)
	}
	t.Log(most)
}

// TestManyClaims checks that the database commits a record with many claims and does not log it.
func TestManyClaims(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	db, err := statedb.Open(path, statedb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	many := record("a")
	for i := range 65 {
		alloc := fmt.Sprint("alloc", i)
		many.Claims[alloc] = volume.Claim{Alloc: alloc}
	}
	do(t, db.Update, put(many))
	before := db.Commits()
	err = saveVolume(t.Context(), db, "a", func(r volume.Record) (volume.Record, volume.Saving) { return r, volume.SaveAtOnce })
	if err != nil || db.Commits() != before+1 || sizeOf(t, path) != 0 {
		t.Errorf("%v; %d commits; the log has %d bytes", err, db.Commits()-before, sizeOf(t, path))
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestSeenWhenSafe checks that readers do not see a record before it is logged or, without a log,
// committed. A reader may report the record to a user at once.
func TestSeenWhenSafe(t *testing.T) {
	for _, saving := range []volume.Saving{volume.SaveAtOnce, volume.SaveFirst} {
		path := filepath.Join(t.TempDir(), "state.db")
		if err := os.Mkdir(strings.TrimSuffix(path, ".db")+".log", 0o700); err != nil {
			t.Fatal(err)
		}
		var db *statedb.DB
		var seen bool
		armed := false
		db, err := statedb.Open(path, statedb.Options{Tap: func(p statedb.Point) {
			if armed && p == statedb.BeforeCommit {
				r, _ := db.Volume("a")
				seen = seen || r.Node.Seq == 99
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		do(t, db.Update, put(record("a")))
		armed = true
		err = saveVolume(t.Context(), db, "a", func(r volume.Record) (volume.Record, volume.Saving) {
			r.Node.Seq = 99
			return r, saving
		})
		if r, _ := db.Volume("a"); err != nil || seen || r.Node.Seq != 99 {
			t.Errorf("saving %d: %v; seen before: %t", saving, err, seen)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// tell changes volumes from several goroutines and prints every reported change. It runs until the
// test kills its process.
func tell(args []string) error {
	db, err := statedb.Open(args[0], statedb.Options{})
	if err != nil {
		return err
	}
	failed := make(chan error)
	for v := range 3 {
		id := fmt.Sprint("v", v)
		if err := db.Update(context.Background(), put(record(id))); err != nil {
			return err
		}
		go func() { // commits the volume nearly all the time
			for {
				err := db.Update(context.Background(), func(tx *statedb.Tx) error {
					r, _ := tx.Volume(id)
					tx.PutVolume(r)
					return nil
				})
				if err != nil {
					failed <- err
				}
			}
		}()
		go func() {
			for n := uint64(1); ; n++ {
				err := saveVolume(context.Background(), db, id, func(r volume.Record) (volume.Record, volume.Saving) {
					r.Node.Seq = n
					return r, volume.Saving(n % 3) // uses all three ways to save
				})
				if err != nil {
					failed <- err
				}
				if volume.Saving(n%3) != volume.SaveWithNext {
					fmt.Println(id, n)
				}
			}
		}()
	}
	return <-failed
}

// TestToldAndKilled checks that reported changes survive a kill at any moment. Only root can read
// the log.
func TestToldAndKilled(t *testing.T) {
	for _, after := range []int{1, 10, 100, 1000} {
		path := filepath.Join(t.TempDir(), "state.db")
		cmd := child(t, "tell", path)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		told := map[string]uint64{}
		lines := bufio.NewScanner(out)
		for n := 0; lines.Scan(); n++ {
			var id string
			var seq uint64
			if _, err := fmt.Sscan(lines.Text(), &id, &seq); err != nil {
				t.Fatal(err)
			}
			if told[id] = seq; n == after {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := cmd.Wait(); err == nil {
			t.Error("it was not killed")
		}
		st, err := os.Stat(strings.TrimSuffix(path, ".db") + ".log")
		if err != nil || st.Mode() != 0o600 {
			t.Errorf("the log: %v, %v", st, err)
		}
		db, err := statedb.Open(path, statedb.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for id, seq := range told {
			if r, _ := db.Volume(id); r.Node.Seq < seq {
				err = errors.Join(err, fmt.Errorf("after %d: %s has %d, and %d was told", after, id, r.Node.Seq, seq))
			}
		}
		if err := errors.Join(err, db.Close()); err != nil {
			t.Error(err)
		}
	}
}
