package agent

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/volagent/volagent/agent/provision"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/volume"
)

// store gives each consumer the view of the state database that it declares.
type store struct {
	*statedb.DB
	notes *notebook // nil: none are kept
}

// Save is reconcile's: what is saved has happened, so memory keeps it whatever
// becomes of the commit. A volume that was deregistered meanwhile stays gone.
func (s store) Save(ctx context.Context, id string, durable bool, fn func(volume.Record) volume.Record) error {
	save := s.Checkpoint
	if durable {
		save = s.Happened
	}
	var before, now volume.Record
	err := save(ctx, func(tx *statedb.Tx) error {
		if r, ok := tx.Volume(id); ok {
			before, now = r, fn(r)
			tx.PutVolume(now)
		}
		return nil
	})
	s.notes.changed(before, now)
	return err
}

// Intend is reconcile's, for what must be on disk before it is done.
func (s store) Intend(ctx context.Context, id string, fn func(volume.Record) volume.Record) error {
	return s.Update(ctx, func(tx *statedb.Tx) error {
		if r, ok := tx.Volume(id); ok {
			tx.PutVolume(fn(r))
		}
		return nil
	})
}

// Change is claim's: an intent, on disk or not at all.
func (s store) Change(ctx context.Context, id string, fn func(volume.Record) (volume.Record, bool, error)) error {
	return s.Update(ctx, func(tx *statedb.Tx) error {
		r, ok := tx.Volume(id)
		if !ok {
			return volume.Errorf(volume.ErrNotFound, "no volume %q", id).WithHint("volctl volume list")
		}
		next, changed, err := fn(r)
		if err != nil || !changed {
			return err
		}
		tx.PutVolume(next)
		return clash(tx, r, next)
	})
}

// clash refuses a claim that next has and r has not, if its paths are another
// volume's. Nothing is scanned for a claim that is not new.
func clash(tx *statedb.Tx, r, next volume.Record) error {
	for alloc, c := range next.Claims {
		if _, was := r.Claims[alloc]; was {
			continue
		}
		var others, owed []volume.Record
		if c.At != "" {
			others = tx.Volumes()
		}
		for _, d := range tx.Debts() {
			owed = append(owed, d.Whole())
		}
		if err := volume.Clash(next, c, others, owed); err != nil {
			return err
		}
	}
	// A volume that paid a debt may still hold the path of the one that made it.
	if id, ok := tx.HolderOf(next.Node.StagingPath, next.Volume.ID); ok && len(r.Claims) == 0 {
		return volume.Errorf(volume.ErrRefused, "%s is still in use by volume %q", next.Node.StagingPath, id).
			WithHint("volctl volume status %s", id)
	}
	return nil
}

// volumeStore is provision's view.
type volumeStore struct{ store }

func (s volumeStore) Update(ctx context.Context, fn func(provision.Tx) error) error {
	var was map[string]volume.Record
	err := s.DB.Update(ctx, func(tx *statedb.Tx) error {
		was = map[string]volume.Record{}
		return fn(volumeTx{tx, was})
	})
	if err == nil && s.notes != nil {
		for _, r := range was {
			s.notes.update(r, slices.Collect(maps.Keys(r.Claims)))
		}
	}
	return err
}

type volumeTx struct {
	*statedb.Tx
	was map[string]volume.Record // what is changed, as it was
}

// PutVolume stores a record.
func (t volumeTx) PutVolume(r volume.Record) {
	t.before(r.Volume.ID)
	t.Tx.PutVolume(r)
}

// DeleteVolume deletes a record with its claims.
func (t volumeTx) DeleteVolume(id string) {
	t.before(id)
	t.Tx.DeleteVolume(id)
}

func (t volumeTx) before(id string) {
	if r, ok := t.Volume(id); ok {
		if _, twice := t.was[id]; !twice {
			t.was[id] = r
		}
	}
}

// TakeDebt gives back what a forced deregister left, as a record to undo: all
// of its sides are uncertain by now.
func (t volumeTx) TakeDebt(driver, external string) (volume.Record, bool) {
	d, ok := t.Debt(driver, external)
	if !ok {
		return volume.Record{}, false
	}
	t.DeleteDebt(driver, external)
	r, _ := volume.Loaded(d.Whole())
	return r, true
}

// PutDebt keeps what a forced deregister leaves.
func (t volumeTx) PutDebt(r volume.Record, since time.Time) {
	t.Tx.PutDebt(statedb.Debt{Record: r, Claims: r.Ordered(), Since: since})
}

// reload makes every side uncertain that is not recorded as settled.
func (s store) reload(ctx context.Context) error {
	return s.Checkpoint(ctx, func(tx *statedb.Tx) error {
		for _, r := range s.Volumes() {
			if now, changed := volume.Loaded(r); changed {
				tx.PutVolume(now)
			}
		}
		return nil
	})
}
