// Package owndir protects the directories on which claims have their volumes mounted. Such a
// directory refuses writes while no volume is mounted on it. The package also cleans up the agent's
// directories after a boot and after a forced deregister.
package owndir

import (
	"context"
	"errors"
	"slices"

	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/volmgr"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// Dirs protects the directories that callers chose for their claims. It finds the guarded
// directories in the records.
type Dirs struct {
	*volmgr.Manager

	Records records.Store
}

// Guardable returns a claim's own directory if the agent may guard it, and nil otherwise. A guarded
// directory refuses writes while no volume is mounted on it. If the directory is already immutable,
// the agent may guard it only if the agent itself made it immutable. A directory that an
// administrator made immutable stays unchanged.
func (d Dirs) Guardable(ctx context.Context, id, alloc, at string) *volume.GuardedDir {
	switch g, dir := d.Guard(ctx, id, alloc, at); {
	case g == mount.GuardOff, g == mount.GuardOn && d.guarded(dir, ""):
		return &dir
	default:
		return nil
	}
}

// Unguard makes a guarded directory writable again, unless another record or leftover record names
// the same directory. The argument but is the key of a record that Unguard ignores.
func (d Dirs) Unguard(dir volume.GuardedDir, but string) error {
	if d.guarded(dir, but) {
		return nil
	}
	return d.Manager.Unguard(dir)
}

// undone makes the guarded directories of a leftover record writable again. The caller must have
// undone everything else in the record.
func (d Dirs) undone(r volume.Record) (errs error) {
	for _, dir := range r.AllGuards() {
		errs = errors.Join(errs, d.Unguard(dir, r.Key()))
	}
	return errs
}

// On reports whether the guard of a directory is active, so that the directory refuses writes. The
// doctor calls On.
func (d Dirs) On(ctx context.Context, dir string) bool {
	g, _ := d.Guard(ctx, "", "", dir)
	return g == mount.GuardOn
}

// Lift makes a guarded directory writable again, and then deletes the directory from the record.
// The doctor calls Lift. If the agent dies between the two steps, the record still names the
// directory although it is writable; the next mount on it then guards it again. Lift leaves the
// directory in the record if a new claim uses it by then.
func (d Dirs) Lift(ctx context.Context, dir, id string) error {
	r, ok := d.Records.Volume(id)
	if !ok {
		return nil
	}

	for _, g := range r.GuardsAt(dir) {
		if err := d.Unguard(g, id); err != nil {
			return err
		}
	}

	return d.Records.Intend(ctx, id, func(r volume.Record) volume.Record {
		for _, c := range r.Claims {
			if c.At == dir {
				return r
			}
		}

		return r.Unguarding(dir)
	})
}

// guarded reports whether a record or leftover record names a directory. It ignores the record with
// the key but.
func (d Dirs) guarded(dir volume.GuardedDir, but string) bool {
	return slices.ContainsFunc(d.all(), func(r volume.Record) bool { return r.Key() != but && r.Guarding(dir) })
}

// all returns all records and leftover records.
func (d Dirs) all() []volume.Record { return records.WithLeftovers{Store: d.Records}.Volumes() }
