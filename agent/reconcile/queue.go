// Package reconcile mounts, unmounts and expands volumes until they match their claims. It is a
// queue with one entry for each volume. A volume has at most one worker, which does one step in
// each turn:
//
//	load → observe → volume.Next → one action → volume.Apply → save
//
// Pure functions in package volume choose the next step, and the Host performs it. The queue keeps
// the number of attempts and the times of the next retries in memory. One timer serves all volumes.
// A volume without pending work needs no memory and no goroutine.
package reconcile

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// Store reads and saves the volume records.
type Store interface {
	Volume(id string) (volume.Record, bool)
	Volumes() []volume.Record
	// Save changes an existing record. The function fn returns the changed record, and how soon the
	// record must be on disk. With volume.SaveFirst, Save waits until the record is on disk. The
	// change stays in memory even if Save returns an error.
	Save(ctx context.Context, id string, fn func(volume.Record) (volume.Record, volume.Saving)) error
	// Intend changes an existing record and waits until the record is on disk. If it fails, the
	// record stays unchanged.
	Intend(ctx context.Context, id string, fn func(volume.Record) volume.Record) error
}

// Plugins reports the state of plugins.
type Plugins interface {
	View(pluginID string) plugin.View
}

// Host observes this host. It performs single steps on the host and calls plugins.
type Host interface {
	// Observe observes all paths of a record within a limited time. The argument now is an
	// observation of one path that the caller has just made, so Observe skips this path.
	Observe(ctx context.Context, r volume.Record, now volume.Glimpse) volume.Observed
	// Do performs one step.
	Do(ctx context.Context, r volume.Record, a volume.Action, p plugin.View) volume.Outcome
}

// Options contains the dependencies and settings of a Queue.
type Options struct {
	Store   Store
	Plugins Plugins
	Host    Host
	Events  func([]volume.Event) // receives each event, including repeated failures; must not block
	Log     hclog.Logger
	// Crashed is set if the previous agent process did not shut down properly and the host has not
	// rebooted since. Begun contains the ids of the volumes that had an unfinished snapshot at the
	// crash.
	Crashed bool
	Begun   []string
	// Halt is the reason why the queue must not send any call. It is empty if calls are allowed.
	Halt string
	// Blocked describes the pending calls for the storage of a volume after a forced deregister. It
	// returns "" if no call is pending. The agent makes the pending calls before it uses the
	// storage. Blocked may be nil.
	Blocked func(volume.Volume) string
	// Cluster returns the state of the cluster for a shared volume. It is nil if no cluster is
	// configured. The queue then leaves shared volumes as they are.
	Cluster func(volume.Record) volume.Cluster

	// Borrow returns the view of a plugin for a shared volume. If this host has no controller of the
	// plugin, the view contains the controllers of other hosts. Borrow may be nil.
	Borrow func(volume.Volume, plugin.View) plugin.View
	// Idle is called when this host no longer uses a shared volume. It may be nil.
	Idle func(context.Context, volume.Record) error
	// Undone is called when a leftover record has no pending calls left. The queue calls it
	// repeatedly until the record is deleted. Undone returns the id of a volume that was waiting
	// for the deletion, or "". Undone may be nil.
	Undone func(volume.Record) (waiting string)
}

// Queue is the reconcile queue. Its methods are safe for concurrent use.
type Queue struct {
	changes
	o      Options
	timers *timers

	mu      sync.Mutex
	stopped bool
	down    bool // the host is shutting down
	entries map[string]*entry

	suspects suspects
	workers  sync.WaitGroup
	glances  chan struct{} // a semaphore that limits the observations of sweeps; see glancesAtOnce

	ctx    context.Context // context of all steps; Stop cancels it when its own wait times out
	cancel context.CancelFunc
}

// changes notifies the callers that wait for a change of a volume.
type changes struct {
	waitersMu sync.Mutex
	// a channel for each volume id; closed and removed when the volume changes
	waiters map[string]chan struct{}
}

// Wake observes a volume again and retries its postponed steps at once. It is called after a new
// intent.
func (q *Queue) Wake(id string) { q.wake(id, asked) }

