package volmgr

import (
	"slices"
	"sync"

	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// loans holds the directories that callers lend for the duration of their requests, by claim. The
// agent does not open such a directory by its path. If the path is an on-demand mount (autofs), an
// open by any other process blocks until the agent answers the caller.
type loans struct {
	mu sync.Mutex
	by map[loanKey][]*mount.Place // by claim; the newest is the last
}

type loanKey struct{ volume, alloc, path string }

// Lend duplicates a process's descriptor of a claim's own directory and keeps the duplicate until
// the caller calls giveBack. It returns an ErrInvalid if the descriptor belongs to another file, or
// if the process is in another mount namespace.
func (m *Manager) Lend(id, alloc, at string, d volume.Descriptor) (giveBack func(), err error) {
	p, err := m.o.Host.BorrowPlace(d.PID, d.FD, at)
	if err != nil {
		return nil, volume.Errorf(volume.ErrInvalid, "cannot use at_fd: %v", err)
	}

	key := loanKey{id, alloc, at}
	m.loans.mu.Lock()
	defer m.loans.mu.Unlock()
	if m.loans.by == nil {
		m.loans.by = map[loanKey][]*mount.Place{}
	}
	m.loans.by[key] = append(m.loans.by[key], p)
	return func() { m.loans.end(key, p) }, nil
}

func (l *loans) end(key loanKey, p *mount.Place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	left := slices.DeleteFunc(l.by[key], func(other *mount.Place) bool { return other == p })
	if l.by[key] = left; len(left) == 0 {
		delete(l.by, key)
	}
	p.Close()
}

// lent returns a lent descriptor of a claim's own directory, or nil. The caller must close it.
func (l *loans) lent(id string, c volume.Claim) *mount.Place {
	l.mu.Lock()
	defer l.mu.Unlock()
	ps := l.by[loanKey{id, c.Alloc, c.At}]
	if len(ps) == 0 {
		return nil
	}

	p, err := ps[len(ps)-1].Again()
	if err != nil {
		return nil // no descriptor is free; the open by path reports that error
	}
	return p
}

// unwalked returns the state of a claim's bind while a caller lends the directory, without opening
// the path. It asks the kernel about the recorded mount. The bind step finds mounts that are not
// recorded.
func (m *Manager) unwalked(id string, c volume.Claim) (s volume.Sight, ok bool) {
	p := m.loans.lent(id, c)
	if p == nil {
		return s, false
	}
	defer p.Close()

	if c.Bound != volume.Present || c.BoundMount == nil || m.o.Host.Gone(*c.BoundMount, c.At) {
		return volume.Sight{}, true
	}
	return volume.Sight{Seen: volume.SeenMount, Identity: *c.BoundMount, ReadOnly: c.ReadOnly}, true
}
