package records

import (
	"context"

	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// Shared adapts the state database for package hold.
type Shared struct{ Store }

// Membership returns the stored membership of this host in a cluster.
func (s Shared) Membership() shared.Membership {
	all := statedb.Memberships.All(s)
	if len(all) == 0 {
		return shared.Membership{}
	}
	return all[0]
}

// PutMembership stores the membership, and waits until it is on disk.
func (s Shared) PutMembership(ctx context.Context, m shared.Membership) error {
	return s.Update(ctx, func(tx *statedb.Tx) error {
		statedb.Memberships.Put(tx, m)
		return nil
	})
}

// ChangeShared changes the record of a shared volume, or adds it. It refuses storage that another
// volume of this host uses.
// The key may also be that of a leftover record, which is then only changed.
func (s Shared) ChangeShared(ctx context.Context, id string, fn func(volume.Record, bool) (volume.Record, bool)) error {
	if driver, external, ok := volume.ParseLeftoverKey(id); ok {
		return s.Update(ctx, func(tx *statedb.Tx) error {
			changeLeftover(tx, driver, external, func(r volume.Record) volume.Record {
				r, _ = fn(r, true)
				return r
			})
			return nil
		})
	}

	var before, now volume.Record
	err := s.Update(ctx, func(tx *statedb.Tx) error {
		r, ok := tx.Volume(id)
		next, changed := fn(r, ok)
		before, now = r, next
		if !changed {
			now = r
			return nil
		}

		v := next.Volume
		if other, used := tx.VolumeOf(v.Driver, v.ExternalID); used && other != id {
			return volume.Errorf(volume.ErrRefused, "shared volume %q is the storage that this host uses as volume %q", id, other).
				WithRemedy(remedy.Of(remedy.ShowVolume, other))
		}

		tx.PutVolume(next)
		return nil
	})
	if err == nil && s.Notes != nil {
		s.Notes.Changed(before, now)
	}

	return err
}

// Leftovers returns all leftover records.
func (s Shared) Leftovers() []volume.Record { return Leftovers(s) }

// ForgetIdle deletes the record of a shared volume if this host does not use the volume.
func (s Shared) ForgetIdle(ctx context.Context, id string) error {
	if r, ok := s.Volume(id); !ok || !r.Idle() {
		return nil
	}

	return s.Update(ctx, func(tx *statedb.Tx) error {
		if r, ok := tx.Volume(id); ok && r.Idle() {
			tx.DeleteVolume(id)
		}
		return nil
	})
}
