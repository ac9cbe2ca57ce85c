// Package reconcile brings volumes to the state that their claims want. It is a keyed queue. Each
// volume has at most one worker, which does one step a turn:
//
//	load → observe → volume.Next → one action → volume.Apply → save
//
// The pure functions of the domain decide which step is next, and the Host performs it. The queue
// keeps the number of tries and the due times in memory. One timer serves all volumes. A volume
// without pending work costs nothing.
package reconcile

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/volmgr/volume"
)

// Store stores the records.
type Store interface {
	Volume(id string) (volume.Record, bool)
	Volumes() []volume.Record
	// Save changes an existing record. Memory keeps the change even if Save returns an error. fn
	// also returns how soon the record must be on disk. If that is volume.SaveFirst, Save waits for
	// it.
	Save(ctx context.Context, id string, fn func(volume.Record) (volume.Record, volume.Saving)) error
	// Intend changes an existing record and waits until it is on disk. If it fails, nothing
	// changes.
	Intend(ctx context.Context, id string, fn func(volume.Record) volume.Record) error
}

// Plugins reports the state of plugins.
type Plugins interface {
	View(pluginID string) volume.PluginView
}

// Host observes this host, and performs single steps on it and at plugins.
type Host interface {
	// Observe observes all paths of a record except the one in now, which was observed a moment
	// ago. Its duration is bounded.
	Observe(ctx context.Context, r volume.Record, now volume.Glimpse) volume.Observed
	// Do performs one step.
	Do(ctx context.Context, r volume.Record, a volume.Action, p volume.PluginView) volume.Outcome
}

// Options holds the dependencies of a Queue.
type Options struct {
	Store   Store
	Plugins Plugins
	Host    Host
	Events  func([]volume.Event) // also receives repeated failures; must not block
	Log     hclog.Logger
	// Crashed is set if the last agent did not shut down properly and the host has not rebooted
	// since. Begun names the volumes of snapshots that had been begun at that time.
	Crashed bool
	Begun   []string
	// Halt is the reason why no call may be sent at all. It is empty if calls are allowed.
	Halt string
	// Blocked describes the pending calls for a volume's storage after a forced deregister, or returns
	// "". The agent makes these calls before it uses the storage. The function may be nil.
	Blocked func(volume.Volume) string
	// Undone is called when a record of pending calls has none left, repeatedly until the record is
	// dropped. It returns a volume that waited for that, or "". Undone may be nil.
	Undone func(volume.Record) (waiting string)
}

// Queue is the reconcile queue. Its methods are safe for concurrent use.
type Queue struct {
	o      Options
	timers *timers

	mu      sync.Mutex
	stopped bool
	down    bool // the host is shutting down
	entries map[string]*entry
	waiters map[string]chan struct{} // closed and removed at the next change

	suspects map[string]*suspect // by volume
	workers  sync.WaitGroup
	glances  chan struct{} // held during each observation of a sweep

	ctx    context.Context // context of steps; cancelled when Stop waits no longer
	cancel context.CancelFunc
}

// New returns a queue that does nothing until a volume is woken.
func New(o Options) *Queue {
	q := &Queue{o: o, suspects: suspects(o, time.Now()), entries: map[string]*entry{}, waiters: map[string]chan struct{}{}, glances: make(chan struct{}, glancesAtOnce)}
	q.ctx, q.cancel = context.WithCancel(context.Background())
	q.timers = newTimers(func(id string) { q.wake(id, looked) })
	return q
}

// Start observes every volume once, as is necessary after a restart of the agent.
func (q *Queue) Start() { q.sweep(q.o.Store.Volumes(), looked) }

// Wake observes a volume again and retries its postponed steps at once, because of a new intent.
func (q *Queue) Wake(id string) { q.wake(id, asked) }

// Advance is like Wake, for a claim that was made or must go. It does not observe settled claims,
// so its cost does not grow with their number.
func (q *Queue) Advance(id string) { q.wake(id, claimed) }

// PluginChanged observes the volumes of a plugin that became ready or runs in a new process.
func (q *Queue) PluginChanged(pluginID string) {
	q.mu.Lock()
	for id, s := range q.suspects {
		if s.plugin == pluginID {
			q.suspected(id, time.Now()) // records the plugin's first known process
		}
	}
	q.mu.Unlock()

	all := q.o.Store.Volumes()
	q.sweep(slices.DeleteFunc(all, func(r volume.Record) bool { return r.Volume.PluginID != pluginID }), changed)
}

// Stop starts no more steps and waits for the running ones. If ctx ends first, it cancels them and
// their outcome is recorded as unknown. Stop reports whether the outcome of every step was
// recorded.
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
	case <-time.After(time.Second): // a call ignores its context
		return false
	}
}

// Changed returns a channel that is closed at the next change of the volume: a claim was mounted or
// is gone, a step failed, or no work remains. Intermediate steps do not close it. Get the channel
// first, then read the record, then wait.
func (q *Queue) Changed(id string) <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	ch, ok := q.waiters[id]
	if !ok {
		ch = make(chan struct{})
		q.waiters[id] = ch
	}

	return ch
}

// Exclusive runs fn while no call runs for the volume, nor a pending call for the same storage
// after a forced deregister. So each storage volume has at most one call in flight, regardless of
// its source. The id may also be the key of a record of pending calls, which represents only the
// storage. Exclusive returns ctx's error if ctx ends before fn starts.
func (q *Queue) Exclusive(ctx context.Context, id string, fn func() error) error {
	return q.alone(ctx, id, func() error {
		r, ok := q.o.Store.Volume(id)
		if ok && !r.Leftover && r.Volume.ExternalID != "" {
			return q.alone(ctx, storage(r), fn)
		}
		return fn()
	})
}

