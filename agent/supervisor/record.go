package supervisor

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/volagent/volagent/volmgr/plugin"
)

// record is the stored record of a part.
type record struct {
	store Store
	turn  chan struct{} // a token: the goroutine that has it stores the record

	mu     sync.Mutex
	now    plugin.Record
	stored []byte // the last stored form of now
}

// newRecord returns the record of a part. was is the stored record, or the zero value if there is
// none.
func newRecord(store Store, id, slot string, was plugin.Record) *record {
	r := &record{store: store, turn: make(chan struct{}, 1), now: was}
	if was.ID != "" {
		r.stored, _ = json.Marshal(was) // if Marshal fails, the record is stored once more than necessary
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

// edit changes the record in memory only.
func (r *record) edit(edit func(*plugin.Record)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	edit(&r.now)
}

// save applies edit to the record, and stores the record if it differs from the stored one.
func (r *record) save(ctx context.Context, edit func(*plugin.Record)) error {
	r.turn <- struct{}{} // the token keeps the order: a later record is stored after an earlier one
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

// forgotten returns the reduced record that is kept after the part was removed.
func forgotten(rec plugin.Record) plugin.Record {
	rec.Process, rec.Definition, rec.Stopped = plugin.Process{}, nil, false
	if rec.Plugin != "" {
		rec.Info = plugin.Info{}
	}
	return rec
}
