package clean

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// rangePage is the number of keys in one page of a long read.
const rangePage = 500

// each calls fn for each key of a span.
func each[T any](ctx context.Context, s shared.Store, span shared.Span, fn func(shared.Entry[T]) error) error {
	for {
		page, err := s.Range(ctx, span, rangePage, 0)
		if err != nil {
			return err
		}
		for _, kv := range page.KVs {
			e, err := shared.Decode[T](kv)
			if err != nil {
				return err
			}
			if err := fn(e); err != nil {
				return err
			}
			span.Key = kv.Key + "\x00"
		}
		if !page.More {
			return nil
		}
	}
}

// pass ends the calls and tasks of hosts that are gone. It returns when the next call is due, or 0.
func (c *Cleaner) pass(ctx context.Context) (due time.Duration, err error) {
	who, err := c.Asker()
	if err != nil {
		return 0, err
	}

	live := map[string]bool{}
	if err := each(ctx, c.Store, shared.Lives(), func(e shared.Entry[shared.Live]) error {
		node, _ := shared.LastID(e.Key)
		live[node] = true
		return nil
	}); err != nil {
		return 0, err
	}

	seen := map[string]bool{}
	err = each(ctx, c.Store, shared.Calls(), func(e shared.Entry[shared.Call]) error {
		seen[e.Key] = true
		wait := c.orphan(ctx, who, e, live)
		if wait > 0 && (due == 0 || wait < due) {
			due = wait
		}
		return ctx.Err()
	})
	if err != nil {
		return due, err
	}
	for key := range c.gone {
		if !seen[key] {
			delete(c.gone, key)
		}
	}

	if !c.Elected() {
		return due, nil
	}
	if err := c.endTasks(ctx, who); err != nil {
		return due, err
	}
	return due, c.examine(ctx)
}

// orphan takes over one call if its executor has been gone for one deadline. It returns how long it
// must still wait, or 0.
func (c *Cleaner) orphan(ctx context.Context, who shared.Asker, e shared.Entry[shared.Call], live map[string]bool) time.Duration {
	id, _ := shared.LastID(e.Key)
	one := e.Value
	if one.TakenOver(c.Node) { // an earlier pass has taken it over, and has not ended it
		if one.Incarnation != who.Incarnation && c.late[e.Key].IsZero() {
			c.late[e.Key] = time.Now().Add(defaultDeadline) // the call of an earlier agent may still take effect
		}
		if left := time.Until(c.late[e.Key]); left > 0 {
			return left
		}
		c.finish(ctx, who, id, one)
		return c.retry()
	}
	delete(c.late, e.Key)
	if live[one.Executor] || one.Executor == c.Node {
		delete(c.gone, e.Key)
		return 0
	}
	if one.Target != "" && live[one.Target] && one.Target != c.Node {
		return 0 // the target takes the call back
	}

	had, ok := c.gone[e.Key]
	if !ok || had.executor != one.Executor || had.mod != e.Mod {
		had = absence{executor: one.Executor, mod: e.Mod, since: time.Now()}
		c.gone[e.Key] = had
	}

	def, ok, err := c.definition(ctx, id)
	if err != nil {
		return c.retry()
	}
	patience := c.deadline(def.PluginID)
	if !c.Elected() && one.Target != c.Node {
		patience *= 2 // the elected host does it first
	}
	if left := patience - time.Since(had.since); left > 0 {
		return left
	}
	if ok && one.Target != c.Node && !c.able(def, one) {
		return 0 // a host with a controller does it
	}

	c.takeOver(ctx, who, id, one)
	return c.retry()
}

// retry returns the wait before another try of a step that may have failed.
func (c *Cleaner) retry() time.Duration { return c.Every / 10 }

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

// examine looks for keys that contradict each other. It changes nothing.
func (c *Cleaner) examine(ctx context.Context) error {
	k := keys{nodes: map[string]bool{}, holds: map[[2]string]shared.Hold{}, calls: map[string]bool{}}
	// A hold and its use change together. The reads are at different revisions, so a contradiction
	// counts only if a second look shows it too.
	first, err := c.contradictions(ctx, k)
	if err != nil || len(first) == 0 {
		c.setFindings(first)
		return err
	}

	pause(ctx, c.retry())
	k = keys{nodes: map[string]bool{}, holds: map[[2]string]shared.Hold{}, calls: map[string]bool{}}
	second, err := c.contradictions(ctx, k)
	if err == nil {
		c.setFindings(slices.DeleteFunc(second, func(f string) bool { return !slices.Contains(first, f) }))
	}
	return err
}

// setFindings stores the findings, and logs the new ones.
func (c *Cleaner) setFindings(found []string) {
	c.mu.Lock()
	defer c.mu.Unlock()

	for _, f := range found {
		if !slices.Contains(c.findings, f) {
			c.Log.Warn("the cluster's keys need a look: " + f)
		}
	}
	c.findings = found
}

// keys contains what the search for contradictions has read.
type keys struct {
	nodes map[string]bool
	holds map[[2]string]shared.Hold // by host and volume
	calls map[string]bool
}

// contradictions returns a description of each contradiction.
func (c *Cleaner) contradictions(ctx context.Context, k keys) (found []string, err error) {
	if err := each(ctx, c.Store, shared.Nodes(), func(e shared.Entry[shared.Node]) error {
		node, _ := shared.LastID(e.Key)
		k.nodes[node] = true
		return nil
	}); err != nil {
		return nil, err
	}
	if err := each(ctx, c.Store, shared.Calls(), func(e shared.Entry[shared.Call]) error {
		id, _ := shared.LastID(e.Key)
		k.calls[id] = true
		return nil
	}); err != nil {
		return nil, err
	}
	if err := each(ctx, c.Store, shared.Holds(), func(e shared.Entry[shared.Hold]) error {
		node, id, _ := shared.HoldIDs(e.Key)
		k.holds[[2]string{node, id}] = e.Value
		if !k.nodes[node] {
			found = append(found, fmt.Sprintf("host %q holds volume %q, and is not registered", node, id))
		}
		return nil
	}); err != nil {
		return nil, err
	}

	if err := each(ctx, c.Store, shared.Uses(), func(e shared.Entry[shared.Use]) error {
		id, _ := shared.LastID(e.Key)
		if h := e.Value.Holder; h != "" && k.holds[[2]string{h, id}].Operation == "" {
			found = append(found, fmt.Sprintf("volume %q shows host %q as its holder, and the host has no hold", id, h))
		}
		return nil
	}); err != nil {
		return nil, err
	}
	if err := each(ctx, c.Store, shared.AllUsers(), func(e shared.Entry[shared.User]) error {
		id, node, _ := shared.HoldIDs(e.Key)
		if k.holds[[2]string{node, id}].Operation == "" {
			found = append(found, fmt.Sprintf("volume %q shows host %q as a user, and the host has no hold", id, node))
		}
		return nil
	}); err != nil {
		return nil, err
	}

	err = each(ctx, c.Store, shared.Volumes(), func(e shared.Entry[shared.Definition]) error {
		id, _ := shared.LastID(e.Key)
		state := e.Value.Volume.Provision
		if state != volume.Provisioned && !k.calls[id] {
			found = append(found, fmt.Sprintf("volume %q is %s, and no host makes the call; repeat it", id, state))
		}
		return nil
	})
	return found, err
}
