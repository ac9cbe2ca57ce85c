// Package reconcile brings volumes to what their claims want. It is a keyed
// queue: one worker at a time for each volume, each doing one step a turn:
//
//	load → observe → volume.Next → one action → volume.Apply → save
//
// What to do is decided by the pure functions of the domain, how it is done by
// the Host it is given. Tries and due times are kept here, in memory, and one
// timer serves all volumes. A volume with nothing to do costs nothing.
package reconcile

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/volmgr/volume"
)

// Store holds the records.
type Store interface {
	Volume(id string) (volume.Record, bool)
	Volumes() []volume.Record
	// Save changes a record that exists, in memory whatever the error. fn says how
	// soon it has to be on disk; volume.SaveFirst is waited for.
	Save(ctx context.Context, id string, fn func(volume.Record) (volume.Record, volume.Saving)) error
	// Intend changes a record that exists, on disk or not at all.
	Intend(ctx context.Context, id string, fn func(volume.Record) volume.Record) error
}

// Plugins tells how a plugin is.
type Plugins interface {
	View(pluginID string) volume.PluginView
}

// Host looks at this host and does single steps on it and at plugins.
type Host interface {
	// Observe looks at all paths of a record but the one that was looked at just
	// now. It is bounded.
	Observe(ctx context.Context, r volume.Record, now volume.Glimpse) volume.Observed
	// Do does one step.
	Do(ctx context.Context, r volume.Record, a volume.Action, p volume.PluginView) volume.Outcome
}

// Options are what a Queue needs.
type Options struct {
	Store   Store
	Plugins Plugins
	Host    Host
	Events  func([]volume.Event) // also of what failed just as before; must not block
	Log     hclog.Logger
	// Crashed is set if the last agent did not end in order, and the host was not started
	// anew since. Begun names the volumes of snapshots that were begun then.
	Crashed bool
	Begun   []string
	// Halt says why no call may be sent at all; empty when they may.
	Halt string
	// Owed says what a forced deregister left of a storage volume; empty if
	// nothing. It comes before anything is made of it. May be nil.
	Owed func(volume.Volume) string
	// Paid is told of a debt of which nothing is left, again and again until it is
	// dropped. May be nil.
	Paid func(volume.Record)
}

// Queue is the reconcile queue. Its methods are safe for concurrent use.
type Queue struct {
	o      Options
	timers *timers

	mu      sync.Mutex
	stopped bool
	down    bool // the host goes down
	entries map[string]*entry
	waiters map[string]chan struct{} // closed and removed at the next change

	suspects map[string]*suspect // by volume
	workers  sync.WaitGroup
	glances  chan struct{} // held for each look of a sweep

	ctx    context.Context // of steps; cancelled when a stop runs out of patience
	cancel context.CancelFunc
}

// New returns a queue that does nothing until volumes are woken.
func New(o Options) *Queue {
	q := &Queue{o: o, suspects: suspects(o, time.Now()), entries: map[string]*entry{}, waiters: map[string]chan struct{}{}, glances: make(chan struct{}, glancesAtOnce)}
	q.ctx, q.cancel = context.WithCancel(context.Background())
	q.timers = newTimers(func(id string) { q.wake(id, looked) })
	return q
}

// Start looks at every volume once, as after a restart of the agent.
func (q *Queue) Start() { q.sweep(q.o.Store.Volumes(), looked) }

// Wake looks at a volume again, and tries at once what was put off: there is a
// new intent.
func (q *Queue) Wake(id string) { q.wake(id, asked) }

// Advance is Wake for a claim that was made or is to go. It does not look at claims that are
// settled, so its cost does not grow with their number.
func (q *Queue) Advance(id string) { q.wake(id, claimed) }

// PluginChanged looks again at the volumes of a plugin that became ready, or
// whose process is another one now.
func (q *Queue) PluginChanged(pluginID string) {
	q.mu.Lock()
	for id, s := range q.suspects {
		if s.plugin == pluginID {
			q.suspected(id, time.Now()) // it learns which process was found first
		}
	}
	q.mu.Unlock()
	all := q.o.Store.Volumes()
	q.sweep(slices.DeleteFunc(all, func(r volume.Record) bool { return r.Volume.PluginID != pluginID }), changed)
}

// Stop starts no more steps and waits for those in hand. When ctx ends first
// they are cancelled, and their outcome is recorded as unknown. It reports
// whether the outcome of every step is on record.
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
	case <-time.After(time.Second): // a call that ignores its context
		return false
	}
}

