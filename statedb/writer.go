package statedb

import (
	"context"
	"fmt"
	"time"

	"go.etcd.io/bbolt"
)

// mode tells when a mutation must be on disk, and how a failed commit affects it.
type mode int

const (
	// intent must be on disk. If the commit fails, the mutation is dropped.
	intent mode = iota
	// effect has already happened. If the commit fails, memory keeps it and a later commit writes
	// it. The caller still waits for the first commit.
	effect
	// checkpoint is like effect, but it neither waits for a commit nor causes one.
	checkpoint
)

type request struct {
	mode mode
	fn   func(*Tx) error
	// log, if set, logs its part of the changes. It returns false if the log is needed and failed.
	log  func(changes) bool
	done chan error // buffered
}

// Update runs a mutation and waits until it is on disk. If fn or the commit fails, nothing changes.
// fn may run more than once and must not block.
func (db *DB) Update(ctx context.Context, fn func(*Tx) error) error {
	return db.send(ctx, intent, fn)
}

// Happened records an event that has taken place, and waits until it is on disk. If the commit
// fails, memory still keeps the change, and the next commit writes it.
func (db *DB) Happened(ctx context.Context, fn func(*Tx) error) error {
	return db.send(ctx, effect, fn)
}

// Checkpoint records an event that has taken place, in memory. The next commit writes it to disk,
// whichever request causes that commit.
func (db *DB) Checkpoint(ctx context.Context, fn func(*Tx) error) error {
	return db.send(ctx, checkpoint, fn)
}

func (db *DB) send(ctx context.Context, m mode, fn func(*Tx) error) error {
	return db.request(ctx, &request{mode: m, fn: fn, done: make(chan error, 1)})
}

func (db *DB) request(ctx context.Context, r *request) error {
	select {
	case <-db.quit:
		return ErrClosed
	default:
	}

	select {
	case db.queue <- r:
	case <-db.quit:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}

	// A queued request will be decided. To return earlier would hide the outcome from the caller.
	select {
	case err := <-r.done:
		return err
	case <-db.done:
		select {
		case err := <-r.done:
			return err
		default:
			return ErrClosed
		}
	}
}

// write is the main loop of the writer goroutine.
func (db *DB) write() {
	defer close(db.done)
	tend := time.NewTicker(tendEvery)
	defer tend.Stop()
	var begun <-chan time.Time

	for {
		var retry <-chan time.Time
		if db.Fault() != nil && db.unsaved() {
			retry = time.After(flushAgain)
		}
		db.planCopy()
		select {
		case <-db.copies.due:
			db.startCopy()
		case err := <-db.copies.ended:
			db.copied(err)
		case <-retry:
			db.flush()
		case r := <-db.queue:
			db.batch(db.drain([]*request{r}))
		case <-db.begin:
			switch {
			case db.log.full():
				db.flush()
			case begun == nil:
				begun = time.After(beginWithin)
			}
		case <-tend.C:
			db.tend()
		case <-db.tending:
			db.tend()
		case <-begun:
			begun = nil
			db.flush() // does nothing if another commit has written the changes
		case <-db.quit:
			db.batch(db.drain(nil))
			db.end()
			if db.copies.ended != nil {
				db.copied(<-db.copies.ended)
			}
			return
		}
	}
}

// drain returns batch with all queued requests. It does not wait for more.
func (db *DB) drain(batch []*request) []*request {
	for {
		select {
		case r := <-db.queue:
			batch = append(batch, r)
		default:
			return batch
		}
	}
}

// batch runs mutations and commits them together.
func (db *DB) batch(reqs []*request) {
	reqs = db.admit(reqs)
	db.turn.Lock()
	all, errs := db.run(reqs, func(mode) bool { return true })
	commit := false
	for i, r := range reqs {
		commit = commit || errs[i] == nil && r.mode != checkpoint
	}

	// A change that is refused when the commit fails must not be logged before the commit.
	commit = commit || !logAll(reqs, errs, all)
	var err error
	if commit {
		err = db.commit(all)
	} else {
		db.dirty.add(all)
	}
	if err != nil {
		// Drop the intents. Run the effects and checkpoints again without them, and keep these.
		all, _ = db.run(reqs, func(m mode) bool { return m != intent })
		db.dirty.add(all)

		for i, r := range reqs {
			if errs[i] == nil && (r.mode != checkpoint || r.log != nil && !r.log(all)) {
				errs[i] = db.unwritten(err)
			}
		}
	}

	db.publish(all)
	db.turn.Unlock()
	for i, r := range reqs {
		r.done <- errs[i]
	}
}

