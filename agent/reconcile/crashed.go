package reconcile

import (
	"context"
	"errors"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// atWork is the reason that the queue shows when it postpones a call that would change the storage
// of a volume.
const atWork = "a call of the crashed agent may still be running"

// suspect is a volume on which a call of a crashed agent may still be running.
type suspect struct {
	plugin string
	since  time.Time // when this agent started
	of     uint64    // incarnation of the plugin process that may still run the call; 0 if unknown
}

// suspects contains the volumes on which a call of a crashed agent may still be running.
type suspects map[string]*suspect

// newSuspects returns the volumes whose record is not settled and the volumes that have an
// unfinished snapshot. Calls for other volumes need not wait.
func newSuspects(o Options, now time.Time) suspects {
	all := suspects{}
	if !o.Crashed {
		return all
	}

	begun := map[string]bool{}
	for _, id := range o.Begun {
		begun[id] = true
	}

	for _, r := range o.Store.Volumes() {
		if !r.Leftover && (begun[r.Volume.ID] || r.Unsettled()) {
			all[r.Volume.ID] = &suspect{plugin: r.Volume.PluginID, since: now}
		}
	}

	return all
}

// until reports whether a call of a crashed agent may still be running on a volume. It also returns
// the latest time at which such a call ends: one call deadline after the start of this agent. If
// the plugin restarts, the call has already ended. The caller holds Queue.mu.
func (all suspects) until(id string, plugins Plugins, now time.Time) (until time.Time, ok bool) {
	s, ok := all[id]
	if !ok {
		return until, false
	}

	p := plugins.View(s.plugin)
	if s.of == 0 {
		s.of = p.Incarnation
	}

	// If the plugin has separate parts, p.Incarnation is the incarnation of the node part.
	restarted := p.Apart == nil && p.Ready && p.Incarnation != s.of
	until = s.since.Add(max(deadline(p.CallTimeout), deadline(p.ControllerTimeout)))
	if restarted || now.After(until) {
		delete(all, id)
		return until, false
	}

	return until, true
}

// awaitQuiet waits until no call of a crashed agent can still be running on a volume.
func (q *Queue) awaitQuiet(ctx context.Context, id string) error {
	for {
		q.mu.Lock()
		until, ok := q.suspects.until(id, q.o.Plugins, time.Now())
		q.mu.Unlock()
		if !ok {
			return nil
		}
		select {
		// Poll, because awaitQuiet receives no signal when the plugin restarts.
		case <-time.After(min(quietEvery, time.Until(until)+time.Millisecond)):
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return volume.Errorf(volume.ErrTimeout, "cannot call the plugin for volume %q yet: %s, at most until %s", id, atWork, until.Format(time.TimeOnly)).
					WithHint("repeat the command")
			}

			return ctx.Err()
		}
	}
}

// quietEvery is the interval at which awaitQuiet checks for a restart of the plugin.
const quietEvery = 200 * time.Millisecond

// Change does the same as Exclusive, for a call that changes the storage of a volume. Before it
// starts the call, Change waits until no call of a crashed agent can still be running on the
// volume. It refuses the call if a forced deregister has left pending calls for the same storage.
func (q *Queue) Change(ctx context.Context, id string, fn func() error) error {
	if err := q.awaitQuiet(ctx, id); err != nil {
		return err
	}

	return q.Exclusive(ctx, id, func() error {
		if r, ok := q.o.Store.Volume(id); ok && !r.Leftover && q.o.Blocked != nil {
			if owed := q.o.Blocked(r.Volume); owed != "" {
				return volume.Errorf(volume.ErrRefused, "volume %q cannot be changed yet: %s", id, owed).WithHint("volctl node status")
			}
		}

		return fn()
	})
}
