package jobs

import (
	"sync"

	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/localdriver/csierr"
)

// Locks decides which calls may use a volume, snapshot or group at the same time. It combines two
// kinds of locks: one for calls, and one for long copies.
type Locks struct {
	busy    KeyLock // the keys are ids of volumes, snapshots and groups
	readers readers
}

// Try locks an id, even while its data is being copied. The result ok is false if another call
// holds the lock.
func (l *Locks) Try(id string) (unlock func(), ok bool) { return l.busy.Try(id) }

// LockToRelease locks a volume or snapshot for a call that only removes mounts or makes another
// copy. Such a call may run while the data is being copied.
func (l *Locks) LockToRelease(id string) (func(), error) {
	unlock, ok := l.busy.Try(id)
	if !ok {
		return nil, csierr.Errorf(codes.Aborted, "another operation on %q is running", id)
	}
	return unlock, nil
}

// Lock locks a volume or snapshot for a call that must not run during a copy of its data.
func (l *Locks) Lock(id string) (func(), error) {
	unlock, err := l.LockToRelease(id)
	if err != nil {
		return nil, err
	}
	if err := l.readers.check(id); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// BeginCopy registers that the data of an id is being copied. The caller must call the function end
// when the copy ends.
func (l *Locks) BeginCopy(id string, p *Progress) (end func()) { return l.readers.begin(id, p) }

// readers contains the volumes and snapshots whose data is being copied, which can take a long
// time. Until the copy ends, the driver may unmount such a volume, but must not mount it for a new
// writer or delete it.
type readers struct {
	mu sync.Mutex
	by map[string][]*Progress
}

// begin registers that the data of an id is being copied. The caller must call the function end
// when the copy ends.
func (r *readers) begin(id string, p *Progress) (end func()) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.by == nil {
		r.by = map[string][]*Progress{}
	}
	r.by[id] = append(r.by[id], p)
	return sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()

		for i, q := range r.by[id] {
			if q == p {
				r.by[id] = append(r.by[id][:i:i], r.by[id][i+1:]...)
				break
			}
		}

		if len(r.by[id]) == 0 {
			delete(r.by, id)
		}
	})
}

// check returns ABORTED if the data of an id is being copied.
func (r *readers) check(id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.by[id]; len(p) > 0 {
		return csierr.Errorf(codes.Aborted, "%q is being copied, so far %s; it can be used when that is done", id, p[0])
	}
	return nil
}
