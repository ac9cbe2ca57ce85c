package supervisor

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/volagent/volagent/volmgr/plugin"
)

// record is the stored record of a part of a plugin.
type record struct {
	store Store
	turn  chan struct{} // a semaphore; the goroutine that holds it stores the record

	mu     sync.Mutex
	now    plugin.Record
	stored []byte // the record as it was last stored
}

// newRecord returns the record of a part. The argument was is the record that was stored before, or
// the zero value.
func newRecord(store Store, id, slot string, was plugin.Record) *record {
	r := &record{store: store, turn: make(chan struct{}, 1), now: was}
	if was.ID != "" {
		// ignore an error of Marshal, which only causes one unnecessary save
		r.stored, _ = json.Marshal(was)
	}

	if r.now.ID = slot; slot != id {
		r.now.Plugin = id
	}

	return r
}

// get returns a copy of the record.
func (r *record) get() plugin.Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

// edit changes the record, but only in memory.
func (r *record) edit(edit func(*plugin.Record)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	edit(&r.now)
}

// save applies edit to the record, and stores the record if it differs from the stored one.
func (r *record) save(ctx context.Context, edit func(*plugin.Record)) error {
	// only one save at a time, so that a newer record is never overwritten by an older one
	r.turn <- struct{}{}
	defer func() { <-r.turn }()

	r.mu.Lock()
	edit(&r.now)
	rec, stored := r.now, r.stored
	r.mu.Unlock()

	data, err := json.Marshal(rec)
	if err != nil {
		return fmt.Errorf("cannot encode the plugin's record: %w", err)
	}
	if string(data) == string(stored) {
		return nil
	}
	if err := r.store.SavePlugin(ctx, rec); err != nil {
		return err
	}

	r.mu.Lock()
	r.stored = data
	r.mu.Unlock()

	return nil
}

// forgotten returns the few data of a record that are kept after the part was removed.
func forgotten(rec plugin.Record) plugin.Record {
	rec.Process, rec.Definition, rec.Stopped = plugin.Process{}, nil, false
	if rec.Plugin != "" {
		rec.Info = plugin.Info{}
	}
	return rec
}
