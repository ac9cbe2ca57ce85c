package clean

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/backoff"
	"github.com/volagent/volagent/volmgr/shared"
)

// leader is the value of the key of the elected host.
type leader struct {
	Node string `json:"node"`

	// Asks counts how often the elected host has asked the others for a pass.
	Asks int `json:"asks,omitempty"`

	// Compare contains the hosts that compare the attachments for the elected host, by plugin, because
	// the elected host has no controller of the plugin. A named host does it in each of its passes.
	Compare map[string]string `json:"compare,omitempty"`
}

// candidate is the part of a Cleaner that takes part in the election.
type candidate struct{ *Cleaner }

// campaign takes part in the election until ctx ends. While this host is elected, it watches which
// hosts are alive.
func (c candidate) campaign(ctx context.Context) {
	for ; ctx.Err() == nil; backoff.Pause(ctx, rand.N(c.TTL/5)) { // the hosts do not all stand at the same time
		lease, won := c.stand(ctx)
		if !won {
			continue
		}

		c.setElected(true, lease)
		c.lead(ctx, lease)
		c.setElected(false, 0)
		_ = c.Store.Revoke(context.WithoutCancel(ctx), lease) // otherwise the lease ends by itself
	}
}

// stand tries to become the elected host. If another host is elected, it waits until that host is
// not elected any more.
func (c candidate) stand(ctx context.Context) (lease shared.Lease, won bool) {
	key := shared.Span{Key: shared.LeaderKey}
	page, err := c.Store.Range(ctx, key, 1, 0)
	if err != nil {
		return 0, false
	}
	if len(page.KVs) > 0 {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer c.entrust(leader{})
		seen, _ := shared.Decode[leader](page.KVs[0])
		c.entrust(seen.Value)
		for evs := range c.Store.Watch(ctx, []shared.Span{key}, page.Revision+1) {
			over := len(evs.Changes) > 0 && evs.Changes[len(evs.Changes)-1].Deleted
			if evs.Err != nil || over {
				break
			}
			for _, change := range evs.Changes {
				now, err := shared.Decode[leader](change.KV)
				if err != nil {
					continue
				}
				if now.Value.Asks != seen.Value.Asks {
					c.Wake()
				}
				c.entrust(now.Value)
				seen = now
			}
		}
		return 0, false
	}

	if _, err := c.Asker(); err != nil {
		return 0, false // a host that is not registered writes nothing, because the keys may not be of its cluster
	}
	lease, err = c.Store.Grant(ctx, c.TTL)
	if err != nil {
		return 0, false
	}
	value := shared.Entry[leader]{}.Encode(leader{Node: c.Node})
	res, err := c.Store.Do(ctx, shared.Txn{
		If: []shared.Compare{shared.Absent(shared.LeaderKey)}, Then: []shared.Op{shared.PutLeased(shared.LeaderKey, value, lease)},
	})
	if err != nil || !res.Done {
		_ = c.Store.Revoke(context.WithoutCancel(ctx), lease)
		return 0, false
	}
	return lease, true
}

// lead renews the lease, and follows the live hosts and the volumes that hosts wait for. It ends when the
// lease is lost, when this host has not been registered for as long as the lease lasts, or with ctx.
func (c candidate) lead(ctx context.Context, lease shared.Lease) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	go func() {
		for ; ctx.Err() == nil; backoff.Pause(ctx, c.TTL/5) {
			page, err := c.Store.Range(ctx, shared.Lives(), 1, 0)
			if err != nil {
				continue
			}
			c.Wake() // hosts may have come and gone before this revision
			for evs := range c.Store.Watch(ctx, []shared.Span{shared.Lives(), shared.AllWanted()}, page.Revision+1) {
				if slices.ContainsFunc(evs.Changes, wakes) {
					c.Wake()
				}
			}
		}
	}()

	registered := time.Now()
	for renewed := time.Now(); time.Since(renewed) < c.TTL && ctx.Err() == nil; backoff.Pause(ctx, c.TTL/5) {
		if _, _, err := c.Store.Renew(ctx, lease); err == nil {
			renewed = time.Now()
		}
		if _, err := c.Asker(); err == nil {
			registered = time.Now()
		}
		if time.Since(registered) > c.TTL {
			return // another host can clean up
		}
	}
}

// wakes reports whether a change asks for a pass: a host has come or gone, or waits for a further volume.
func wakes(c shared.Change) bool {
	if shared.Lives().Contains(c.Key) {
		return true
	}
	return !c.Deleted && c.Create == c.Mod
}

// entrust records the plugins whose attachments this host compares for the elected host. A further
// plugin makes it begin with a pass now.
func (c candidate) entrust(l leader) {
	now := map[string]bool{}
	for pluginID, node := range l.Compare {
		if node == c.Node {
			now[pluginID] = true
		}
	}

	c.mu.Lock()
	further := slices.ContainsFunc(slices.Collect(maps.Keys(now)), func(id string) bool { return !c.entrusted[id] })
	c.entrusted = now
	c.mu.Unlock()
	if further {
		c.Wake()
	}
}

// plugins returns the plugins whose attachments this host compares for the elected host.
func (c candidate) plugins() map[string]bool {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.entrusted
}

// askOthers asks all other hosts for a pass, because this host cannot end a call. It reports whether
// the other hosts learn of it.
func (c *Cleaner) askOthers(ctx context.Context) bool {
	return c.publish(ctx, func(l *leader) bool { l.Asks++; return true })
}

// publish changes the key of this host as the elected host, unless change returns false. It reports
// whether the other hosts see the change.
func (c *Cleaner) publish(ctx context.Context, change func(*leader) bool) bool {
	page, err := c.Store.Range(ctx, shared.Span{Key: shared.LeaderKey}, 1, 0)
	if err != nil || len(page.KVs) == 0 {
		return false
	}
	e, err := shared.Decode[leader](page.KVs[0])
	c.mu.Lock()
	lease := c.lease
	c.mu.Unlock()
	if err != nil || e.Value.Node != c.Node || lease == 0 {
		return false
	}

	if !change(&e.Value) {
		return false
	}
	res, err := c.Store.Do(ctx, shared.Txn{
		If: []shared.Compare{shared.Unchanged(e.KV)}, Then: []shared.Op{shared.PutLeased(e.Key, e.Encode(e.Value), lease)},
	})
	if err != nil {
		c.Log.Warn("cannot ask the other hosts to clean up; they do it at their next pass", "error", err)
	}
	return err == nil && res.Done
}

// setElected records whether this host is elected, and its lease.
func (c candidate) setElected(elected bool, lease shared.Lease) {
	c.mu.Lock()
	c.elected, c.lease = elected, lease
	if !elected {
		c.findings = nil
	}
	c.mu.Unlock()

	if elected {
		c.Log.Debug("this host cleans up in the cluster")
	}
}
