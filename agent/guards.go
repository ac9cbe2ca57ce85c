package agent

import (
	"context"
	"errors"
	"slices"

	"github.com/volagent/volagent/volmgr"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// places are the directories that volumes are bound at, and the records that say which
// of them the agent made to refuse writes.
type places struct {
	*volmgr.Manager
	db store
}

// Guardable returns a claim's directory if that may be made to refuse writes while nothing
// is mounted there, else nil. One that does so already may only be if that was the agent's
// doing: what somebody else made immutable stays so.
func (p places) Guardable(ctx context.Context, id, alloc, at string) *volume.GuardedDir {
	switch g, dir := p.Guard(ctx, id, alloc, at); {
	case g == mount.GuardOff, g == mount.GuardOn && p.guarded(dir, ""):
		return &dir
	default:
		return nil
	}
}

// Unguard makes a directory writable again that a record names, unless another record or a
// debt names it too. But is the key of the record.
func (p places) Unguard(dir volume.GuardedDir, but string) error {
	if p.guarded(dir, but) {
		return nil
	}
	return p.Manager.Unguard(dir)
}

// paid makes the directories of a debt writable of which nothing is left.
func (p places) paid(r volume.Record) (errs error) {
	for _, dir := range r.AllGuards() {
		errs = errors.Join(errs, p.Unguard(dir, r.Key()))
	}
	return errs
}

// On is the doctor's: whether a directory refuses writes now.
func (p places) On(ctx context.Context, dir string) bool {
	g, _ := p.Guard(ctx, "", "", dir)
	return g == mount.GuardOn
}

// Lift is the doctor's: Unguard, after which the record forgets the directory. Who dies in
// between leaves one on record that can be written to: the next mount there guards it
// again. So does a claim that came meanwhile, which keeps it on record.
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

// guarded reports whether a record or a debt, other than one, names a directory.
func (p places) guarded(dir volume.GuardedDir, but string) bool {
	records := p.db.Volumes()
	for _, d := range p.db.Debts() {
		records = append(records, d.Whole())
	}
	return slices.ContainsFunc(records, func(r volume.Record) bool { return r.Key() != but && r.Guarding(dir) })
}
