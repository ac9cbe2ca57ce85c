package statedb

import (
	"context"

	"github.com/volagent/volagent/volmgr/volume"
)

// SaveVolume is Checkpoint for one volume's record, with no wait for a commit in
// hand unless that is about the same volume. fn, which must be pure, says how soon
// the record has to be on disk as well; one that is not to wait is logged, or
// committed, before anybody can read it. A volume that is gone stays gone. Memory
// keeps the record whatever the error.
func (db *DB) SaveVolume(ctx context.Context, id string, fn func(volume.Record) (volume.Record, volume.Saving)) error {
	saving := volume.SaveWithNext
	put := func(tx *Tx) error {
		r, ok := tx.Volume(id)
		if !ok {
			saving = volume.SaveWithNext
			return nil
		}
		r, saving = fn(r)
		tx.PutVolume(r)
		return nil
	}
	logged := func(c changes) bool {
		r := c.volumes[id]
		return saving == volume.SaveWithNext || r == nil || db.log.add(*r) == nil
	}
	done, err := db.checkpointNow(id, put, logged)
	if !done && err == nil {
		err = db.request(ctx, &request{mode: checkpoint, fn: put, log: logged, done: make(chan error, 1)})
	}
	switch {
	case err != nil:
		return err
	case saving == volume.SaveAtOnce:
		db.Begin()
	case saving == volume.SaveFirst:
		return db.Sync(ctx)
	}
	return nil
}

// checkpointNow makes a checkpoint beside a commit in hand. It does nothing if that
// is about the same volume, or if there is no log for what has to be in it.
func (db *DB) checkpointNow(id string, put func(*Tx) error, logged func(changes) bool) (done bool, err error) {
	db.turn.Lock()
	defer db.turn.Unlock()
	if db.ended {
		return false, ErrClosed
	}
	if _, busy := db.busy.volumes[id]; busy {
		return false, nil
	}
	tx := &Tx{base: &db.mem, past: newChanges(), own: newChanges()}
	if err := put(tx); err != nil {
		return false, err
	}
	if !logged(tx.own) {
		return false, nil
	}
	db.publish(tx.own)
	db.dirty.add(tx.own)
	return true, nil
}

// Begin has what is in memory committed soon, and waits for nothing. A commit
// that fails is tried again.
func (db *DB) Begin() {
	select {
	case db.begin <- struct{}{}:
	default: // the writer has not come to the last one yet
	}
}

// Sync waits until all that was put into memory before is on disk.
func (db *DB) Sync(ctx context.Context) error {
	return db.send(ctx, effect, func(*Tx) error { return nil })
}
