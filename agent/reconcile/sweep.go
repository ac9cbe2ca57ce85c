package reconcile

import "github.com/volagent/volagent/volmgr/volume"

// glancesAtOnce limits the concurrent observations of all sweeps. Each observation has a time
// limit, so hung mounts only slow a sweep down.
const glancesAtOnce = 32

// sweep observes many volumes and wakes those that need work. For a settled volume it needs neither
// a worker nor an entry, because a host may have thousands of claims.
func (q *Queue) sweep(rs []volume.Record, because why) {
	ids := make([]string, 0, len(rs))
	for _, r := range rs {
		switch id := r.Key(); {
		case r.Leftover: // wake it, so that a leftover record without leftovers is deleted
			q.wake(id, because)
		case !r.Held() && !r.Expanding():
			q.notify(id)
		case q.known(id):
			q.wake(id, because)
		default:
			ids = append(ids, id)
		}
	}

	q.background(func() {
		for _, id := range ids {
			select {
			case q.glances <- struct{}{}:
			case <-q.ctx.Done():
				return
			}
			if !q.background(func() {
				defer func() { <-q.glances }()
				q.glance(id, because)
			}) {
				return
			}
		}
	})
}

// glance observes a volume and wakes it unless it is settled.
func (q *Queue) glance(id string, because why) {
	r, ok := q.o.Store.Volume(id)
	if !ok {
		return
	}

	obs := q.o.Host.Observe(q.ctx, r, volume.Glimpse{})
	q.mu.Lock()
	q.complete(&obs, r, newEntry())
	q.mu.Unlock()
	if volume.Next(r, obs).Kind != volume.Settled {
		q.wake(id, because)
		return
	}
	q.notify(id)
}

// known reports whether a volume has an entry.
func (q *Queue) known(id string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.entries[id] != nil
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
