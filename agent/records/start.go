package records

import (
	"context"

	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/volume"
)

// Reload stores the current node, and adapts every record to the way in which the previous agent
// process ended. It uses one commit. From then on, the database says that this agent has not shut
// down properly, until MarkStopped records a proper shutdown.
func (s Store) Reload(ctx context.Context, node statedb.Node, after volume.Stop) error {
	node.Clean = false
	save := s.Happened
	if s.Node().ID == "" {
		// The first start has no older state to fall back on, so this write must succeed.
		save = s.Update
	}

	return save(ctx, func(tx *statedb.Tx) error {
		for _, r := range tx.Volumes() {
			_, blocked := statedb.Leftovers.Get(tx, statedb.StorageKey(r.Volume.Driver, r.Volume.ExternalID))
			if now, changed := volume.Loaded(r, after, blocked); changed {
				tx.PutVolume(now)
			}
		}

		for _, d := range statedb.Leftovers.All(tx) {
			r, _ := volume.Loaded(d.Whole(), after, false)
			if after.Boot() {
				r = volume.NextBoot(r)
			}
			statedb.Leftovers.Put(tx, statedb.LeftoverOf(r, d.Since))
		}

		if node != s.Node() {
			tx.PutNode(node)
		}

		return nil
	})
}

// MarkStopped records that the agent shuts down properly and has stored the result of every step.
func (s Store) MarkStopped(ctx context.Context) error {
	return s.Update(ctx, func(tx *statedb.Tx) error {
		node := tx.Node()
		node.Clean = true
		tx.PutNode(node)
		return nil
	})
}

// Living returns records as the API shows them. A claim whose owner has ended appears as detaching,
// even before the agent has stored the detach.
type Living struct {
	Store
	Owners volume.Owners
}

// Volume returns a volume's record.
func (l Living) Volume(id string) (volume.Record, bool) {
	r, ok := l.Store.Volume(id)
	return volume.Past(r, l.Owners), ok
}

// Volumes returns all records.
func (l Living) Volumes() []volume.Record {
	rs := l.Store.Volumes()
	for i := range rs {
		rs[i] = volume.Past(rs[i], l.Owners)
	}
	return rs
}
