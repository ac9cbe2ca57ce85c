package statedb_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestGroupCommit checks that all changes that arrive during a commit share the next commit. A
// refused change must not make the others fail.
func TestGroupCommit(t *testing.T) {
	const many = 100
	g := newGate()
	db, _ := fresh(t, statedb.Options{Tap: g.tap})
	results := make(chan error, many+2)
	send := func(fn func(*statedb.Tx) error) {
		go func() { results <- db.Update(context.Background(), fn) }()
	}
	send(put(record("first")))
	<-g.arrived
	// The writer is in its first commit, so all further changes must wait.
	var queued sync.WaitGroup
	queued.Add(many + 1)
	enter := func(fn func(*statedb.Tx) error) func(*statedb.Tx) error {
		return func(tx *statedb.Tx) error { queued.Done(); return fn(tx) }
	}
	for i := range many {
		send(enter(put(record(fmt.Sprintf("v%d", i)))))
	}
	send(enter(func(tx *statedb.Tx) error {
		tx.PutVolume(record("refused"))
		tx.DeleteVolume("first")
		return errRefused
	}))
	waitQueued(t, db, many+1)
	g.pass <- struct{}{}
	queued.Wait() // now all changes run together before the second commit
	close(g.pass)
	refused := 0
	for range many + 2 {
		switch err := <-results; {
		case errors.Is(err, errRefused):
			refused++
		case err != nil:
			t.Error(err)
		}
	}
	if refused != 1 {
		t.Errorf("%d changes were refused, want 1", refused)
	}
	if n := db.Commits(); n != 2 {
		t.Errorf("%d changes took %d commits, want 2", many+1, n)
	}
	if n := len(db.Volumes()); n != many+1 {
		t.Errorf("%d volumes are there, want %d", n, many+1)
	}
	for id, want := range map[string]bool{"first": true, "refused": false} {
		if _, ok := db.Volume(id); ok != want {
			t.Errorf("volume %q is there: %t, want %t", id, ok, want)
		}
	}
}

// waitQueued waits until n changes are in the writer's queue.
func waitQueued(t *testing.T, db *statedb.DB, n int) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for db.Queued() < n {
		if time.Now().After(deadline) {
			t.Fatalf("only %d changes are queued, want %d", db.Queued(), n)
		}
		select {
		case <-time.After(time.Millisecond):
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		}
	}
}

