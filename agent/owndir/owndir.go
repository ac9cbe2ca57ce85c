// Package owndir protects the directories at which claims have their volumes mounted. Such a
// directory refuses writes while no volume is mounted there. The package also cleans up the agent's
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

// Guardable returns a claim's own directory if the agent may make it refuse writes while nothing is
// mounted there. Otherwise it returns nil. If the directory is already immutable, the agent must
// have made it so. The agent does not touch a directory that an administrator made immutable.
func (d Dirs) Guardable(ctx context.Context, id, alloc, at string) *volume.GuardedDir {
	switch g, dir := d.Guard(ctx, id, alloc, at); {
	case g == mount.GuardOff, g == mount.GuardOn && d.guarded(dir, ""):
		return &dir
	default:
		return nil
	}
}

// Unguard makes a guarded directory writable again, unless another record or leftover record names
// it too. It ignores the record whose key is but.
func (d Dirs) Unguard(dir volume.GuardedDir, but string) error {
	if d.guarded(dir, but) {
		return nil
	}
	return d.Manager.Unguard(dir)
}

// undone makes the guarded directories of a leftover record writable again. The caller has undone
// everything else in the record.
func (d Dirs) undone(r volume.Record) (errs error) {
	for _, dir := range r.AllGuards() {
		errs = errors.Join(errs, d.Unguard(dir, r.Key()))
	}
	return errs
}

// On reports whether a directory refuses writes now. The doctor calls it.
func (d Dirs) On(ctx context.Context, dir string) bool {
	g, _ := d.Guard(ctx, "", "", dir)
	return g == mount.GuardOn
}

// Lift makes a guarded directory writable again, and then deletes it from the record. The doctor
// calls it. If the agent dies in between, the record still names a writable directory, and the next
// mount there guards it again. A claim that has meanwhile been made for the directory keeps it in
// the record.
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

// guarded reports whether a record or leftover record names a directory. It ignores the record
// whose key is but.
func (d Dirs) guarded(dir volume.GuardedDir, but string) bool {
	return slices.ContainsFunc(d.all(), func(r volume.Record) bool { return r.Key() != but && r.Guarding(dir) })
}

// all returns all records and leftover records.
func (d Dirs) all() []volume.Record { return records.WithLeftovers{Store: d.Records}.Volumes() }
