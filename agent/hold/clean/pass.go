package clean

import (
	"context"
	"maps"
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

	live := map[string]shared.Live{}
	if err := each(ctx, c.Store, shared.Lives(), func(e shared.Entry[shared.Live]) error {
		node, _ := shared.LastID(e.Key)
		live[node] = e.Value
		return nil
	}); err != nil {
		return 0, err
	}

	c.mu.Lock()
	c.live = len(live)
	c.mu.Unlock()

	suspended, err := c.suspended(ctx)
	if err != nil {
		return 0, err
	}
	if suspended && c.Elected() {
		return c.retry(), nil // the others make a pass when the elected host asks for one
	}
	if suspended {
		return 0, nil
	}

	seen := map[string]bool{}
	err = each(ctx, c.Store, shared.Calls(), func(e shared.Entry[shared.Call]) error {
		seen[e.Key] = true
		due = earlier(due, c.orphan(ctx, who, e, live))
		return ctx.Err()
	})
	if err != nil {
		return due, err
	}
	c.forget(seen)
	due = earlier(due, lateCalls{c}.detachDue(ctx, who))

	start := func(host string, job func()) { c.jobs.start(fencingJob(host), job) }
	if !c.Elected() {
		if plugins := (candidate{c}).plugins(); len(plugins) > 0 {
			attachments{c}.start(ctx, who, func(pluginID string) bool { return plugins[pluginID] })
		}
		lost := candidate{c}.lost()
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
func (c *Cleaner) forget(seen map[string]bool) {
	maps.DeleteFunc(c.gone, func(key string, _ absence) bool { return !seen[key] })
	maps.DeleteFunc(c.asked, func(key string, _ time.Time) bool { return !seen[key] })

	c.mu.Lock()
	defer c.mu.Unlock()

	maps.DeleteFunc(c.late, func(key string, _ time.Time) bool { return !seen[key] && !c.jobs.runs(key) })
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
