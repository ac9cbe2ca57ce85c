package volmgr

import (
	"context"
	"slices"

	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// Guard says whether the directory that a claim is to be bound at could be made to
// refuse writes while nothing is mounted there, or is. It changes nothing. What cannot
// be told is a directory that could not: whoever binds there says what is wrong.
func (m *Manager) Guard(ctx context.Context, id, alloc, at string) (mount.Guard, volume.GuardedDir) {
	none := volume.GuardedDir{Path: at}
	p := m.lent(id, volume.Claim{Alloc: alloc, At: at})
	if p == nil {
		var err error
		if p, err = m.o.Host.OpenPlace(ctx, at); err != nil {
			return mount.GuardNone, none
		}
	}
	defer p.Close()
	g, err := p.Guard(ctx)
	if err != nil || g == mount.GuardNone {
		return mount.GuardNone, none
	}
	dir, err := p.Directory(ctx)
	if err != nil {
		return mount.GuardNone, none
	}
	return g, dir
}

// Unguard makes a directory writable again that the agent had made to refuse writes.
// It is found by its handle where it was renamed. One that is gone, or does not, is
// success; one with something mounted on it, or that cannot be found, fails.
func (m *Manager) Unguard(dir volume.GuardedDir) error {
	return m.o.Host.Unguard(context.Background(), dir)
}

// guard makes the directory refuse writes, if it is on record that it may be made so.
// It returns what went wrong: the volume is mounted all the same.
func (s step) guard(p *mount.Place, c volume.Claim) (warning string) {
	if c.AtWritable || !slices.Contains(s.r.Guards, c.At) {
		return ""
	}
	named := s.r.GuardsAt(c.At)
	if known := slices.ContainsFunc(named, func(g volume.GuardedDir) bool { return g.Inode == 0 }); !known {
		is, err := p.Directory(s.ctx)
		if err != nil {
			return err.Error()
		}
		if !slices.ContainsFunc(named, is.Same) {
			return c.At + " is another directory than when the claim was made; it can be written to while nothing is mounted there. To change that, claim the volume again"
		}
	}
	if err := p.SetGuard(s.ctx); err != nil {
		return err.Error()
	}
	return ""
}
