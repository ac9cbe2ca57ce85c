package volmgr

import (
	"context"
	"slices"

	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// Guard reports whether the claim's own directory has a guard or can get one. A guard refuses
// writes while no volume is mounted on the directory. Guard changes nothing. If the check fails,
// Guard returns GuardNone, because the later bind reports the problem.
func (m *Manager) Guard(ctx context.Context, id, alloc, at string) (mount.Guard, volume.GuardedDir) {
	none := volume.GuardedDir{Path: at}
	p := m.loans.lent(id, volume.Claim{Alloc: alloc, Terms: volume.Terms{At: at}})
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

// Unguard removes the guard of a directory, so that the directory is writable again. It finds a
// renamed directory by its file handle. It succeeds if the directory does not exist or has no
// guard. It fails if a mount covers the directory, or if it cannot find the directory.
func (m *Manager) Unguard(dir volume.GuardedDir) error {
	return m.o.Host.Unguard(context.Background(), dir)
}

// guard sets the guard of a directory if the record permits a guard. A failure is only a warning,
// because the agent can still mount the volume.
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
