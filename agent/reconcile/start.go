package reconcile

import (
	"context"
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// New returns a queue. The queue does nothing until the caller wakes a volume.
func New(o Options) *Queue {
	q := &Queue{o: o, suspects: newSuspects(o, time.Now()), entries: map[string]*entry{}, changes: changes{waiters: map[string]chan struct{}{}}, glances: make(chan struct{}, glancesAtOnce)}
	q.ctx, q.cancel = context.WithCancel(context.Background())
	q.timers = newTimers(func(id string) { q.wake(id, checkDue) })
	return q
}

// Start observes every volume once, because the host may have changed while the agent was down.
func (q *Queue) Start() { sweep{q, checkDue}.start(q.o.Store.Volumes()) }

// Stop starts no further step and waits for the running steps. If ctx ends first, Stop cancels
// these steps and records that their outcome is unknown. Stop reports whether the outcome of every
// step was recorded.
func (q *Queue) Stop(ctx context.Context) bool {
	q.mu.Lock()
	q.stopped = true
	q.mu.Unlock()
	q.timers.stop()
	done := make(chan struct{})
	go func() { q.workers.Wait(); close(done) }()
	defer q.cancel()

	select {
	case <-done:
		return true
	case <-ctx.Done():
	}

	q.cancel()
	select {
	case <-done:
		return true
	case <-time.After(time.Second): // a step ignores the end of its context
		return false
	}
}

// Call does the same as Exclusive, for a call that creates or deletes the volume. The status of the
// volume shows the call while it runs and after it has failed. Before it starts the call, Call
// waits until no call of a crashed agent can still run.
func (q *Queue) Call(ctx context.Context, id string, step call.Method, fn func() error) error {
	if err := q.awaitQuiet(ctx, id); err != nil {
		return err
	}

	return q.Exclusive(ctx, id, func() error {
		q.mu.Lock()
		e := q.entry(id)
		e.beginOutside(step)
		q.mu.Unlock()
		q.notify(id)
		err := fn()
		q.mu.Lock()
		e.endOutside(err)
		q.mu.Unlock()
		return err
	})
}

// Abandon cancels the running call for a volume, for a caller that does not want to wait for the
// plugin. The queue then treats the call like a call that has timed out: it watches for late
// effects. If the queue has chosen a call but not started it, Abandon drops the call.
func (q *Queue) Abandon(id string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	e, ok := q.entries[id]

	switch {
	case !ok:
	case e.abandon != nil:
		e.abandon()
	default:
		e.stale = true
	}
}

// Yield cancels the current step of a volume if the agent can safely leave the step unfinished. For
// example, changing the owner of all files can take long, and must not delay a detach. The queue
// later continues the step if a claim still needs it. If the queue has chosen a step but not
// started it, the queue chooses again.
func (q *Queue) Yield(id string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	e, ok := q.entries[id]

	switch {
	case !ok:
	case e.running == nil:
		e.stale = true
	case e.running.Action.Kind == volume.Own && e.abandon != nil:
		e.abandon()
	}
}

// PluginChanged observes the volumes of a plugin that has become ready or runs in a new process.
func (q *Queue) PluginChanged(pluginID string) {
	q.mu.Lock()
	for id, s := range q.suspects {
		if s.plugin == pluginID {
			// until stores the incarnation of the plugin's first known process
			q.suspects.until(id, q.o.Plugins, time.Now())
		}
	}
	q.mu.Unlock()

	all := q.o.Store.Volumes()
	sweep{q, causeGone}.start(slices.DeleteFunc(all, func(r volume.Record) bool { return r.Volume.PluginID != pluginID }))
}
