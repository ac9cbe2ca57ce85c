package agent

import (
	"context"
	"errors"
	"slices"

	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/volmgr"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// places handles the own directories of claims. It looks up the guarded ones in the records.
type places struct {
	*volmgr.Manager
	db records.Store
}

// Guardable returns a claim's own directory if the agent may make it refuse writes while nothing is
// mounted there, else nil. A directory that is already immutable qualifies only if the agent made
// it so. If an administrator did, the agent leaves it alone.
func (p places) Guardable(ctx context.Context, id, alloc, at string) *volume.GuardedDir {
	switch g, dir := p.Guard(ctx, id, alloc, at); {
	case g == mount.GuardOff, g == mount.GuardOn && p.guarded(dir, ""):
		return &dir
	default:
		return nil
	}
}

// Unguard makes a guarded directory writable again, unless another record or leftover record names
// it too. The parameter but is the key of the record that no longer counts.
func (p places) Unguard(dir volume.GuardedDir, but string) error {
	if p.guarded(dir, but) {
		return nil
	}
	return p.Manager.Unguard(dir)
}

// paid makes the own directories of a leftover record writable, after everything in the record is
// undone.
func (p places) undone(r volume.Record) (errs error) {
	for _, dir := range r.AllGuards() {
		errs = errors.Join(errs, p.Unguard(dir, r.Key()))
	}
	return errs
}

// On reports, for the doctor, whether a directory refuses writes now.
func (p places) On(ctx context.Context, dir string) bool {
	g, _ := p.Guard(ctx, "", "", dir)
	return g == mount.GuardOn
}

// Lift is Unguard for the doctor, and then deletes the directory from the record. If the agent dies
// in between, the record still names a writable directory, and the next mount there guards it
// again. A claim that has meanwhile been made for the directory keeps it in the record.
func (p places) Lift(ctx context.Context, dir, id string) error {
	r, ok := p.db.Volume(id)
	if !ok {
		return nil
	}

	for _, g := range r.GuardsAt(dir) {
		if err := p.Unguard(g, id); err != nil {
			return err
		}
	}

	return p.db.Intend(ctx, id, func(r volume.Record) volume.Record {
		for _, c := range r.Claims {
			if c.At == dir {
				return r
			}
		}

		return r.Unguarding(dir)
	})
}

// guarded reports whether a record or leftover record other than but names a directory.
func (p places) guarded(dir volume.GuardedDir, but string) bool {
	all := records.WithLeftovers{Store: p.db}.Volumes()
	return slices.ContainsFunc(all, func(r volume.Record) bool { return r.Key() != but && r.Guarding(dir) })
}
