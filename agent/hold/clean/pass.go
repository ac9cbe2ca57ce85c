package clean

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// each calls fn for each decoded value of a span.
func each[T any](ctx context.Context, s shared.Store, span shared.Span, fn func(shared.Entry[T]) error) error {
	return shared.Each(ctx, s, span, func(kv shared.KV) error {
		e, err := shared.Decode[T](kv)
		if err != nil {
			return err
		}
		return fn(e)
	})
}

// pass ends the calls and tasks of hosts that are gone. It returns when the next call is due, or 0.
func (c *Cleaner) pass(ctx context.Context) (due time.Duration, err error) {
	who, err := c.Asker()
	if err != nil {
		return 0, err
	}

	elected, plugins, lost := c.Elected(), candidate{c}.plugins(), candidate{c}.lost()
	calls := map[string]shared.Entry[shared.Call]{}
	if err := each(ctx, c.Store, shared.Calls(), func(e shared.Entry[shared.Call]) error {
		calls[e.Key] = e
		return nil
	}); err != nil {
		return 0, err
	}
	live, err := c.readLive(ctx, elected || len(plugins) > 0 || len(lost) > 0, calls)
	if err != nil {
		return 0, err
	}

	suspended, err := c.suspended(ctx)
	if err != nil {
		return 0, err
	}
	if suspended && elected {
		return c.retry(), nil // the others make a pass when the elected host asks for one
	}
	if suspended {
		return 0, nil
	}

	for _, key := range slices.Sorted(maps.Keys(calls)) {
		due = earlier(due, c.orphan(ctx, who, calls[key], live))
		if ctx.Err() != nil {
			return due, ctx.Err()
		}
	}
	c.forget(calls)
	due = earlier(due, lateCalls{c}.detachDue(ctx, who))

	start := func(host string, job func()) { c.jobs.start(fencingJob(host), job) }
	if !elected {
		if len(plugins) > 0 {
			attachments{c}.start(ctx, who, func(pluginID string) bool { return plugins[pluginID] })
		}
		if len(lost) == 0 {
			return due, nil
		}
		next, err := c.Fencer.PassFor(ctx, who, live, lost, start)
		return earlier(due, next), err
	}

	next, err := c.Fencer.Pass(ctx, who, live, start)
	if err != nil {
		return due, err
	}
	candidate{c}.passOn(ctx)
	next, err = heavy{c}.pass(ctx, who, live, earlier(due, next))
	return next, err
}

// liveAtOnce is the number of hosts in one read. etcd executes at most 128 operations in a transaction by default.
const liveAtOnce = 100

// readLive returns the live hosts: all of them, or only those among the executors of the calls. After an outage,
// all hosts make a pass at the same time. If each of them read all live hosts, the work of etcd would grow with
// the square of their number.
func (c *Cleaner) readLive(ctx context.Context, all bool, calls map[string]shared.Entry[shared.Call]) (map[string]shared.Live, error) {
	live := map[string]shared.Live{}
	add := func(e shared.Entry[shared.Live]) error {
		node, _ := shared.LastID(e.Key)
		live[node] = e.Value
		return nil
	}
	if all {
		err := each(ctx, c.Store, shared.Lives(), add)
		c.mu.Lock()
		c.live = len(live)
		c.mu.Unlock()
		return live, err
	}

	executors := map[string]bool{}
	for _, e := range calls {
		executors[e.Value.Executor] = true
	}
	for some := range slices.Chunk(slices.Sorted(maps.Keys(executors)), liveAtOnce) {
		var reads []shared.Op
		for _, node := range some {
			reads = append(reads, shared.Get(shared.LiveKey(node)))
		}
		res, err := c.Store.Do(ctx, shared.Txn{Then: reads})
		if err != nil {
			return nil, err
		}
		for _, kv := range slices.Concat(res.Reads...) {
			e, err := shared.Decode[shared.Live](kv)
			if err != nil {
				return nil, err
			}
			_ = add(e) // it returns no error
		}
	}
	return live, nil
}

// suspended reports whether the store was restored, and a person has not resumed the cluster yet. The
// keys about calls and attachments may then be older than the storage, so no host undoes anything.
func (c *Cleaner) suspended(ctx context.Context) (bool, error) {
	page, err := c.Store.Range(ctx, shared.Span{Key: shared.MetaKey}, 1, 0)
	if err != nil || len(page.KVs) == 0 {
		return false, err
	}
	m, err := shared.Decode[shared.Meta](page.KVs[0])
	return m.Value.Suspended != "", err
}

// forget forgets the calls that have ended.
func (c *Cleaner) forget(seen map[string]shared.Entry[shared.Call]) {
	maps.DeleteFunc(c.gone, func(key string, _ absence) bool { return !seen[key].Exists() })
	maps.DeleteFunc(c.asked, func(key string, _ time.Time) bool { return !seen[key].Exists() })

	c.mu.Lock()
	defer c.mu.Unlock()

	maps.DeleteFunc(c.late, func(key string, _ time.Time) bool { return !seen[key].Exists() && !c.jobs.runs(key) })
}

// definition reads the definition of a volume.
func (c *Cleaner) definition(ctx context.Context, id string) (v volume.Volume, ok bool, err error) {
	page, err := c.Store.Range(ctx, shared.Span{Key: shared.VolumeKey(id)}, 1, 0)
	if err != nil || len(page.KVs) == 0 {
		return v, false, err
	}
	e, err := shared.Decode[shared.Definition](page.KVs[0])
	v = e.Value.Volume
	v.Shared = true
	return v, err == nil, err
}

// endTasks deletes the tasks for which no announced call waits.
func (c *Cleaner) endTasks(ctx context.Context, who shared.Asker) error {
	return each(ctx, c.Store, shared.Tasks(), func(t shared.Entry[shared.Task]) error {
		executor, id, ok := shared.HoldIDs(t.Key)
		if !ok {
			return nil
		}
		res, err := c.Store.Do(ctx, shared.Txn{Then: shared.ErrandReads(c.Node, executor, id)})
		if err != nil {
			return err
		}
		e, err := shared.ParseErrand(c.Node, executor, id, res)
		if err != nil || e.Valid() {
			return err
		}

		txn, err := e.Withdraw(who)
		if err != nil || len(txn.Then) == 0 {
			return err
		}
		_, err = c.Store.Do(ctx, txn) // if the task has changed, the next pass looks again
		return err
	})
}
