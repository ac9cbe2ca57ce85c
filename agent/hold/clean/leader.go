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

	// Asks counts how often a host has asked all others for a pass. AskedBy is the last of these hosts.
	Asks    int    `json:"asks,omitempty"`
	AskedBy string `json:"asked_by,omitempty"`

	// Compare contains the hosts that compare the attachments for the elected host, by plugin, because
	// the elected host has no controller of the plugin. A named host does it in each of its passes.
	Compare map[string]string `json:"compare,omitempty"`

	// Fence contains the hosts that fence a lost host for the elected host, by lost host, because the fence
	// hooks of the elected host are missing or have failed.
	Fence map[string]string `json:"fence,omitempty"`
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

		c.setElected(true)
		c.lead(ctx, lease)
		c.setElected(false)
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
				if now.Value.Asks != seen.Value.Asks && now.Value.AskedBy != c.Node {
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
			spans := []shared.Span{shared.Lives(), shared.AllWanted(), {Key: shared.LeaderKey}}
			for evs := range c.Store.Watch(ctx, spans, page.Revision+1) {
				if slices.ContainsFunc(evs.Changes, c.wakes) {
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

// wakes reports whether a change asks for a pass: a host has come or gone, waits for a further volume, or asks
// all others for a pass.
func (c candidate) wakes(change shared.Change) bool {
	switch {
	case shared.Lives().Contains(change.Key):
		return true
	case change.Key == shared.LeaderKey && !change.Deleted:
		l, err := shared.Decode[leader](change.KV)
		return err == nil && l.Value.AskedBy != "" && l.Value.AskedBy != c.Node
	default:
		return !change.Deleted && change.Create == change.Mod
	}
}

// entrust records the plugins whose attachments this host compares for the elected host, and the lost hosts that
// it fences. A further one makes it begin with a pass now.
func (c candidate) entrust(l leader) {
	plugins, lost := ownKeys(l.Compare, c.Node), ownKeys(l.Fence, c.Node)

	c.mu.Lock()
	further := more(c.entrusted, plugins) || more(c.fences, lost)
	c.entrusted, c.fences = plugins, lost
	c.mu.Unlock()
	if further {
		c.Wake()
	}
}

// ownKeys returns the keys of a map whose value is a host.
func ownKeys(all map[string]string, node string) map[string]bool {
	own := map[string]bool{}
	for key, host := range all {
		if host == node {
			own[key] = true
		}
	}
	return own
}

// more reports whether now has a key that had does not have.
func more(had, now map[string]bool) bool {
	return slices.ContainsFunc(slices.Collect(maps.Keys(now)), func(key string) bool { return !had[key] })
}

// lost returns the lost hosts that this host fences for the elected host.
func (c candidate) lost() map[string]bool {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.fences
}

// plugins returns the plugins whose attachments this host compares for the elected host.
func (c candidate) plugins() map[string]bool {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.entrusted
}

// askOthers asks all other hosts for a pass, because this host cannot end a call. It reports whether
// the other hosts learn of it. Every host may ask, also the one that a person has told of a host that is off.
func (c *Cleaner) askOthers(ctx context.Context) bool {
	return c.changeLeader(ctx, func(l *leader) bool {
		l.Asks, l.AskedBy = l.Asks+1, c.Node
		return true
	})
}

// publish changes the key of this host as the elected host, unless change returns false. It reports
// whether the other hosts see the change.
func (c *Cleaner) publish(ctx context.Context, change func(*leader) bool) bool {
	return c.changeLeader(ctx, func(l *leader) bool { return l.Node == c.Node && change(l) })
}

// changeLeader changes the key of the elected host, unless change returns false. The key keeps its lease.
func (c *Cleaner) changeLeader(ctx context.Context, change func(*leader) bool) bool {
	page, err := c.Store.Range(ctx, shared.Span{Key: shared.LeaderKey}, 1, 0)
	if err != nil || len(page.KVs) == 0 {
		return false
	}
	e, err := shared.Decode[leader](page.KVs[0])
	if err != nil || e.Lease == 0 || !change(&e.Value) {
		return false
	}

	res, err := c.Store.Do(ctx, shared.Txn{
		If: []shared.Compare{shared.Unchanged(e.KV)}, Then: []shared.Op{shared.PutLeased(e.Key, e.Encode(e.Value), e.Lease)},
	})
	if err != nil {
		c.Log.Warn("cannot ask the other hosts to clean up; they do it at their next pass", "error", err)
	}
	return err == nil && res.Done
}

// passOn names the hosts that fence a lost host in place of this host, the elected one, in its key. The next pass
// repeats it if it fails.
func (c candidate) passOn(ctx context.Context) {
	now := c.Fencer.PassedOn()
	c.mu.Lock()
	same := maps.Equal(c.passed, now)
	c.mu.Unlock()
	if same {
		return
	}

	known := false
	done := c.publish(ctx, func(l *leader) bool {
		known = maps.Equal(l.Fence, now)
		l.Fence = now
		return !known
	})
	if done || known {
		c.mu.Lock()
		c.passed = now
		c.mu.Unlock()
	}
}

// setElected records whether this host is elected.
func (c candidate) setElected(elected bool) {
	c.mu.Lock()
	c.elected = elected
	if !elected {
		c.findings, c.passed = nil, nil
	}
	c.mu.Unlock()

	if elected {
		c.Log.Debug("this host cleans up in the cluster")
	}
}
