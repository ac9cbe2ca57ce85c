// Package owndir looks after the directories on which volumes are mounted. It guards the own
// directories of claims, which refuse writes while no volume is mounted there. It also cleans up
// the agent's directories after a boot and after a forced deregister.
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

// Dirs handles the own directories of claims. It looks up the guarded ones in the records.
type Dirs struct {
	*volmgr.Manager

	Records records.Store
}

// Guardable returns a claim's own directory if the agent may make it refuse writes while nothing is
// mounted there, else nil. A directory that is already immutable qualifies only if the agent made
// it so. If an administrator did, the agent leaves it alone.
func (d Dirs) Guardable(ctx context.Context, id, alloc, at string) *volume.GuardedDir {
	switch g, dir := d.Guard(ctx, id, alloc, at); {
	case g == mount.GuardOff, g == mount.GuardOn && d.guarded(dir, ""):
		return &dir
	default:
		return nil
	}
}

// Unguard makes a guarded directory writable again, unless another record or leftover record names
// it too. The parameter but is the key of the record that no longer counts.
func (d Dirs) Unguard(dir volume.GuardedDir, but string) error {
	if d.guarded(dir, but) {
		return nil
	}
	return d.Manager.Unguard(dir)
}

// undone makes the own directories of a leftover record writable, after everything in the record is
// undone.
func (d Dirs) undone(r volume.Record) (errs error) {
	for _, dir := range r.AllGuards() {
		errs = errors.Join(errs, d.Unguard(dir, r.Key()))
	}
	return errs
}

// On reports, for the doctor, whether a directory refuses writes now.
func (d Dirs) On(ctx context.Context, dir string) bool {
	g, _ := d.Guard(ctx, "", "", dir)
	return g == mount.GuardOn
}

// Lift is Unguard for the doctor, and then deletes the directory from the record. If the agent dies
// in between, the record still names a writable directory, and the next mount there guards it
// again. A claim that has meanwhile been made for the directory keeps it in the record.
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

// guarded reports whether a record or leftover record other than but names a directory.
func (d Dirs) guarded(dir volume.GuardedDir, but string) bool {
	return slices.ContainsFunc(d.all(), func(r volume.Record) bool { return r.Key() != but && r.Guarding(dir) })
}

// all returns all records and leftover records.
func (d Dirs) all() []volume.Record { return records.WithLeftovers{Store: d.Records}.Volumes() }
