package volmgr

import (
	"sync"

	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// loans are the directories that callers lend for as long as their requests take, by
// claim. While one is lent nobody here walks to it: where it is mounted on demand
// (autofs), every walk of another process waits until the request is answered that
// the caller was started for.
type loans struct {
	mu sync.Mutex
	by map[loanKey][]*mount.Place // the newest last
}

type loanKey struct{ volume, alloc, path string }

// Lend takes the descriptor of a process that is open on a claim's own directory, and
// keeps it until it is given back. It refuses with ErrInvalid one that is open on
// anything else, and one of a process in another mount namespace.
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
	left := l.by[key][:0]
	for _, other := range l.by[key] {
		if other != p {
			left = append(left, other)
		}
	}
	if l.by[key] = left; len(left) == 0 {
		delete(l.by, key)
	}
	p.Close()
}

// lent is a descriptor of a claim's own directory that a caller lends, to be closed;
// nil if there is none.
func (m *Manager) lent(id string, c volume.Claim) *mount.Place {
	m.loans.mu.Lock()
	defer m.loans.mu.Unlock()
	ps := m.loans.by[loanKey{id, c.Alloc, c.At}]
	if len(ps) == 0 {
		return nil
	}
	p, err := ps[len(ps)-1].Again()
	if err != nil {
		return nil // there are no descriptors to be had, and the walk will say so
	}
	return p
}

// unwalked is what is to be known of the bind of a claim whose directory is lent, by
// what the kernel tells of the mount on record. What is not on record the step that
// binds sees to.
func (m *Manager) unwalked(id string, c volume.Claim) (s volume.Sight, ok bool) {
	p := m.lent(id, c)
	if p == nil {
		return s, false
	}
	defer p.Close()
	if c.Bound != volume.Present || c.BoundMount == nil || m.o.Host.Gone(*c.BoundMount, c.At) {
		return volume.Sight{}, true
	}
	return volume.Sight{Seen: volume.SeenMount, Identity: *c.BoundMount, ReadOnly: c.ReadOnly}, true
}