// Changed returns a channel that is closed when a claim of the volume was
// mounted or is gone, a step failed, or there is nothing to do any more; not at
// each step between. Take it, then read, then wait.
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

// Exclusive runs fn while no call for the volume runs, nor one for what a forced
// deregister left of the same storage: one call in flight for each storage
// volume, whoever makes it. The id may be the key of a debt; that stands for the
// storage alone. It returns ctx's error if that ends first.
func (q *Queue) Exclusive(ctx context.Context, id string, fn func() error) error {
	return q.alone(ctx, id, func() error {
		r, ok := q.o.Store.Volume(id)
		if ok && !r.Debt && r.Volume.ExternalID != "" {
			return q.alone(ctx, storage(r), fn)
		}
		return fn()
	})
}

// alone runs fn while it holds one entry. Whoever needs two takes a volume's
// before its storage's, so that nobody waits for each other.
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

// storage is the key of whatever is owed for a volume's storage.
func storage(r volume.Record) string { return volume.DebtKey(r.Volume.Driver, r.Volume.ExternalID) }

// Call is Exclusive for a call that creates or deletes the volume: it shows as
// the step that the volume is at, while it runs and once it failed.
// As Change does, it waits for a call of an agent that died.
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

// Abandon gives up the call in hand for a volume, as its deadline would: whoever
// asks does not want to wait for the plugin. What it may still do is watched for.
// A call that was decided on and has not begun is not made.
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

// Yield breaks off the step in hand for a volume if that may be left half done: to
// give what is in a volume to its owner can take long, and a claim is to go. If it is
// still wanted it is gone on with afterwards. One that was decided on and has not begun
// is decided on again.
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

// Look observes a volume for people, with what the queue knows of it. What it
// finds to be done is begun.
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
	if !known { // nothing is kept of a volume because somebody looks at it
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

// Last returns the step that a volume is at and how it went, without a look at
// the host; nil if there is none.
func (q *Queue) Last(r volume.Record) *volume.Attempt {
	q.mu.Lock()
	defer q.mu.Unlock()
	if e, known := q.entries[r.Key()]; known {
		return e.foremost(r)
	}
	return nil
}

// Attempt returns the step that one claim of a volume is at, or the volume as a
// whole; nil if there is none.
func (q *Queue) Attempt(id, alloc string) *volume.Attempt {
	q.mu.Lock()
	defer q.mu.Unlock()
	e, ok := q.entries[id]
	if !ok {
		return nil
	}
	return e.attempt(func(a volume.Action) bool { return a.Alloc == "" || a.Alloc == alloc })
}

// Forget drops what is kept of a volume that is no more. While a call for it is
// still in flight that is put off, so that a new volume of the same id waits.
func (q *Queue) Forget(id string) {
	q.mu.Lock()
	if e, ok := q.entries[id]; ok && e.refs == 0 {
		delete(q.entries, id)
	}
	q.mu.Unlock()
	q.notify(id)
}

// release gives an entry back; the last one to do so drops it, unless there is
// something to be kept of a volume that still is.
func (q *Queue) release(id string, e *entry) {
	_, exists := q.o.Store.Volume(id)
	q.mu.Lock()
	defer q.mu.Unlock()
	if e.refs--; e.refs == 0 && (!exists || e.empty(time.Now())) {
		delete(q.entries, id)
	}
}

// entry returns what is kept of a volume, or begins to; mu is held.
func (q *Queue) entry(id string) *entry {
	e, ok := q.entries[id]
	if !ok {
		e = newEntry()
		q.entries[id] = e
	}
	return e
}

// why a volume is woken.
type why int

const (
	looked  why = iota // to look whether something is due
	changed            // something changed, which failed steps may have failed for
	asked              // there is a new intent
	claimed            // that is about claims alone
)

// wake makes sure that a worker looks at the volume after this moment.
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

// begin has a worker take another turn; mu is held.
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

// InPlace looks whether a claim's mounts are those that were made for it.
func (q *Queue) InPlace(ctx context.Context, r volume.Record, alloc string) bool {
	c := r.Claims[alloc]
	r.Claims = map[string]volume.Claim{alloc: c}
	r.Node.Watches, r.Node.StagingPath = nil, ""
	obs := q.o.Host.Observe(ctx, r, volume.Glimpse{})
	return c.InPlace(obs.Targets[alloc], obs.Binds[alloc])
}

// notify tells all who wait for a change of the volume.
func (q *Queue) notify(id string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if ch, ok := q.waiters[id]; ok {
		close(ch)
		delete(q.waiters, id)
	}
}
