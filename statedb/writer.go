package statedb

import (
	"context"
	"fmt"
	"time"

	"go.etcd.io/bbolt"
)

// mode says what becomes of a mutation if its commit fails.
type mode int

const (
	// intent: on disk or not at all.
	intent mode = iota
	// effect: it has happened, so memory keeps it and the file gets it with a
	// later commit; the caller still waits for this one.
	effect
	// checkpoint: as effect, but it waits for no commit and causes none.
	checkpoint
)

type request struct {
	mode mode
	fn   func(*Tx) error
	// log, if set, logs what it made of the changes, and reports whether that went
	// well or need not be.
	log  func(changes) bool
	done chan error // buffered
}

// Update runs a mutation and waits until it is on disk. If fn or the commit
// fails nothing is changed. fn may run more than once and must not block.
func (db *DB) Update(ctx context.Context, fn func(*Tx) error) error {
	return db.send(ctx, intent, fn)
}

// Happened records something that has taken place and waits until it is on
// disk. If the commit fails memory has it all the same, and the next commit
// carries it.
func (db *DB) Happened(ctx context.Context, fn func(*Tx) error) error {
	return db.send(ctx, effect, fn)
}

// Checkpoint records something that has taken place in memory; it reaches the
// disk with the next commit, whoever makes it.
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
	// Once queued it will be decided; to leave now would hide the outcome.
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

// write is the writer goroutine.
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
			db.flush() // unless another commit took it along
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

// drain takes all that is queued, without waiting for more.
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
	// What is refused if the commit fails must not get into the log before it.
	commit = commit || !logAll(reqs, errs, all)
	var err error
	if commit {
		err = db.commit(all)
	} else {
		db.dirty.add(all)
	}
	if err != nil {
		// What was only wanted is dropped. What has happened is run once more
		// without it, and kept.
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

// logAll logs what has to be in the log of a batch.
func logAll(reqs []*request, errs []error, all changes) bool {
	for i, r := range reqs {
		if r.log != nil && errs[i] == nil && !r.log(all) {
			return false
		}
	}
	return true
}

// run runs the mutations that pick allows, each on top of those before it.
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

// beginWithin is how long what is in the log alone waits for a commit to ride with.
const beginWithin = 50 * time.Millisecond

// flushAgain is how long after a commit that failed the next one is tried, if
// nobody asks for one before.
const flushAgain = 5 * time.Second

// unsaved reports whether memory has what the file may not have.
func (db *DB) unsaved() bool {
	db.turn.Lock()
	defer db.turn.Unlock()
	return !db.dirty.empty()
}

// flush commits what is only in memory. A failure costs nothing but work,
// because what is unsaved is found again by looking.
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

// commit writes changes, and whatever was left unsaved before them. The turn is
// held, and given up meanwhile: only checkpoints of other volumes can be made
// then. Memory gets the changes after it returned, or not at all. Where the log has
// grown too large nothing can be made meanwhile, so that it can be emptied.
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

// writeOut is one transaction.
func (db *DB) writeOut(whole changes) error {
	db.at(BeforeCommit)
	err := db.keepPlace()
	_ = db.log.tend() // what it has is about to be committed
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

// update runs a transaction. After a panic in one no other is begun.
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

// committed notes how a commit went.
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
