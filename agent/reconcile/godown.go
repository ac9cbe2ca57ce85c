package reconcile

import (
	"context"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// pluginWithin is how long a host that goes down waits for a plugin that is not
// ready: one that is restarting comes back, one that has ended before its volumes
// does not.
const pluginWithin = 10 * time.Second

// GoDown takes all volumes off this host because it goes down: mounts and stagings,
// whatever claims want, which stay wanted. Nothing is made from here on. It waits until
// that is done or ctx ends, and returns the records of which something is left.
func (q *Queue) GoDown(ctx context.Context) (left []volume.Record) {
	q.mu.Lock()
	q.down = true
	for _, e := range q.entries {
		e.onlyUndo()
	}
	q.mu.Unlock()
	all := q.o.Store.Volumes()
	for _, r := range all {
		if r.Held() {
			q.wake(r.Key(), asked)
		}
	}
	soon, cancel := context.WithTimeout(ctx, pluginWithin)
	defer cancel()
	for _, r := range all {
		if now, on := q.offHost(ctx, soon.Done(), r.Key()); on {
			left = append(left, now)
		}
	}
	return left
}

// onlyUndo drops what is known of failures to make something, and breaks off what may
// be left half done.
func (e *entry) onlyUndo() {
	for key, at := range e.failed {
		if at.Action.Wanted() {
			delete(e.failed, key)
			delete(e.exempt, key)
		}
	}
	if e.running != nil && e.running.Action.Kind == volume.Own && e.abandon != nil {
		e.abandon()
	}
}

// offHost waits until a volume is off this host. It returns it as it is then, and
// whether something of it is still here. Once soon is closed it does not wait for a
// plugin that is not ready.
func (q *Queue) offHost(ctx context.Context, soon <-chan struct{}, id string) (r volume.Record, on bool) {
	for {
		changed := q.Changed(id)
		r, ok := q.o.Store.Volume(id)
		if !ok || !r.OnHost() {
			return r, false
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return r, true
		case <-soon:
			if at := q.Last(r); at != nil && at.Err == nil && at.Action.Cause == volume.CausePlugin {
				return r, true
			}
			soon = nil
		}
	}
}