// logAll logs the changes of those requests that need the log. It returns false at the first
// failure.
func logAll(reqs []*request, errs []error, all changes) bool {
	for i, r := range reqs {
		if r.log != nil && errs[i] == nil && !r.log(all) {
			return false
		}
	}
	return true
}

// run runs the mutations whose mode pick accepts, each on top of the earlier ones.
func (db *DB) run(reqs []*request, pick func(mode) bool) (changes, []error) {
	all, errs := newChanges(), make([]error, len(reqs))
	for i, r := range reqs {
		if !pick(r.mode) {
			continue
		}
		tx := &Tx{base: &db.mem, past: all, own: newChanges()}
		if errs[i] = r.fn(tx); errs[i] == nil {
			all.add(tx.own)
		}
	}

	return all, errs
}

// publish makes changes visible to readers.
func (db *DB) publish(c changes) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.mem.apply(c)
}

// beginWithin is the longest time that a change in the log waits for another commit to join.
const beginWithin = 50 * time.Millisecond

// flushAgain is the delay from a failed commit to its retry, unless a request causes a commit
// earlier.
const flushAgain = 5 * time.Second

// unsaved reports whether memory has changes that the file may lack.
func (db *DB) unsaved() bool {
	db.turn.Lock()
	defer db.turn.Unlock()
	return !db.dirty.empty()
}

// flush commits changes that are only in memory. It drops the error, because after a failure the
// agent finds the unsaved state again by looking at the host. That only costs work.
func (db *DB) flush() {
	db.turn.Lock()
	defer db.turn.Unlock()
	if err := db.commit(newChanges()); err != nil {
		return
	}
}

// end makes the last commit.
func (db *DB) end() {
	db.turn.Lock()
	db.ended = true
	db.turn.Unlock()
	db.tend()
	db.flush()
	db.turn.Lock()
	defer db.turn.Unlock()
	if db.dirty.empty() {
		db.log.committed(0)
	}
}

// commit writes c and all changes that are still unsaved. The caller holds turn, and commit
// releases it while it writes. During that time only checkpoints of other volumes can be made. The
// caller applies c to memory after commit returns, or not at all. If the log is full, commit keeps
// turn, so that no new line keeps the log from being emptied.
func (db *DB) commit(c changes) error {
	whole := db.dirty
	whole.add(c)
	if whole.empty() {
		return nil
	}

	db.dirty, db.busy = newChanges(), c
	full := db.log.full()
	if !full {
		db.turn.Unlock()
	}

	err := db.writeOut(whole)
	if !full {
		db.turn.Lock()
	}

	db.busy = changes{}
	switch {
	case err != nil:
		db.doubt(whole)
	case db.dirty.empty():
		most := int64(logMost)
		if db.recalled {
			most, db.recalled = 0, false
		}
		db.log.committed(most)
	}

	return err
}

// writeOut writes changes in one transaction.
func (db *DB) writeOut(whole changes) error {
	db.at(BeforeCommit)
	err := db.keepPlace()
	_ = db.log.tend() // an error is harmless, because this commit writes the logged changes
	if err == nil {
		err = db.update(func(tx *bbolt.Tx) error { return db.save(tx, whole) })
	}

	db.committed(err)
	if err != nil {
		return err
	}
	db.copies.stale = true
	db.at(AfterCommit)
	for id, r := range whole.volumes {
		if r == nil {
			delete(db.disk, id)
		} else {
			db.disk[id] = r.Claims
		}
	}

	return nil
}

// update runs a transaction. After a panic in a transaction it starts no other.
func (db *DB) update(fn func(*bbolt.Tx) error) (err error) {
	if db.broken != nil {
		return db.broken
	}
	defer guard(func(p any) {
		db.broken = fmt.Errorf("it is damaged: %v", p)
		err = db.broken
	})()

	return db.bolt.Update(fn)
}

// committed records the result of a commit.
func (db *DB) committed(err error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.fault = err; err == nil {
		db.commits++
	} else {
		db.failures++
	}
}

func (db *DB) at(p Point) {
	if db.tap != nil {
		db.tap(p)
	}
}
