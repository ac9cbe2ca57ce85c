package reconcile

import (
	"context"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// pluginWithin limits how long a host that shuts down waits for a plugin that is not ready. A
// plugin that is restarting becomes ready within that time. A plugin that was shut down before its
// volumes does not.
const pluginWithin = 10 * time.Second

// GoDown removes all mounts and stagings from this host, because the host shuts down. The claims
// stay wanted. From now on the queue makes nothing new. GoDown waits until all volumes are off the
// host or ctx ends. It returns the records of the volumes that are still on the host.
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

// onlyUndo forgets failures to make things, and cancels an Own step, which may be left incomplete.
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

// offHost waits until a volume is off this host. It returns the current record, and whether part of
// the volume is still on the host. Once soon is closed, it does not wait for a plugin that is not
// ready.
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
