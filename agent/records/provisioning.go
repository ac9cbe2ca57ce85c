package records

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/volagent/volagent/agent/provision"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/volume"
)

// Provisioning adapts the state database for package provision.
type Provisioning struct{ Store }

// Snapshots returns the intents of those snapshots whose result the agent does not know yet.
func (s Provisioning) Snapshots() []volume.SnapshotIntent { return statedb.Snapshots.All(s) }

// SnapshotNames returns the names of snapshots whose ids are known.
func (s Provisioning) SnapshotNames() []volume.SnapshotName { return statedb.SnapshotNames.All(s) }

// Update runs fn in one transaction. After an error, no part of the change is stored.
func (s Provisioning) Update(ctx context.Context, fn func(provision.Tx) error) error {
	var was map[string]volume.Record
	err := s.DB.Update(ctx, func(tx *statedb.Tx) error {
		was = map[string]volume.Record{}
		return fn(Tx{tx, was})
	})
	if err == nil && s.Notes != nil {
		for _, r := range was {
			s.Notes.Update(r, slices.Collect(maps.Keys(r.Claims)))
		}
	}

	return err
}

// Tx is a transaction that remembers the previous records of changed volumes.
type Tx struct {
	*statedb.Tx
	was map[string]volume.Record // the records of the changed volumes before the change
}

// PutVolume stores a record.
func (t Tx) PutVolume(r volume.Record) {
	t.before(r.Volume.ID)
	t.Tx.PutVolume(r)
}

// DeleteVolume deletes a record with its claims.
func (t Tx) DeleteVolume(id string) {
	t.before(id)
	t.Tx.DeleteVolume(id)
}

func (t Tx) before(id string) {
	if r, ok := t.Volume(id); ok {
		if _, twice := t.was[id]; !twice {
			t.was[id] = r
		}
	}
}

// TestOf returns the plugin whose test uses the given storage volume or has left it behind.
func (t Tx) TestOf(driver, external string) (pluginID string, ok bool) {
	for _, p := range statedb.Plugins.All(t) {
		if p.Scratch != nil && p.Info.Driver == driver && p.Scratch.Has(external) {
			return p.Of(), true
		}
	}

	return "", false
}

// Leftovers returns all leftover records in the form of volume records.
func (t Tx) Leftovers() []volume.Record {
	return Leftovers(t)
}

// Leftover returns a leftover record in the form of a volume record.
func (t Tx) Leftover(driver, external string) (volume.Record, bool) {
	d, ok := statedb.Leftovers.Get(t, statedb.StorageKey(driver, external))
	return d.Whole(), ok
}

// PutLeftover stores a leftover record. If the record exists already, it keeps its time.
func (t Tx) PutLeftover(r volume.Record, since time.Time) {
	if d, ok := statedb.Leftovers.Get(t, statedb.StorageKey(r.Volume.Driver, r.Volume.ExternalID)); ok {
		since = d.Since
	}
	statedb.Leftovers.Put(t, statedb.LeftoverOf(r, since))
}

// DeleteLeftover deletes a leftover record.
func (t Tx) DeleteLeftover(driver, external string) {
	statedb.Leftovers.Delete(t, statedb.StorageKey(driver, external))
}

// Snapshot returns the intent of a snapshot whose result the agent does not know yet.
func (t Tx) Snapshot(key string) (volume.SnapshotIntent, bool) {
	return statedb.Snapshots.Get(t, key)
}

// PutSnapshot stores the intent of a snapshot.
func (t Tx) PutSnapshot(s volume.SnapshotIntent) { statedb.Snapshots.Put(t, s) }

// DeleteSnapshot deletes the intent of a snapshot.
func (t Tx) DeleteSnapshot(key string) { statedb.Snapshots.Delete(t, key) }

// SnapshotNames returns all names of snapshots.
func (t Tx) SnapshotNames() []volume.SnapshotName { return statedb.SnapshotNames.All(t) }

// PutSnapshotName stores the name of a snapshot.
func (t Tx) PutSnapshotName(n volume.SnapshotName) { statedb.SnapshotNames.Put(t, n) }

// DeleteSnapshotName deletes the name of a snapshot.
func (t Tx) DeleteSnapshotName(key string) { statedb.SnapshotNames.Delete(t, key) }
