package clean

import (
	"context"
	"errors"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// able reports whether this host can end a call. Only ControllerUnpublishVolume needs a controller, and
// the secrets of the volume.
func (c *Cleaner) able(v volume.Volume, one shared.Call) bool {
	if one.Target == "" {
		return true
	}
	if _, err := c.Secrets(v); err != nil {
		return false
	}
	view := c.View(v.PluginID)
	return view.Info.HasController && view.Info.Driver == v.Driver && view.ReadyFor(call.ControllerUnpublish)
}

// orphanOf reads the keys about a call.
func (c *Cleaner) orphanOf(ctx context.Context, id string, one shared.Call) (shared.Orphan, error) {
	res, err := c.Store.Do(ctx, shared.Txn{Then: shared.OrphanReads(c.Node, id, one)})
	if err != nil {
		return shared.Orphan{}, err
	}
	return shared.ParseOrphan(c.Node, id, one, res)
}

// takeOver takes over a call whose executor is gone. It detaches the call's target if the call
// changes an attachment, and this host is able to do that. The result due is the time until the next
// try, or 0. The result ask reports that another host must end the call.
func (c *Cleaner) takeOver(ctx context.Context, who shared.Asker, id string, one shared.Call, able bool) (due time.Duration, ask bool) {
	o, err := c.orphanOf(ctx, id, one)
	if err != nil {
		return c.retry(), false
	}

	// The target takes the call back if its record explains it. The record then leads to the next call.
	txn, err := o.Reclaim(who)
	reclaimed := err == nil
	if errors.Is(err, shared.ErrNotOrphan) && able {
		txn, err = o.TakeOverCall(who, time.Now().UTC())
	}
	if errors.Is(err, shared.ErrNotOrphan) {
		return 0, !o.Served()
	}
	if err != nil {
		c.Log.Warn("cannot end the call of a host that is gone", "volume", id, "host", one.Executor, "call", one.Call, "error", err)
		return c.retry(), false
	}

	res, err := c.Store.Do(ctx, txn)
	if err != nil || !res.Done {
		return c.retry(), false // the next pass sees the outcome
	}
	c.Log.Warn("a host that made a controller call is gone; the outcome of the call is unknown", "volume", id, "host", one.Executor, "call", one.Call)

	taken := one
	taken.Executor, taken.Call, taken.Task = c.Node, call.ControllerUnpublish, ""
	if one.Target != "" && !reclaimed {
		c.finish(ctx, who, id, taken)
	}
	return c.retry(), false
}

// finish starts the end of a call that this host has taken over.
func (c *Cleaner) finish(ctx context.Context, who shared.Asker, id string, one shared.Call) {
	c.jobs.start(shared.CallKey(id), func() { c.detach(ctx, who, id, one) })
}

// detach makes the ControllerUnpublishVolume of a call that this host has taken over, and ends the
// call. If it fails, the next pass repeats it.
func (c *Cleaner) detach(ctx context.Context, who shared.Asker, id string, one shared.Call) {
	if err := c.unpublish(ctx, id, one.NodeID); err != nil {
		var ce *volume.CallError
		if errors.As(err, &ce) && ce.Uncertain() && !ce.Unsent {
			c.mu.Lock()
			c.late[shared.CallKey(id)] = time.Now().Add(deadline(one))
			c.mu.Unlock()
		}
		c.Log.Warn("cannot detach a volume from a host that is gone; it is tried again", "volume", id, "host", one.Target, "error", err)
		return
	}

	o, err := c.orphanOf(ctx, id, one)
	if err != nil {
		return
	}
	txn, err := o.EndTakenOver(who)
	if err != nil {
		return
	}
	_, _ = shared.DoSure(ctx, c.Store, txn) // if the keys have changed, the next pass repeats the call
}

// unpublish detaches a volume from a node. The controller may not know the volume or the node any more, for
// example because the machine was deleted. CSI permits this answer also if the volume is attached. It still
// counts as a success, because no permission rests on this detach. Either the target keeps its hold, or it has
// given the volume up, or a proof shows that the whole target cannot write. A detach that is the proof itself
// is made by package agent/hold/fence, and needs the answer OK.
func (c *Cleaner) unpublish(ctx context.Context, id, nodeID string) error {
	if nodeID == "" {
		return errors.New("the call names no node") // an empty id would detach every node
	}
	v, ok, err := c.definition(ctx, id)
	if err != nil || !ok {
		return err // without a definition, no storage is known
	}

	secrets, err := c.Secrets(v)
	if err != nil {
		return err
	}
	p, err := c.Plugin(v, call.ControllerUnpublish)
	if err != nil {
		return err
	}
	err = call.Run(ctx, p, call.ControllerUnpublishRequest{ExternalID: v.ExternalID, NodeID: nodeID, Secrets: secrets})
	var ce *volume.CallError
	if errors.As(err, &ce) && ce.Code == volume.CodeNotFound {
		return nil
	}
	return err
}
