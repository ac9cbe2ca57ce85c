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
func (m *Manager) Guard(ctx context.Context, id, alloc, at string) mount.Guard {
	p := m.lent(id, volume.Claim{Alloc: alloc, At: at})
	if p == nil {
		var err error
		if p, err = m.o.Host.OpenPlace(ctx, at); err != nil {
			return mount.GuardNone
		}
	}
	defer p.Close()
	g, err := p.Guard(ctx)
	if err != nil {
		return mount.GuardNone
	}
	return g
}

// Unguard makes a directory writable again that the agent had made to refuse writes.
// One that is not there, or does not, is success; one with something mounted on it
// fails.
func (m *Manager) Unguard(path string) error {
	return m.o.Host.Unguard(context.Background(), path)
}

// guard makes the directory refuse writes, if it is on record that it may be made so.
// It returns what went wrong: the volume is mounted all the same.
func (s step) guard(p *mount.Place, c volume.Claim) (warning string) {
	if c.AtWritable || !slices.Contains(s.r.Guards, c.At) {
		return ""
	}
	if err := p.SetGuard(s.ctx); err != nil {
		return err.Error()
	}
	return ""
}
