package clean

import (
	"context"
	"errors"
	"time"

	"github.com/volagent/volagent/volmgr/shared"
)

// orphan ends one call if its executor has been gone for one deadline of the call. It returns how long
// it must still wait, or 0.
func (c *Cleaner) orphan(ctx context.Context, who shared.Asker, e shared.Entry[shared.Call], live map[string]shared.Live) time.Duration {
	one := e.Value
	executor, alive := live[one.Executor]
	outlived := one.Outlived(executor) // the executor may have been replaced
	serving, own := alive && !outlived, one.Executor == c.Node && !outlived
	fences := one.Fence && one.Executor == c.Node
	switch {
	case one.TakenOver(c.Node):
		return c.resume(ctx, who, e)
	case fences && c.jobs.runs(fencingJob(one.Target)):
		return c.retry() // the job ends the call
	case fences:
		serving, own = false, false
	case one.Forsaken(who):
		return c.endOwn(ctx, who, e)
	}
	if serving || own {
		delete(c.gone, e.Key)
		return 0
	}

	if left := c.patience(e); left > 0 {
		return left
	}

	id, _ := shared.LastID(e.Key)
	def, ok, err := c.definition(ctx, id)
	if err != nil {
		return c.retry()
	}
	able := !ok || c.able(def, one) // without a definition, no storage is known
	due, ask := c.takeOver(ctx, who, id, one, able)
	if ask && c.Elected() {
		c.ask(ctx, e.Key)
	}
	return due
}

// ask asks the other hosts, from time to time, to end a call. The target or a host with a controller
// can do that.
func (c *Cleaner) ask(ctx context.Context, key string) {
	if time.Since(c.asked[key]) < c.Every {
		return
	}
	if c.askOthers(ctx) {
		c.asked[key] = time.Now()
	}
}

// patience returns how long a call whose executor is gone may still have an effect.
func (c *Cleaner) patience(e shared.Entry[shared.Call]) time.Duration {
	if e.Value.Idle {
		return 0
	}
	had, ok := c.gone[e.Key]
	if !ok || had.executor != e.Value.Executor || had.mod != e.Mod {
		had = absence{executor: e.Value.Executor, mod: e.Mod, since: time.Now()}
		c.gone[e.Key] = had
	}
	return deadline(e.Value) - time.Since(had.since)
}

// resume ends a call that an earlier pass has taken over, and has not ended.
func (c *Cleaner) resume(ctx context.Context, who shared.Asker, e shared.Entry[shared.Call]) time.Duration {
	if c.jobs.runs(e.Key) {
		return c.retry()
	}
	if left := time.Until(c.lateUntil(e, who)); left > 0 {
		return left
	}

	// The pass has read the call earlier, so this host may have ended it, or another host may have
	// taken it over.
	id, _ := shared.LastID(e.Key)
	who, err := c.Asker()
	if err != nil {
		return c.retry()
	}
	o, err := c.orphanOf(ctx, id, e.Value)
	if err != nil {
		return c.retry()
	}
	if o.Call.Mod != e.Mod {
		return 0
	}

	def, ok, err := c.definition(ctx, id)
	if err != nil {
		return c.retry()
	}
	if ok && !c.able(def, e.Value) {
		return c.handOver(ctx, who, e, o)
	}
	c.finish(ctx, who, id, e.Value)
	return c.retry()
}

// handOver lets any able host end a call that this host has taken over and cannot end itself, because its
// plugin has no controller or is not ready.
func (c *Cleaner) handOver(ctx context.Context, who shared.Asker, e shared.Entry[shared.Call], o shared.Orphan) time.Duration {
	txn, err := o.HandOver(who)
	if err == nil {
		_, err = c.Store.Do(ctx, txn) // if the call has changed, the next pass looks again
	}
	if err != nil {
		return c.retry()
	}
	c.ask(ctx, e.Key)
	return c.retry()
}

// lateUntil returns the time after which earlier attempts to end a call can no longer take effect.
func (c *Cleaner) lateUntil(e shared.Entry[shared.Call], who shared.Asker) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()

	if e.Value.Incarnation < who.Incarnation && c.late[e.Key].IsZero() {
		c.late[e.Key] = time.Now().Add(deadline(e.Value)) // an earlier agent made the call
	}
	return c.late[e.Key]
}

// endOwn ends a storage call of an earlier agent of this host.
func (c *Cleaner) endOwn(ctx context.Context, who shared.Asker, e shared.Entry[shared.Call]) time.Duration {
	if left := c.patience(e); left > 0 {
		return left
	}

	id, _ := shared.LastID(e.Key)
	o, err := c.orphanOf(ctx, id, e.Value)
	if err != nil {
		return c.retry()
	}
	txn, err := o.EndOwn(who)
	if errors.Is(err, shared.ErrNotOrphan) {
		return 0
	}
	if err == nil {
		_, err = shared.DoSure(ctx, c.Store, txn)
	}
	if err != nil {
		c.Log.Warn("cannot end a call of an earlier agent; it is tried again", "volume", id, "call", e.Value.Call, "error", err)
	}
	return c.retry()
}

// retry returns the wait before another try of a step that may have failed.
func (c *Cleaner) retry() time.Duration { return c.Every / 10 }
