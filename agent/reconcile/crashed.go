package reconcile

import (
	"context"
	"errors"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// atWork is why a call is put off that would change the storage of a volume.
const atWork = "a call of the agent that died may still be at work on it"

// suspect is a volume on which a call of an agent that died may still be at work.
type suspect struct {
	plugin string
	since  time.Time // when this agent began
	of     uint64    // the incarnation of the plugin that may be at work; 0 is not known yet
}

// suspects are the volumes that the records, and the snapshots that were begun, tell of
// as unsettled. All others wait for nothing.
func suspects(o Options, now time.Time) map[string]*suspect {
	all := map[string]*suspect{}
	if !o.Crashed {
		return all
	}
	begun := map[string]bool{}
	for _, id := range o.Begun {
		begun[id] = true
	}
	for _, r := range o.Store.Volumes() {
		if !r.Debt && (begun[r.Volume.ID] || r.Unsettled()) {
			all[r.Volume.ID] = &suspect{plugin: r.Volume.PluginID, since: now}
		}
	}
	return all
}

// suspected returns until when a call of an agent that died may be at work on a volume;
// ok is false if none can be any more. That is one deadline of the plugin from the start
// of this agent, or until the plugin is started again; mu is held.
func (q *Queue) suspected(id string, now time.Time) (until time.Time, ok bool) {
	s, ok := q.suspects[id]
	if !ok {
		return until, false
	}
	p := q.o.Plugins.View(s.plugin)
	if s.of == 0 {
		s.of = p.Incarnation
	}
	// The incarnation of a plugin in parts is its node part's.
	restarted := p.Apart == nil && p.Ready && p.Incarnation != s.of
	until = s.since.Add(max(deadline(p.CallTimeout), deadline(p.ControllerTimeout)))
	if restarted || now.After(until) {
		delete(q.suspects, id)
		return until, false
	}
	return until, true
}

// quiet waits until no call of an agent that died can be at work on a volume.
func (q *Queue) quiet(ctx context.Context, id string) error {
	for {
		q.mu.Lock()
		until, ok := q.suspected(id, time.Now())
		q.mu.Unlock()
		if !ok {
			return nil
		}
		select {
		case <-time.After(min(quietEvery, time.Until(until)+time.Millisecond)): // a restart of the plugin gives no sign here
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return volume.Errorf(volume.ErrTimeout, "nothing was asked of the plugin for volume %q: %s, at most until %s", id, atWork, until.Format(time.TimeOnly)).
					WithHint("run the same again")
			}
			return ctx.Err()
		}
	}
}

// quietEvery is how often quiet looks for a restart of the plugin.
const quietEvery = 200 * time.Millisecond

// Change is Exclusive for a call that changes the storage of a volume. It waits as long
// as a call of an agent that died may be at work on the volume, and is refused while
// calls are pending that a forced deregister left for the same storage.
func (q *Queue) Change(ctx context.Context, id string, fn func() error) error {
	if err := q.quiet(ctx, id); err != nil {
		return err
	}
	return q.Exclusive(ctx, id, func() error {
		if r, ok := q.o.Store.Volume(id); ok && !r.Debt && q.o.Owed != nil {
			if owed := q.o.Owed(r.Volume); owed != "" {
				return volume.Errorf(volume.ErrRefused, "volume %q cannot be changed yet: %s", id, owed).WithHint("volctl node status")
			}
		}
		return fn()
	})
}
