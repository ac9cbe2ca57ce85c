// Package records adapts the state database to the packages of the agent. Each of these packages
// uses the records through its own interface.
package records

import (
	"context"
	"errors"
	"syscall"

	"github.com/volagent/volagent/agent/notes"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// Store adapts the state database for agent/claim and most other packages.
type Store struct {
	*statedb.DB
	Notes    *notes.Notebook // nil if no notes are kept
	Reserved *Reservations
}

// Draining reports whether the host is being drained. If a claim and a drain arrive at about the
// same time, either one commit contains both, or the later change sees the earlier change.
func (s Store) Draining() bool { return s.Node().Draining }

// References returns the number of containers that use a runtime's volume.
func (s Store) References(o volume.Owner) int {
	v, _ := statedb.RuntimeVolumes.Get(s, volume.RuntimeKey(o.Runtime, o.Volume))
	return len(v.Refs)
}

// Save stores the result of a step for package reconcile. The step has happened, so memory keeps
// the result even if the commit fails. A volume that was deregistered meanwhile stays deleted.
func (s Store) Save(ctx context.Context, id string, fn func(volume.Record) (volume.Record, volume.Saving)) error {
	var before, now volume.Record
	err := s.DB.Save(ctx, func(tx *statedb.Tx) (saving volume.Saving) {
		var ok bool
		if before, ok = tx.Volume(id); !ok {
			now = before
			return volume.SaveWithNext
		}

		now, saving = fn(before)
		tx.PutVolume(now)
		return saving
	})

	s.Notes.Changed(before, now)
	return err
}

// Intend stores an intent for package reconcile. The intent must be on disk before its step.
func (s Store) Intend(ctx context.Context, id string, fn func(volume.Record) volume.Record) error {
	return s.Update(ctx, func(tx *statedb.Tx) error {
		if r, ok := tx.Volume(id); ok {
			tx.PutVolume(fn(r))
		}
		return nil
	})
}

// Change stores an intent for package claim. After an error, nothing has changed.
func (s Store) Change(ctx context.Context, id string, fn func(volume.Record) (volume.Record, bool, error)) error {
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
		if err := s.checkVolumeLimit(tx, r, next); err != nil {
			return err
		}

		return Clash(tx, r, next)
	})
}

// Detach is like Change, for the end of a claim. On a read-only data dir, it keeps the change in
// memory, and writes the change when the data dir is writable again. Otherwise no volume could be
// unmounted on such a host. If the agent dies before the write, it finds the old claim after its
// restart and mounts the volume again.
func (s Store) Detach(ctx context.Context, id string, fn func(volume.Record) (volume.Record, bool, error)) error {
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

// checkVolumeLimit returns an error for the first claim of a volume if this host already has as many volumes of
// the plugin as the plugin allows. Reserved places count as well. A claim counts from this moment on, also while it
// waits for another host. For a plugin without a limit, checkVolumeLimit does not read the other records.
func (s Store) checkVolumeLimit(tx *statedb.Tx, r, next volume.Record) error {
	p, _ := statedb.Plugins.Get(tx, r.Volume.PluginID)
	if len(r.Claims) > 0 || len(next.Claims) == 0 || p.Info.MaxVolumes <= 0 {
		return nil
	}
	return volume.Room(r, p.Info, tx.Volumes(), Leftovers(tx), s.Reserved.volumes())
}

// Leftovers returns the leftover records of all forced deregisters, in the form of volume records.
func Leftovers(from statedb.Reader) []volume.Record {
	all := []volume.Record{}
	for _, d := range statedb.Leftovers.All(from) {
		all = append(all, d.Whole())
	}
	return all
}

// Clash returns an error if another volume uses a path of a new claim in next. For a record without
// new claims, it does not read the other records.
func Clash(tx *statedb.Tx, r, next volume.Record) error {
	for alloc, c := range next.Claims {
		if _, was := r.Claims[alloc]; was {
			continue
		}

		var others []volume.Record
		if c.At != "" {
			others = tx.Volumes()
		}
		if err := volume.Clash(next, c, others, Leftovers(tx)); err != nil {
			return err
		}
	}

	// A volume that waited for leftovers may still use the staging path of the deregistered volume
	// that caused these leftovers.
	if id, ok := tx.HolderOf(next.Node.StagingPath, next.Volume.ID); ok && len(r.Claims) == 0 {
		return volume.Errorf(volume.ErrRefused, "%s is still in use by volume %q", next.Node.StagingPath, id).
			WithRemedy(remedy.Of(remedy.ShowVolume, id))
	}

	return nil
}