// TestConcurrentWriters checks that many writers share commits, although no commit waits for more
// writers.
func TestConcurrentWriters(t *testing.T) {
	const writers, each = 32, 50
	db, path := fresh(t, statedb.Options{})
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				if err := db.Update(t.Context(), put(record(fmt.Sprintf("v%d-%d", w, i), "a"))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := db.Commits(); n > writers*each/2 {
		t.Errorf("%d changes took %d commits", writers*each, n)
	}
	if got := ids(t, copied(t, path)); len(got) != writers*each {
		t.Errorf("%d of %d volumes are on disk", len(got), writers*each)
	}
}

// TestChangesSeeEachOther checks that a change sees the earlier changes of the same commit.
func TestChangesSeeEachOther(t *testing.T) {
	db, _ := fresh(t, statedb.Options{})
	const n = 200
	do(t, db.Update, put(record("v")))
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			err := db.Update(t.Context(), func(tx *statedb.Tx) error {
				r, ok := tx.Volume("v")
				if !ok {
					return errors.New("the volume is not there")
				}
				r.Node.Seq++
				tx.PutVolume(r)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if r, _ := db.Volume("v"); r.Node.Seq != n || r.Generation != n+1 {
		t.Errorf("%d changes made %d, generation %d", n, r.Node.Seq, r.Generation)
	}
}

// TestReadersSeeCommitted checks that a change is invisible before its commit.
func TestReadersSeeCommitted(t *testing.T) {
	g := newGate()
	db, _ := fresh(t, statedb.Options{Tap: g.tap})
	done := make(chan error, 1)
	go func() { done <- db.Update(context.Background(), put(record("v"))) }()
	<-g.arrived
	if _, ok := db.Volume("v"); ok {
		t.Error("a volume is seen before its commit")
	}
	close(g.pass)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, ok := db.Volume("v"); !ok {
		t.Error("the volume is not seen after its commit")
	}
}

// TestSaveWithNext checks that the change of a save is in memory at once, and that the next commit
// writes it.
func TestSaveWithNext(t *testing.T) {
	db, path := fresh(t, statedb.Options{})
	do(t, db.Update, put(record("v")))
	before := db.Commits()
	r, _ := db.Volume("v")
	r.Node.Staged = volume.Present
	do(t, saveNext(db), put(r))
	if got, _ := db.Volume("v"); got.Node.Staged != volume.Present {
		t.Error("the save is not in memory")
	}
	if n := db.Commits(); n != before {
		t.Errorf("a save made %d commits", n-before)
	}
	lost := open(t, copied(t, path), statedb.Options{})
	if got, _ := lost.Volume("v"); got.Node.Staged != volume.Absent {
		t.Error("a save reached the disk by itself")
	}
	do(t, db.Update, put(record("other")))
	kept := open(t, copied(t, path), statedb.Options{})
	if got, _ := kept.Volume("v"); got.Node.Staged != volume.Present {
		t.Error("a save did not ride with the next commit")
	}
}

// TestNothingToCommit checks that an update without a change causes no commit.
func TestNothingToCommit(t *testing.T) {
	db, _ := fresh(t, statedb.Options{})
	do(t, db.Update, func(*statedb.Tx) error { return nil })
	if n := db.Commits(); n != 0 {
		t.Errorf("it took %d commits", n)
	}
}

// TestClose checks that Close commits changes that are only in memory. After Close, the database
// must refuse all changes.
func TestClose(t *testing.T) {
	db, path := fresh(t, statedb.Options{})
	do(t, saveNext(db), put(record("v")))
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(context.Context, func(*statedb.Tx) error) error{
		"Update": db.Update, "Happened": db.Happened, "Save": saveNext(db),
	} {
		if err := change(t.Context(), put(record("late"))); !errors.Is(err, statedb.ErrClosed) {
			t.Errorf("%s after Close: %v", name, err)
		}
	}
	if err := saveVolume(t.Context(), db, "v", func(r volume.Record) (volume.Record, volume.Saving) { return r, volume.SaveWithNext }); !errors.Is(err, statedb.ErrClosed) {
		t.Errorf("Save of a volume after Close: %v", err)
	}
	if got := ids(t, copied(t, path)); !got["v"] || got["late"] {
		t.Errorf("on disk are %v, want v", got)
	}
}

// TestCloseUnderLoad closes a database under load. Every change must either be on disk or have been
// refused.
func TestCloseUnderLoad(t *testing.T) {
	db, path := fresh(t, statedb.Options{})
	var mu sync.Mutex
	acked := map[string]bool{}
	var wg sync.WaitGroup
	begun := make(chan struct{}, 64)
	for w := range 8 {
		wg.Go(func() {
			for i := 0; ; i++ {
				id := fmt.Sprintf("v%d-%d", w, i)
				err := db.Update(context.Background(), put(record(id)))
				if errors.Is(err, statedb.ErrClosed) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				acked[id] = true
				mu.Unlock()
				select {
				case begun <- struct{}{}:
				default:
				}
			}
		})
	}
	for range 32 {
		<-begun
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
	got := ids(t, copied(t, path))
	for id := range acked {
		if !got[id] {
			t.Errorf("%s was acknowledged and is not on disk", id)
		}
	}
}

func TestCancelledChange(t *testing.T) {
	g := newGate()
	db, _ := fresh(t, statedb.Options{Tap: g.tap})
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { done <- db.Update(ctx, put(record("v"))) }()
	<-g.arrived
	cancel()
	// The writer already has the change, so Update must return its result.
	close(g.pass)
	if err := <-done; err != nil {
		t.Errorf("a change that was committed says %v", err)
	}
	if _, ok := db.Volume("v"); !ok {
		t.Error("it is not there")
	}
}

// TestVolumeOf checks that VolumeOf finds the one id of a storage volume, also inside a
// transaction.
func TestVolumeOf(t *testing.T) {
	db, path := fresh(t, statedb.Options{})
	do(t, db.Update, put(record("a")))
	of := func(tx *statedb.Tx, external, want string) {
		t.Helper()
		if id, ok := tx.VolumeOf("d", external); id != want || ok != (want != "") {
			t.Errorf("storage volume %q is %q, want %q", external, id, want)
		}
	}
	do(t, db.Update, func(tx *statedb.Tx) error {
		of(tx, "ext-a", "a")
		of(tx, "", "")
		if _, ok := tx.VolumeOf("other", "ext-a"); ok {
			t.Error("it is found under another driver")
		}
		r := record("a")
		r.Volume.ExternalID = "moved"
		tx.PutVolume(r)
		of(tx, "ext-a", "")
		of(tx, "moved", "a")
		tx.DeleteVolume("a")
		of(tx, "moved", "")
		tx.PutVolume(record("b"))
		of(tx, "ext-b", "b")
		return nil
	})
	do(t, db.Update, func(tx *statedb.Tx) error {
		of(tx, "ext-a", "")
		of(tx, "moved", "")
		of(tx, "ext-b", "b")
		return nil
	})
	again := open(t, copied(t, path), statedb.Options{})
	do(t, again.Update, func(tx *statedb.Tx) error { of(tx, "ext-b", "b"); return nil })
}

// TestVolumeOfInOneCommit checks that VolumeOf also sees the other changes of the same commit. One
// change can remove a value that an earlier change stored.
func TestVolumeOfInOneCommit(t *testing.T) {
	g := newGate()
	db, _ := fresh(t, statedb.Options{Tap: g.tap})
	done := make(chan error, 3)
	send := func(fn func(*statedb.Tx) error) {
		before := db.Queued()
		go func() { done <- db.Update(context.Background(), fn) }()
		waitQueued(t, db, before+1)
	}
	go func() { done <- db.Update(context.Background(), put(record("first"))) }()
	<-g.arrived
	send(put(record("a")))
	send(func(tx *statedb.Tx) error {
		tx.DeleteVolume("a")
		if id, ok := tx.VolumeOf("d", "ext-a"); ok {
			t.Errorf("the storage volume of a deleted volume is found as %q", id)
		}
		r := record("b")
		r.Volume.ExternalID = "ext-a"
		tx.PutVolume(r)
		if id, _ := tx.VolumeOf("d", "ext-a"); id != "b" {
			t.Errorf("the storage volume is %q, want b", id)
		}
		return nil
	})
	close(g.pass)
	for range 3 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if n := db.Commits(); n != 2 {
		t.Errorf("%d commits, want 2", n)
	}
}

// TestSaveDuringCommit checks that a save of one volume does not wait for a running commit of other
// volumes, and survives a failure of this commit. A save must wait for a commit of the same volume.
func TestSaveDuringCommit(t *testing.T) {
	reached, goOn := make(chan struct{}), make(chan struct{})
	var hold atomic.Bool
	db, path := fresh(t, statedb.Options{Tap: func(p statedb.Point) {
		if p == statedb.BeforeCommit && hold.Load() {
			reached <- struct{}{}
			<-goOn
		}
	}})
	do(t, db.Update, put(record("a")))
	do(t, db.Update, put(record("b")))
	staged := func(r volume.Record) (volume.Record, volume.Saving) {
		r.Node.Staged = volume.Present
		return r, volume.SaveWithNext
	}
	hold.Store(true)
	release := sync.OnceFunc(func() { hold.Store(false); close(goOn) })
	defer release()
	committed := make(chan error, 1)
	go func() {
		committed <- db.Update(t.Context(), func(tx *statedb.Tx) error {
			r, _ := tx.Volume("a")
			r.Node.NodeID = "n"
			tx.PutVolume(r)
			return nil
		})
	}()
	<-reached
	if err := saveVolume(t.Context(), db, "b", staged); err != nil {
		t.Fatal(err) // if the save waited for the commit, the test would hang here
	}
	if r, _ := db.Volume("b"); r.Node.Staged != volume.Present {
		t.Error("the save is not in memory")
	}
	same := make(chan error, 1)
	go func() { same <- saveVolume(t.Context(), db, "a", staged) }()
	for db.Queued() == 0 {
		select {
		case err := <-same:
			t.Fatalf("a save went past a commit of its own volume: %v", err)
		default:
			runtime.Gosched()
		}
	}
	release()
	if err := errors.Join(<-committed, <-same); err != nil {
		t.Fatal(err)
	}
	if r, _ := db.Volume("a"); r.Node.Staged != volume.Present || r.Node.NodeID != "n" {
		t.Errorf("one of two changes was lost: %+v", r.Node)
	}
	do(t, db.Update, put(record("other")))
	kept := open(t, copied(t, path), statedb.Options{})
	for _, id := range []string{"a", "b"} {
		if r, _ := kept.Volume(id); r.Node.Staged != volume.Present {
			t.Errorf("the save of %q did not ride with the next commit", id)
		}
	}
	if err := saveVolume(t.Context(), db, "gone", staged); err != nil {
		t.Errorf("a save of a volume that is gone: %v", err)
	}
	if _, ok := db.Volume("gone"); ok {
		t.Error("a save made a volume")
	}
}
