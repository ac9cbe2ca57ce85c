package reconcile

import (
	"context"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// pluginWithin limits how long a shutdown of the host waits for a plugin that is not ready. A
// plugin that is restarting becomes ready within this time. A plugin that has already been shut
// down does not.
const pluginWithin = 10 * time.Second

// GoDown unmounts and unstages all volumes because the host is shutting down. It keeps the claims.
// From now on, the queue mounts nothing. GoDown waits until no volume is mounted or ctx ends. It
// returns the records of the volumes that are still mounted.
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

// onlyUndo deletes the failures of all steps except undo steps. It also cancels an Own step,
// because the agent can safely leave such a step unfinished.
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

// offHost waits until a volume has no mount and no device on this host. It returns the current
// record, and whether the volume is still on the host. After soon is closed, offHost no longer
// waits for a plugin that is not ready.
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
