package reconcile

import "github.com/volagent/volagent/volmgr/volume"

// glancesAtOnce bounds the looks that sweeps have in hand. Each is bounded in
// time, so mounts that hang slow a sweep down and do not stop it.
const glancesAtOnce = 32

// sweep looks at many volumes and has those worked on for which there is
// something to do. Thousands of claims that are in place cost a look each, and
// neither a worker nor memory.
func (q *Queue) sweep(rs []volume.Record, because why) {
	ids := make([]string, 0, len(rs))
	for _, r := range rs {
		switch id := r.Key(); {
		case r.Debt: // one of which nothing is left is to be dropped
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

// glance looks at a volume and wakes it unless it is as it should be.
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

// known reports whether something is kept of a volume.
func (q *Queue) known(id string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.entries[id] != nil
}

// background runs fn as part of what Stop waits for; false if it has begun.
func (q *Queue) background(fn func()) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped {
		return false
	}
	q.workers.Go(fn)
	return true
}
