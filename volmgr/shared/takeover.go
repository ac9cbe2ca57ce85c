package shared

import (
	"errors"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// Orphan contains the keys that decide about a call whose executor is gone.
type Orphan struct {
	Meta     Entry[Meta]
	Node     Entry[Node] // the host that decides
	Call     Entry[Call]
	Executor Entry[Live]
	Target   Entry[Live]
	Hold     Entry[Hold] // of the call's target

	node, id string
	call     Call // as the earlier read has shown it
}

// OrphanReads returns the operations that read an Orphan. The executor and the target are those of
// the call as an earlier read has shown it.
func OrphanReads(node, id string, c Call) []Op {
	return []Op{
		Get(MetaKey), Get(NodeKey(node)), Get(CallKey(id)), Get(LiveKey(c.Executor)), Get(LiveKey(c.Target)), Get(HoldKey(c.Target, id)),
	}
}

// ParseOrphan decodes the results of the operations from OrphanReads.
func ParseOrphan(node, id string, c Call, res Result) (Orphan, error) {
	o, reads := Orphan{node: node, id: id, call: c}, res.Reads
	if len(reads) != len(OrphanReads(node, id, c)) {
		return o, volume.Errorf(volume.ErrInvalid, "etcd has answered %d reads of the call for volume %q", len(reads), id)
	}

	var errs []error
	o.Meta = entry[Meta](MetaKey, reads[0], &errs)
	o.Node = entry[Node](NodeKey(node), reads[1], &errs)
	o.Call = entry[Call](CallKey(id), reads[2], &errs)
	o.Executor = entry[Live](LiveKey(c.Executor), reads[3], &errs)
	o.Target = entry[Live](LiveKey(c.Target), reads[4], &errs)
	o.Hold = entry[Hold](HoldKey(c.Target, id), reads[5], &errs)
	return o, errors.Join(errs...)
}

// ErrNotOrphan means that a call needs no other host: it has ended, its executor is alive, or its
// target is alive and ends it.
var ErrNotOrphan = volume.Errorf(volume.ErrRefused, "the call is not left behind")

// attachment reports whether the call changes an attachment. Its target and its node id are then
// known.
func (c Call) attachment() bool {
	return c.Call == call.ControllerPublish || c.Call == call.ControllerUnpublish
}

// TakeOverCall returns the transaction by which a host takes over a call of a host that is gone. The
// caller has seen that the executor was not alive for one deadline of the call, or that the executor has
// been replaced for so long. A replaced host may have returned, and knows nothing of the call.
//
// If the call changes an attachment, the host next calls ControllerUnpublishVolume for the call's
// target, also after a ControllerUnpublishVolume, and then EndTakenOver. The hold of the target stays.
// Any other call only ends. The definition still shows the unfinished operation, and the next host
// that needs it repeats the call.
func (o Orphan) TakeOverCall(who Asker, now time.Time) (Txn, error) {
	if err := CheckRegistered(o.Meta, o.Node, who); err != nil {
		return Txn{}, err
	}
	if o.Meta.Value.Suspended != "" {
		return Txn{}, ErrNotOrphan
	}

	c := o.Call.Value
	same := o.unchanged()
	served := o.Target.Exists() && o.Hold.Exists() && !c.Fence // the record of the target explains the call
	ownFence := c.Fence && c.Executor == who.Node              // the job that has announced the call is gone
	serves := o.Executor.Exists() && !c.Outlived(o.Executor.Value) && !ownFence
	own := c.Executor == who.Node && !c.Outlived(o.Executor.Value) && !c.Fence
	recorded := c.Target == who.Node && o.Hold.Exists() // the host takes the call back, see Reclaim
	if !same || own || serves || served || recorded {
		return Txn{}, ErrNotOrphan
	}

	compares := []Compare{Unchanged(o.Call.KV), Unchanged(o.Executor.KV)}
	if !c.attachment() {
		return o.txn(compares, Delete(o.Call.Key)), nil
	}
	if c.NodeID == "" || c.Target == "" {
		return Txn{}, volume.Errorf(volume.ErrRefused, "the call %s of host %q for volume %q names no node; nothing can be detached safely", c.Call, c.Executor, o.id).
			WithHint("when the host is back, its agent ends the call")
	}

	then := o.noteLate(nil)
	c.Executor, c.Incarnation, c.Call, c.Task, c.Since, c.Taken = who.Node, who.Incarnation, call.ControllerUnpublish, "", now, true
	c.Mounted, c.Fence, c.Idle = false, false, false
	return o.txn(append(compares, Unchanged(o.Target.KV), Unchanged(o.Hold.KV)), append(then, o.Call.Put(c))...), nil
}

// Reclaim returns the transaction by which the target of a call takes it back from an executor that is
// gone, under the same condition as TakeOverCall. The outcome of the call is unknown. The target's
// own record then leads to ControllerUnpublishVolume. The detach of a fencing that has dropped no hold only
// ends. If the target made that detach itself, it could detach the volume after it has attached it again. A
// mounted volume has no step that leads to the end of such a call.
func (o Orphan) Reclaim(who Asker) (Txn, error) {
	if err := CheckRegistered(o.Meta, o.Node, who); err != nil {
		return Txn{}, err
	}

	c := o.Call.Value
	same := o.unchanged() && c.Executor != who.Node
	serves := o.Executor.Exists() && !c.Outlived(o.Executor.Value)
	if !same || serves || c.Target != who.Node || !o.Hold.Exists() {
		return Txn{}, ErrNotOrphan
	}

	compares := []Compare{Unchanged(o.Call.KV), Unchanged(o.Executor.KV), Unchanged(o.Hold.KV)}
	if c.Fence || o.withoutStep() { // the detach has no further effect, and the record of the target attaches the volume again
		hold := o.Hold.Value
		hold.Attachment, hold.By = Unclear, who.Node
		return o.txn(compares, Delete(o.Call.Key), o.Hold.Put(hold)), nil
	}

	then := o.noteLate(nil)
	c.Executor, c.Incarnation, c.Task, c.Taken = who.Node, who.Incarnation, "", false
	return o.txn(compares, append(then, o.Call.Put(c))...), nil
}

// withoutStep reports whether a host has taken the call over, and the record of the target may have no step that
// leads to its end. The call may be the detach of a fencing, because a host that takes it over removes that mark.
// It may also be a detach whose announcement was executed late, after the target had kept the volume. A target
// that attaches the volume always makes the next call.
func (o Orphan) withoutStep() bool {
	return o.Call.Value.Taken && o.Hold.Value.Attachment != Attaching
}

// unchanged reports whether the call is still the one that the earlier read has shown. A later call may have the
// same executor and target: a fencing repeats its detach, and its job makes that call itself.
func (o Orphan) unchanged() bool {
	is, was := o.Call.Value, o.call
	return o.Call.Exists() && is.Executor == was.Executor && is.Target == was.Target && is.Call == was.Call &&
		is.Operation == was.Operation && is.Incarnation == was.Incarnation && is.Since.Equal(was.Since)
}

// noteLate adds the operation that notes in the hold of the target that the executor may be paused, and may
// still attach the volume, which the target has mounted. A detach of the target then proves nothing.
func (o Orphan) noteLate(then []Op) []Op {
	c := o.Call.Value
	if c.Call != call.ControllerPublish || !c.Mounted || !o.Hold.Exists() {
		return then
	}
	hold := o.Hold.Value
	hold.Late = c.Executor
	return append(then, o.Hold.Put(hold))
}

// EndOwn returns the transaction that ends a storage call which an earlier agent of the host made. The
// caller has waited for one deadline of the call since it saw the call. The definition still shows
// the unfinished operation. The record of the host ends calls for its own attachments.
func (o Orphan) EndOwn(who Asker) (Txn, error) {
	if err := CheckRegistered(o.Meta, o.Node, who); err != nil {
		return Txn{}, err
	}

	if !o.Call.Exists() || !o.Call.Value.Forsaken(who) {
		return Txn{}, ErrNotOrphan
	}
	return o.txn([]Compare{Unchanged(o.Call.KV)}, Delete(o.Call.Key)), nil
}

// Forsaken reports whether the call is a storage call of an earlier agent of the host.
func (c Call) Forsaken(who Asker) bool {
	return c.Executor == who.Node && c.Incarnation < who.Incarnation && !c.attachment()
}

// Outlived reports whether the call is one of an earlier incarnation for its own attachment, or for a
// fencing. The argument is the lease of the executor. If the host still has its hold, its record leads to
// the end of the call. A host that was replaced has no hold, and knows nothing of the call. A new agent
// knows nothing of the fencing of an earlier one, and may have no controller to end its call.
func (c Call) Outlived(executor Live) bool {
	own := c.attachment() && c.Executor == c.Target && !c.Taken
	return (own || c.Fence) && c.Incarnation < executor.Incarnation
}

// Served reports whether the executor is alive and ends its call itself, because its record explains the
// call.
func (o Orphan) Served() bool { return o.Executor.Exists() && o.Target.Exists() && o.Hold.Exists() }

// EndTakenOver returns the transaction that ends a call which the host has taken over. The state of
// the target's attachment is then unknown, so the target attaches the volume anew when it returns.
func (o Orphan) EndTakenOver(who Asker) (Txn, error) {
	if err := CheckRegistered(o.Meta, o.Node, who); err != nil {
		return Txn{}, err
	}
	if !o.Call.Exists() || !o.Call.Value.TakenOver(who.Node) || o.Call.Value.Target != o.call.Target {
		return Txn{}, ErrNotOrphan
	}

	compares, then := []Compare{Unchanged(o.Call.KV), Unchanged(o.Hold.KV)}, []Op{Delete(o.Call.Key)}
	if o.Hold.Exists() && o.Hold.Value.Attachment != "" {
		hold := o.Hold.Value
		hold.Attachment, hold.By = Unclear, who.Node
		then = append(then, o.Hold.Put(hold))
	}
	return o.txn(compares, then...), nil
}

// HandOver returns the transaction by which a host hands a call over that it has taken over and cannot end
// itself. The call then belongs to no agent, and any able host takes it over at once. The caller knows that none of
// its earlier attempts to make the call can have a further effect.
func (o Orphan) HandOver(who Asker) (Txn, error) {
	if err := CheckRegistered(o.Meta, o.Node, who); err != nil {
		return Txn{}, err
	}
	if !o.Call.Exists() || !o.Call.Value.TakenOver(who.Node) {
		return Txn{}, ErrNotOrphan
	}

	c := o.Call.Value
	c.Fence, c.Taken, c.Idle, c.Task, c.Incarnation = true, false, true, "", 0
	return o.txn([]Compare{Unchanged(o.Call.KV)}, o.Call.Put(c)), nil
}

// TakenOver reports whether the host makes the call in place of its target. A new agent of the host,
// or the next look of the same one, ends such a call.
func (c Call) TakenOver(node string) bool { return c.Executor == node && c.Taken }

// txn returns a transaction that reads the orphan anew if a condition is false.
func (o Orphan) txn(compares []Compare, then ...Op) Txn {
	compares = append([]Compare{Unchanged(o.Meta.KV), Unchanged(o.Node.KV)}, compares...)
	return Txn{If: compares, Then: then, Else: OrphanReads(o.node, o.id, o.call)}
}
