package agent

import (
	"context"
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

// Guardable reports whether a claim's directory may be made to refuse writes while
// nothing is mounted there. One that does so already may only be if that was the
// agent's doing: what somebody else made immutable stays so.
func (p places) Guardable(ctx context.Context, id, alloc, at string) bool {
	switch p.Guard(ctx, id, alloc, at) {
	case mount.GuardOff:
		return true
	case mount.GuardOn:
		return p.guarded(at, "")
	default:
		return false
	}
}

// Unguard makes a directory writable again that a volume's record names, unless
// another one names it too.
func (p places) Unguard(path, id string) error {
	if p.guarded(path, id) {
		return nil
	}
	return p.Manager.Unguard(path)
}

// On is the doctor's: whether a directory refuses writes now.
func (p places) On(ctx context.Context, dir string) bool {
	return p.Guard(ctx, "", "", dir) == mount.GuardOn
}

// Lift is the doctor's: Unguard, after which the record forgets the directory. Who dies in
// between leaves one on record that can be written to: the next mount there guards it
// again. So does a claim that came meanwhile, which keeps it on record.
func (p places) Lift(ctx context.Context, dir, id string) error {
	if err := p.Unguard(dir, id); err != nil {
		return err
	}
	return p.db.Intend(ctx, id, func(r volume.Record) volume.Record {
		for _, c := range r.Claims {
			if c.At == dir {
				return r
			}
		}
		r.Guards = slices.DeleteFunc(slices.Clone(r.Guards), func(g string) bool { return g == dir })
		return r
	})
}

// guarded reports whether a volume's record, other than one, names a directory.
func (p places) guarded(path, but string) bool {
	return slices.ContainsFunc(p.db.Volumes(), func(r volume.Record) bool {
		return r.Volume.ID != but && slices.Contains(r.Guards, path)
	})
}