// Advance wakes a volume like Wake, for a claim that was made or detached. It skips the observation
// of settled claims, so its cost does not grow with the number of such claims.
func (q *Queue) Advance(id string) { q.wake(id, claimed) }

// Changed returns a channel that is closed when the volume changes. A change is: a claim is mounted
// or gone, a step has failed, or no work remains. An intermediate step does not close the channel.
// To miss no change, the caller first gets the channel, then reads the record, and then waits.
func (c *changes) Changed(id string) <-chan struct{} {
	c.waitersMu.Lock()
	defer c.waitersMu.Unlock()
	ch, ok := c.waiters[id]
	if !ok {
		ch = make(chan struct{})
		c.waiters[id] = ch
	}

	return ch
}

// Last returns the current or last step of a volume with its result, or nil. It does not observe
// the host.
func (q *Queue) Last(r volume.Record) *volume.Attempt {
	q.mu.Lock()
	defer q.mu.Unlock()
	if e, known := q.entries[r.Key()]; known {
		return e.foremost(r)
	}
	return nil
}

// Attempt returns the current or last step that concerns the claim of alloc, including steps of the
// whole volume. It returns nil if there is no such step.
func (q *Queue) Attempt(id, alloc string) *volume.Attempt {
	q.mu.Lock()
	defer q.mu.Unlock()
	if e, ok := q.entries[id]; ok {
		return e.attempt(func(a volume.Action) bool { return a.Alloc == "" || a.Alloc == alloc })
	}
	return nil
}

// Forget deletes the entry of a volume that no longer exists. While a call is running, it keeps the
// entry, so that a new volume with the same id waits for this call.
func (q *Queue) Forget(id string) {
	q.mu.Lock()
	if e, ok := q.entries[id]; ok && e.refs == 0 {
		delete(q.entries, id)
	}
	q.mu.Unlock()
	q.notify(id)
}

// release drops one reference to an entry. When the last reference is dropped, release deletes the
// entry, unless the volume still exists and the entry contains state that must be kept.
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
	checkDue  why = iota // a step may be due
	causeGone            // the reason for earlier failures may be gone
	asked                // a record has a new intent
	claimed              // a record has a new intent that concerns only claims
)

// wake ensures that a worker observes the volume after this call.
func (q *Queue) wake(id string, because why) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped {
		return
	}

	e := q.entry(id)
	if because != checkDue {
		e.due(because != causeGone)
	}

	e.whole = e.whole || because != claimed
	q.startTurn(id, e)
}

// notify wakes all callers that wait for a change of the volume.
func (c *changes) notify(id string) {
	c.waitersMu.Lock()
	defer c.waitersMu.Unlock()
	if ch, ok := c.waiters[id]; ok {
		close(ch)
		delete(c.waiters, id)
	}
}

// Exclusive runs fn while no call runs for the volume. Meanwhile, the queue also makes no pending
// calls for the same storage, which a forced deregister may have left. So a storage volume never
// has more than one running call. The id may also be the key of a leftover record. Exclusive then
// excludes only calls for the storage of this record. If ctx ends before fn starts, Exclusive
// returns the error of ctx.
func (q *Queue) Exclusive(ctx context.Context, id string, fn func() error) error {
	return q.holdEntry(ctx, id, func() error {
		r, ok := q.o.Store.Volume(id)
		if ok && !r.Leftover && r.Volume.ExternalID != "" {
			return q.holdEntry(ctx, storage(r), fn)
		}
		return fn()
	})
}

// holdEntry runs fn while it holds the semaphore of one entry. A caller that needs two entries must
// hold the entry of the volume before the entry of the storage; otherwise two callers could
// deadlock.
func (q *Queue) holdEntry(ctx context.Context, key string, fn func() error) error {
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

// storage returns the key under which a leftover record for the storage of a volume is stored.
func storage(r volume.Record) string { return volume.LeftoverKey(r.Volume.Driver, r.Volume.ExternalID) }

// startTurn makes the worker of a volume run another turn. If no worker is running, it starts one.
// The caller holds mu.
func (q *Queue) startTurn(id string, e *entry) {
	if q.stopped {
		return
	}

	e.again = true
	if !e.working {
		e.working = true
		e.refs++
		q.workers.Add(1)
		go (&worker{q, id, e}).run()
	}
}
