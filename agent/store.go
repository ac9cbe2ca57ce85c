package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"
	"time"

	"github.com/volagent/volagent/agent/notes"
	"github.com/volagent/volagent/agent/provision"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/volume"
)

// store implements the interfaces through which other packages use the state database.
type store struct {
	*statedb.DB
	notes *notes.Notebook // nil if no notes are kept
}

// Save, for reconcile, stores the result of a step. The step has happened, so memory keeps the
// result even if the commit fails. A volume that was deregistered meanwhile stays deleted.
func (s store) Save(ctx context.Context, id string, fn func(volume.Record) (volume.Record, volume.Saving)) error {
	var before, now volume.Record
	err := s.SaveVolume(ctx, id, func(r volume.Record) (volume.Record, volume.Saving) {
		next, saving := fn(r)
		before, now = r, next
		return next, saving
	})

	s.notes.Changed(before, now)
	return err
}

// Intend, for reconcile, stores an intent that must be on disk before its step.
func (s store) Intend(ctx context.Context, id string, fn func(volume.Record) volume.Record) error {
	return s.Update(ctx, func(tx *statedb.Tx) error {
		if r, ok := tx.Volume(id); ok {
			tx.PutVolume(fn(r))
		}
		return nil
	})
}

// Change, for claim, stores an intent. Either it is on disk, or nothing changes.
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
		if err := room(tx, r, next); err != nil {
			return err
		}

		return clash(tx, r, next)
	})
}

// Release, for claim, is Change for the end of a claim. On a read-only data dir it keeps the change
// in memory, and writes it when that is possible again. Otherwise no volume could be unmounted on
// such a host. If the agent dies before the write, the next one finds the old claim and mounts the
// volume again.
func (s store) Release(ctx context.Context, id string, fn func(volume.Record) (volume.Record, bool, error)) error {
	err := s.Change(ctx, id, fn)
	if !errors.Is(err, syscall.EROFS) {
		return err
	}

	var refused error
	err = s.Happened(ctx, func(tx *statedb.Tx) error {
		r, ok := tx.Volume(id)
		if !ok {
			return nil
		}

		var next volume.Record
		var changed bool
		if next, changed, refused = fn(r); refused == nil && changed {
			tx.PutVolume(next)
		}

		return nil
	})
	if err != nil && !errors.Is(err, syscall.EROFS) {
		return err
	}

	return refused
}

// room refuses the first claim of a volume if its plugin allows no more volumes on this host. It
// scans nothing for a plugin without a limit.
func room(tx *statedb.Tx, r, next volume.Record) error {
	p, _ := tx.Plugin(r.Volume.PluginID)
	if len(r.Claims) > 0 || len(next.Claims) == 0 || p.Info.MaxVolumes <= 0 {
		return nil
	}
	return volume.Room(r, p.Info, tx.Volumes(), whole(tx.Debts()))
}

// whole returns leftover records, which are those of forced deregisters, in the form of volume
// records.
func whole(debts []statedb.Debt) []volume.Record {
	all := make([]volume.Record, 0, len(debts))
	for _, d := range debts {
		all = append(all, d.Whole())
	}
	return all
}

// clash refuses a claim that is new in next, if another volume has one of its paths. It scans
// nothing for existing claims.
func clash(tx *statedb.Tx, r, next volume.Record) error {
	for alloc, c := range next.Claims {
		if _, was := r.Claims[alloc]; was {
			continue
		}

		var others []volume.Record
		if c.At != "" {
			others = tx.Volumes()
		}
		if err := volume.Clash(next, c, others, whole(tx.Debts())); err != nil {
			return err
		}
	}

	// A volume for which leftovers were undone may still use the staging path of the volume that
	// left them.
	if id, ok := tx.HolderOf(next.Node.StagingPath, next.Volume.ID); ok && len(r.Claims) == 0 {
		return volume.Errorf(volume.ErrRefused, "%s is still in use by volume %q", next.Node.StagingPath, id).
			WithHint("volctl volume status %s", id)
	}

	return nil
}

// volumeStore adapts the state database for provision.
type volumeStore struct{ store }

func (s volumeStore) Update(ctx context.Context, fn func(provision.Tx) error) error {
	var was map[string]volume.Record
	err := s.DB.Update(ctx, func(tx *statedb.Tx) error {
		was = map[string]volume.Record{}
		return fn(volumeTx{tx, was})
	})
	if err == nil && s.notes != nil {
		for _, r := range was {
			s.notes.Update(r, slices.Collect(maps.Keys(r.Claims)))
		}
	}

	return err
}

