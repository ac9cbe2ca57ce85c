package volmgr

import (
	"slices"
	"sync"

	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// loans holds descriptors of claims' own directories. The callers of requests pass these
// descriptors for the duration of a request. The agent does not open such a directory by its path.
// If the path is an on-demand mount (autofs), opening it blocks every other process until the agent
// has answered the request.
type loans struct {
	mu sync.Mutex
	by map[loanKey][]*mount.Place // the newest descriptor of each claim is the last
}

type loanKey struct{ volume, alloc, path string }

// Lend duplicates a descriptor that a process has open on a claim's own directory. It keeps the
// duplicate until the caller calls giveBack. The error is an ErrInvalid if the descriptor belongs
// to another file, or if the process is in another mount namespace.
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

// lent returns a duplicate of the descriptor that a caller has passed for a claim's own directory,
// or nil. The caller of lent must close the duplicate.
func (l *loans) lent(id string, c volume.Claim) *mount.Place {
	l.mu.Lock()
	defer l.mu.Unlock()
	ps := l.by[loanKey{id, c.Alloc, c.At}]
	if len(ps) == 0 {
		return nil
	}

	p, err := ps[len(ps)-1].Duplicate()
	if err != nil {
		return nil // the process has too many open files, and opening the path will report this error
	}
	return p
}

// lentSight observes the own directory of a claim without opening its path. It does so only while a
// caller passes a descriptor of the directory. Otherwise ok is false. lentSight asks the kernel
// only about the recorded mount. The bind step finds other mounts.
func (m *Manager) lentSight(id string, c volume.Claim) (s volume.Sight, ok bool) {
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