// alone runs fn while it holds one entry. A caller that needs two entries must take the volume's
// entry before the storage's, to avoid a deadlock.
func (q *Queue) alone(ctx context.Context, key string, fn func() error) error {
	q.mu.Lock()
	e := q.entry(key)
	e.refs++
	q.mu.Unlock()
	defer q.release(key, e)
	if err := e.lock(ctx); err != nil {
		return err
	}
	defer q.notify(key)
	defer e.unlock()
	return fn()
}

// storage returns the key of the pending calls for a volume's storage.
func storage(r volume.Record) string { return volume.LeftoverKey(r.Volume.Driver, r.Volume.ExternalID) }

// Call is like Exclusive, for a call that creates or deletes the volume. It shows as the volume's
// current step while it runs and after it failed. Like Change, it first waits for calls of a
// crashed agent.
func (q *Queue) Call(ctx context.Context, id string, step volume.Kind, fn func() error) error {
	if err := q.quiet(ctx, id); err != nil {
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

// Abandon cancels the current call for a volume, as its deadline would, for a caller that does not
// want to wait for the plugin. The queue watches for late effects of the call. A call that was
// decided on but has not started is dropped.
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

// Yield cancels the current step of a volume if the step may be left incomplete. Changing the owner
// of all files in a volume can take long, and must not delay the detach of a claim. If the step is
// still wanted, the queue continues it later. A step that was decided on but has not started is
// decided again.
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

// Look observes a volume for a person and adds the queue's own state. If it finds a step to do, it
// starts a worker.
func (q *Queue) Look(ctx context.Context, r volume.Record) (volume.Observed, *volume.Attempt) {
	obs := q.o.Host.Observe(ctx, r, volume.Glimpse{})
	_, exists := q.o.Store.Volume(r.Key())
	q.mu.Lock()
	defer q.mu.Unlock()
	if !exists {
		q.complete(&obs, r, newEntry())
		return obs, nil
	}

	e, known := q.entries[r.Key()]
	if !known { // looking at a volume must not create an entry
		e = newEntry()
	}

	q.complete(&obs, r, e)
	if k := volume.Next(r, obs).Kind; k != volume.Settled && k != volume.Wait {
		e := q.entry(r.Key())
		e.whole = true
		q.begin(r.Key(), e)
	}

	return obs, e.foremost(r)
}

// Last returns the current or last step of a volume and its result, or nil. It does not observe the
// host.
func (q *Queue) Last(r volume.Record) *volume.Attempt {
	q.mu.Lock()
	defer q.mu.Unlock()
	if e, known := q.entries[r.Key()]; known {
		return e.foremost(r)
	}
	return nil
}

// Attempt returns the current or last step of one claim or of the whole volume, or nil.
func (q *Queue) Attempt(id, alloc string) *volume.Attempt {
	q.mu.Lock()
	defer q.mu.Unlock()
	e, ok := q.entries[id]
	if !ok {
		return nil
	}
	return e.attempt(func(a volume.Action) bool { return a.Alloc == "" || a.Alloc == alloc })
}

// Forget drops the entry of a volume that no longer exists. If a call is still in flight, the entry
// stays until the call ends, so that a new volume with the same id waits for it.
func (q *Queue) Forget(id string) {
	q.mu.Lock()
	if e, ok := q.entries[id]; ok && e.refs == 0 {
		delete(q.entries, id)
	}
	q.mu.Unlock()
	q.notify(id)
}

// release drops a reference to an entry. The last one deletes the entry, unless the volume still
// exists and the entry has state to keep.
func (q *Queue) release(id string, e *entry) {
	_, exists := q.o.Store.Volume(id)
	q.mu.Lock()
	defer q.mu.Unlock()
	if e.refs--; e.refs == 0 && (!exists || e.empty(time.Now())) {
		delete(q.entries, id)
	}
}

// entry returns the entry of a volume, and creates it if necessary. The caller holds mu.
func (q *Queue) entry(id string) *entry {
	e, ok := q.entries[id]
	if !ok {
		e = newEntry()
		q.entries[id] = e
	}
	return e
}

// why is the reason for waking a volume.
type why int

const (
	looked  why = iota // check whether something is due
	changed            // a change may have removed the cause of failures
	asked              // there is a new intent
	claimed            // the new intent concerns only claims
)

// wake ensures that a worker observes the volume after this moment.
func (q *Queue) wake(id string, because why) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped {
		return
	}

	e := q.entry(id)
	if because != looked {
		e.due(because != changed)
	}

	e.whole = e.whole || because != claimed
	q.begin(id, e)
}

// begin makes a worker take another turn. The caller holds mu.
func (q *Queue) begin(id string, e *entry) {
	if q.stopped {
		return
	}

	e.again = true
	if !e.working {
		e.working = true
		e.refs++
		q.workers.Add(1)
		go q.work(id, e)
	}
}

// InPlace reports whether a claim's mounts are the ones that were made for it.
func (q *Queue) InPlace(ctx context.Context, r volume.Record, alloc string) bool {
	c := r.Claims[alloc]
	r.Claims = map[string]volume.Claim{alloc: c}
	r.Node.Watches, r.Node.StagingPath = nil, ""
	obs := q.o.Host.Observe(ctx, r, volume.Glimpse{})
	return c.InPlace(obs.Targets[alloc], obs.Binds[alloc])
}

// notify wakes all callers that wait for a change of the volume.
func (q *Queue) notify(id string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if ch, ok := q.waiters[id]; ok {
		close(ch)
		delete(q.waiters, id)
	}
}
