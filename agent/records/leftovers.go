package records

import (
	"context"
	"fmt"

	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/volume"
)

// WithLeftovers adapts the state database for package reconcile. The queue treats a leftover record
// like a volume, with a key of its own.
type WithLeftovers struct{ Store }

// Volume returns a volume's record or a leftover record.
func (s WithLeftovers) Volume(key string) (volume.Record, bool) {
	if driver, external, ok := volume.ParseLeftoverKey(key); ok {
		d, ok := statedb.Leftovers.Get(s, statedb.StorageKey(driver, external))
		return d.Whole(), ok
	}

	return s.Store.Volume(key)
}

// Volumes returns the records of all volumes, and all leftover records.
func (s WithLeftovers) Volumes() []volume.Record {
	return append(s.Store.Volumes(), Leftovers(s)...)
}

// Save is like Store.Save, but also accepts the key of a leftover record.
func (s WithLeftovers) Save(ctx context.Context, key string, fn func(volume.Record) (volume.Record, volume.Saving)) error {
	driver, external, ok := volume.ParseLeftoverKey(key)
	if !ok {
		return s.Store.Save(ctx, key, fn)
	}

	return s.DB.Save(ctx, func(tx *statedb.Tx) (saving volume.Saving) {
		changeLeftover(tx, driver, external, func(r volume.Record) volume.Record {
			r, saving = fn(r)
			return r
		})
		return saving
	})
}

// Intend is like Store.Intend, but also accepts the key of a leftover record.
func (s WithLeftovers) Intend(ctx context.Context, key string, fn func(volume.Record) volume.Record) error {
	driver, external, ok := volume.ParseLeftoverKey(key)
	if !ok {
		return s.Store.Intend(ctx, key, fn)
	}
	return s.Update(ctx, func(tx *statedb.Tx) error {
		changeLeftover(tx, driver, external, fn)
		return nil
	})
}

// changeLeftover changes a leftover record, if it still exists.
func changeLeftover(tx *statedb.Tx, driver, external string, fn func(volume.Record) volume.Record) {
	if d, ok := statedb.Leftovers.Get(tx, statedb.StorageKey(driver, external)); ok {
		statedb.Leftovers.Put(tx, statedb.LeftoverOf(fn(d.Whole()), d.Since))
	}
}

// Settle deletes a leftover record whose leftovers are all undone. It returns the id of the volume
// that waited for these leftovers, if there is one. The agent takes no step for that volume until
// the deletion is on disk. While the leftover record is on disk, the volume therefore has no mount.
// volume.Loaded relies on this.
func (s Store) Settle(ctx context.Context, r volume.Record) (waiting string, err error) {
	driver, external := r.Volume.Driver, r.Volume.ExternalID
	key := statedb.StorageKey(driver, external)
	err = s.Update(ctx, func(tx *statedb.Tx) error {
		if d, ok := statedb.Leftovers.Get(tx, key); ok && !d.Whole().Held() {
			statedb.Leftovers.Delete(tx, key)
		}
		waiting, _ = tx.VolumeOf(driver, external)
		return nil
	})

	return waiting, err
}

// PendingFor returns the text that the queue shows while a volume waits for leftovers of the same
// storage. It returns "" if there are no such leftovers.
func (s Store) PendingFor(v volume.Volume) string {
	if v.ExternalID == "" {
		return ""
	}

	d, ok := statedb.Leftovers.Get(s, statedb.StorageKey(v.Driver, v.ExternalID))
	if !ok {
		return ""
	}

	return fmt.Sprintf("plugin %q must first undo the leftovers of volume %q, which was deregistered by force", d.Record.Volume.PluginID, d.Record.Volume.ID)
}
