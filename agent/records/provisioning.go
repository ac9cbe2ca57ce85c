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

// Provisioning adapts the state database for provision.
type Provisioning struct{ Store }

// Update makes one change. Either all of it is on disk, or none.
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

// Tx is a transaction that remembers the old records of changed volumes.
type Tx struct {
	*statedb.Tx
	was map[string]volume.Record // the old records of changed volumes
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

// TestOf returns the plugin whose test uses this storage volume, or has left something on it.
func (t Tx) TestOf(driver, external string) (pluginID string, ok bool) {
	for _, p := range t.Plugins() {
		if p.Scratch != nil && p.Info.Driver == driver && p.Scratch.Has(external) {
			return p.Of(), true
		}
	}

	return "", false
}

// Leftovers returns all leftover records in the form of volume records.
func (t Tx) Leftovers() []volume.Record {
	return Whole(t.Tx.Debts())
}

// Leftover returns a leftover record in the form of a volume record.
func (t Tx) Leftover(driver, external string) (volume.Record, bool) {
	d, ok := t.Tx.Debt(driver, external)
	return d.Whole(), ok
}

// PutLeftover stores a leftover record. An existing one keeps its time.
func (t Tx) PutLeftover(r volume.Record, since time.Time) {
	if d, ok := t.Tx.Debt(r.Volume.Driver, r.Volume.ExternalID); ok {
		since = d.Since
	}
	t.Tx.PutDebt(statedb.Debt{Record: r, Claims: r.Ordered(), Since: since})
}
