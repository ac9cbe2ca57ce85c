package reconcile

import "github.com/volagent/volagent/volmgr/volume"

// glancesAtOnce limits how many observations all sweeps together make at the same time. Each
// observation has a time limit, so hung mounts only slow down a sweep.
const glancesAtOnce = 32

// sweep observes many volumes and wakes those that need work. A settled volume needs neither a
// worker nor an entry in the queue, because a host may have thousands of claims.
type sweep struct {
	q       *Queue
	because why
}

// start wakes the volumes that certainly need a worker, and observes the others in the background.
func (s sweep) start(rs []volume.Record) {
	ids := make([]string, 0, len(rs))
	for _, r := range rs {
		switch id := r.Key(); {
		case r.Leftover: // the worker deletes the record if no pending calls remain
			s.q.wake(id, s.because)
		case !r.Held() && !r.Expanding():
			s.q.notify(id)
		case s.hasEntry(id):
			s.q.wake(id, s.because)
		default:
			ids = append(ids, id)
		}
	}

	s.q.background(func() {
		for _, id := range ids {
			select {
			case s.q.glances <- struct{}{}:
			case <-s.q.ctx.Done():
				return
			}
			if !s.q.background(func() {
				defer func() { <-s.q.glances }()
				s.observe(id)
			}) {
				return
			}
		}
	})
}

// observe observes a volume and wakes it unless it is settled.
func (s sweep) observe(id string) {
	r, ok := s.q.o.Store.Volume(id)
	if !ok {
		return
	}

	obs := s.q.o.Host.Observe(s.q.ctx, r, volume.Glimpse{})
	s.q.mu.Lock()
	(&worker{s.q, id, newEntry()}).addState(&obs, r)
	s.q.mu.Unlock()
	if volume.Next(r, obs).Kind != volume.Settled {
		s.q.wake(id, s.because)
		return
	}
	s.q.notify(id)
}

// hasEntry reports whether a volume has an entry.
func (s sweep) hasEntry(id string) bool {
	s.q.mu.Lock()
	defer s.q.mu.Unlock()
	return s.q.entries[id] != nil
}

// background runs fn as part of the work for which Stop waits. It returns false if Stop has begun.
func (q *Queue) background(fn func()) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped {
		return false
	}

	q.workers.Go(fn)
	return true
}
