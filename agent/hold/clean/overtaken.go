package clean

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/volagent/volagent/volmgr/shared"
)

// target is a host to which a volume may be attached by a late ControllerPublishVolume.
type target struct{ id, node, nodeID string }

// Overtaken notes that this host has made a ControllerPublishVolume for another host, and that the call
// was taken over meanwhile, because this host was paused. The call may have attached the volume after
// the host that took it over had detached it. After the given time, the call has no further effect. The
// next pass then detaches the volume, unless the host of the attachment has a hold.
func (c *Cleaner) Overtaken(id, node, nodeID string, wait time.Duration) {
	c.mu.Lock()
	c.overtaken[target{id, node, nodeID}] = time.Now().Add(wait)
	c.mu.Unlock()
	c.Wake()
}

// lateCalls is the part of a pass that ends the attachments of late calls.
type lateCalls struct{ *Cleaner }

// detachDue ends the attachments that late calls of this host have made. It returns when the next
// one is due, or 0.
func (c lateCalls) detachDue(ctx context.Context, who shared.Asker) (due time.Duration) {
	c.mu.Lock()
	all := maps.Clone(c.overtaken)
	c.mu.Unlock()

	for t, end := range all {
		wait := time.Until(end)
		if wait <= 0 && !c.detachLate(ctx, who, t) {
			wait = c.retry()
		}
		if wait > 0 {
			due = earlier(due, wait)
			continue
		}

		c.mu.Lock()
		if c.overtaken[t].Equal(end) {
			delete(c.overtaken, t)
		}
		c.mu.Unlock()
		due = earlier(due, c.retry())
	}
	return due
}

// detachLate ends the attachment of a late call. It returns false if it must be called again.
func (c lateCalls) detachLate(ctx context.Context, who shared.Asker, t target) (done bool) {
	v, ok, err := c.definition(ctx, t.id)
	if err != nil || !ok {
		return err == nil // without a definition, no storage is known
	}
	o, err := c.orphanOf(ctx, t.id, shared.Call{Executor: c.Node, Target: t.node})
	if err != nil || o.Call.Exists() {
		return false
	}

	timeout := c.View(v.PluginID).ControllerTimeout
	txn, err := o.BeginUnpublish(who, t.nodeID, timeout, time.Now().UTC())
	if errors.Is(err, shared.ErrNotOrphan) {
		return true // the host has a hold, and its record decides about the attachment
	}
	if err != nil {
		return false
	}
	if res, err := c.Store.Do(ctx, txn); err != nil || !res.Done {
		return false
	}

	c.Log.Warn("a controller call of this host was taken over, and may have attached the volume later; the volume is detached", "volume", t.id, "host", t.node)
	c.finish(ctx, who, t.id, shared.Call{Executor: c.Node, Target: t.node, NodeID: t.nodeID, Taken: true, Deadline: timeout})
	return true // the next pass finds the announcement, if the call fails
}

// earlier returns the shorter of two waits, of which 0 means none.
func earlier(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}
