package volmgr

import (
	"sync"

	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// loans holds, by claim, the directories that callers lend for the duration of their requests. The
// agent does not walk to a directory while it is lent. If the directory is mounted on demand
// (autofs), every walk by another process blocks until the caller's request is answered.
type loans struct {
	mu sync.Mutex
	by map[loanKey][]*mount.Place // the newest last
}

type loanKey struct{ volume, alloc, path string }

// Lend takes over a process's descriptor of a claim's own directory, and keeps it until giveBack is
// called. It returns an ErrInvalid if the descriptor is open on another file, or if the process is
// in another mount namespace.
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

// lent returns a lent descriptor of a claim's own directory, or nil. The caller must close it.
func (m *Manager) lent(id string, c volume.Claim) *mount.Place {
	m.loans.mu.Lock()
	defer m.loans.mu.Unlock()
	ps := m.loans.by[loanKey{id, c.Alloc, c.At}]
	if len(ps) == 0 {
		return nil
	}

	p, err := ps[len(ps)-1].Again()
	if err != nil {
		return nil // no descriptor is free; the walk will report that
	}
	return p
}

// unwalked returns the state of a claim's bind while its directory is lent, without a walk. It asks
// the kernel about the recorded mount. The bind step handles a mount that is not recorded.
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