type volumeTx struct {
	*statedb.Tx
	was map[string]volume.Record // the old records of changed volumes
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

// TestOf returns the plugin whose test uses this storage volume, or has left something on it.
func (t volumeTx) TestOf(driver, external string) (pluginID string, ok bool) {
	for _, p := range t.Plugins() {
		if p.Scratch != nil && p.Info.Driver == driver && p.Scratch.Has(external) {
			return p.Of(), true
		}
	}

	return "", false
}

// All leftover records are returned in the form of volume records.
func (t volumeTx) Debts() []volume.Record {
	return whole(t.Tx.Debts())
}

// A leftover record is returned in the form of a volume record.
func (t volumeTx) Debt(driver, external string) (volume.Record, bool) {
	d, ok := t.Tx.Debt(driver, external)
	return d.Whole(), ok
}

// PutDebt stores a leftover record. An existing one keeps its time.
func (t volumeTx) PutDebt(r volume.Record, since time.Time) {
	if d, ok := t.Tx.Debt(r.Volume.Driver, r.Volume.ExternalID); ok {
		since = d.Since
	}
	t.Tx.PutDebt(statedb.Debt{Record: r, Claims: r.Ordered(), Since: since})
}

// queueStore adapts the state database for reconcile. The queue handles leftover records like
// volumes, each under its own key.
type queueStore struct{ store }

// Volume returns a volume's record or a leftover record.
func (s queueStore) Volume(key string) (volume.Record, bool) {
	if driver, external, ok := volume.ParseDebtKey(key); ok {
		d, ok := s.Debt(driver, external)
		return d.Whole(), ok
	}

	return s.store.Volume(key)
}

// Volumes returns all records of both kinds.
func (s queueStore) Volumes() []volume.Record {
	all := s.store.Volumes()
	for _, d := range s.Debts() {
		all = append(all, d.Whole())
	}
	return all
}

// Save is store.Save, and also accepts the key of a leftover record.
func (s queueStore) Save(ctx context.Context, key string, fn func(volume.Record) (volume.Record, volume.Saving)) error {
	driver, external, ok := volume.ParseDebtKey(key)
	if !ok {
		return s.store.Save(ctx, key, fn)
	}

	saving := volume.SaveWithNext
	err := s.Checkpoint(ctx, changeDebt(driver, external, func(r volume.Record) volume.Record {
		r, saving = fn(r)
		return r
	}))
	if err != nil || saving == volume.SaveWithNext {
		return err
	}

	return s.Sync(ctx)
}

// Intend is store.Intend, and also accepts the key of a leftover record.
func (s queueStore) Intend(ctx context.Context, key string, fn func(volume.Record) volume.Record) error {
	driver, external, ok := volume.ParseDebtKey(key)
	if !ok {
		return s.store.Intend(ctx, key, fn)
	}
	return s.Update(ctx, changeDebt(driver, external, fn))
}

// changeDebt changes a leftover record, if it still exists.
func changeDebt(driver, external string, fn func(volume.Record) volume.Record) func(*statedb.Tx) error {
	return func(tx *statedb.Tx) error {
		if d, ok := tx.Debt(driver, external); ok {
			r := fn(d.Whole())
			tx.PutDebt(statedb.Debt{Record: r, Claims: r.Ordered(), Since: d.Since})
		}

		return nil
	}
}

// settle deletes a leftover record that is completely undone, and returns the volume that was
// waiting for that, if there is one. The deletion is on disk before any step for that volume.
// Loaded relies on this: as long as the leftover record is on disk, nothing was made for the
// volume.
func (s store) settle(ctx context.Context, r volume.Record) (waiting string, err error) {
	driver, external := r.Volume.Driver, r.Volume.ExternalID
	err = s.Update(ctx, func(tx *statedb.Tx) error {
		if d, ok := tx.Debt(driver, external); ok && !d.Whole().Held() {
			tx.DeleteDebt(driver, external)
		}
		waiting, _ = tx.VolumeOf(driver, external)
		return nil
	})

	return waiting, err
}

// The queue shows this text while leftovers of the same storage must be undone first.
func (s store) owed(v volume.Volume) string {
	if v.ExternalID == "" {
		return ""
	}

	d, ok := s.Debt(v.Driver, v.ExternalID)
	if !ok {
		return ""
	}

	return fmt.Sprintf("what volume %q left when it was deregistered by force is undone first, by plugin %q", d.Record.Volume.ID, d.Record.Volume.PluginID)
}

// reload adapts every record to the way in which the last agent ended, and stores the current node.
// It is one commit. From then on, the stored state says that this agent has not stopped in order,
// until stopped is called.
func (s store) reload(ctx context.Context, node statedb.Node, after volume.Stop) error {
	node.Clean = false
	save := s.Happened
	if s.Node().ID == "" {
		save = s.Update // a first start has no older state to continue with, so this write must succeed
	}

	return save(ctx, func(tx *statedb.Tx) error {
		for _, r := range tx.Volumes() {
			_, blocked := tx.Debt(r.Volume.Driver, r.Volume.ExternalID)
			if now, changed := volume.Loaded(r, after, blocked); changed {
				tx.PutVolume(now)
			}
		}

		for _, d := range tx.Debts() {
			r, _ := volume.Loaded(d.Whole(), after, false)
			if after.Boot() {
				r = volume.NextBoot(r)
			}
			tx.PutDebt(statedb.Debt{Record: r, Claims: r.Ordered(), Since: d.Since})
		}

		if node != s.Node() {
			tx.PutNode(node)
		}

		return nil
	})
}

// stopped records that the outcome of every step is stored.
func (s store) stopped(ctx context.Context) error {
	return s.Update(ctx, func(tx *statedb.Tx) error {
		node := tx.Node()
		node.Clean = true
		tx.PutNode(node)
		return nil
	})
}

// living returns records as the API shows them: a claim whose owner has ended appears as detaching,
// even before that is stored.
type living struct {
	store
	owners volume.Owners
}

// Volume returns a volume's record.
func (l living) Volume(id string) (volume.Record, bool) {
	r, ok := l.store.Volume(id)
	return volume.Past(r, l.owners), ok
}

// Volumes returns all records.
func (l living) Volumes() []volume.Record {
	rs := l.store.Volumes()
	for i := range rs {
		rs[i] = volume.Past(rs[i], l.owners)
	}
	return rs
}
