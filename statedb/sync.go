package statedb

import (
	"context"

	"github.com/volagent/volagent/volmgr/volume"
)

// SaveVolume stores one volume's record in memory, as Checkpoint does. It does not wait for a
// commit in progress, unless that commit is about the same volume. fn must be pure. It also returns
// how soon the record must be on disk. An urgent record is logged or committed before any reader
// can see it. If the volume was deleted, SaveVolume does not create it again. Memory keeps the
// record even if SaveVolume returns an error.
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

// checkpointNow makes a checkpoint during a commit. It does nothing and returns false if the commit
// is about the same volume, or if the change must be logged and cannot be.
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

// Begin requests a commit of the state in memory and does not wait. A failed commit is retried.
func (db *DB) Begin() {
	select {
	case db.begin <- struct{}{}:
	default: // an earlier request is still pending
	}
}

// Sync waits until all earlier changes in memory are on disk.
func (db *DB) Sync(ctx context.Context) error {
	return db.send(ctx, effect, func(*Tx) error { return nil })
}
