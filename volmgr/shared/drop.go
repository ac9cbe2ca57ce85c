package shared

import (
	"errors"
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// Lost contains the keys that decide about one volume of a host that is being fenced. The situation is
// that of the fenced host.
type Lost struct {
	Fence     Fence
	Situation Situation
}

// same reports whether both reads have seen the same state of the host.
func (l Lost) same() bool {
	return l.Situation.Node.Mod == l.Fence.Node.Mod && l.Situation.Meta.Mod == l.Fence.Meta.Mod
}

// ErrNotReady means that a hold cannot be dropped now. The reason passes by itself.
var ErrNotReady = errors.New("not ready")

// notReady returns an error that wraps ErrNotReady.
func notReady(format string, args ...any) error { return volume.Errorf(ErrNotReady, format, args...) }

// checkDrop returns an error if the hold must not be dropped. The drop of a hold on a volume with
// "takeover: never" needs the statement of a person.
func (l Lost) checkDrop(who Asker) error {
	if err := l.Fence.check(who); err != nil {
		return err
	}

	byPerson := l.Fence.Node.Value.Fencing != nil && l.Fence.Node.Value.Fencing.Proven == ProvenPerson
	switch {
	case !l.same():
		return notReady("the keys of host %q have changed meanwhile", l.Fence.node)
	case l.Fence.Meta.Value.Suspended != "":
		return volume.Errorf(volume.ErrRefused, "no volume is taken over until a person resumes the cluster: %s", l.Fence.Meta.Value.Suspended)
	case l.Situation.Volume.Value.Volume.Takeover == volume.TakeoverNever && !byPerson:
		return volume.Errorf(volume.ErrRefused, "volume %q has \"takeover: never\", so only a person can take it over", l.Situation.id)
	default:
		return nil
	}
}

// txn returns a transaction that compares all keys that decide about the volume.
func (l Lost) txn(then ...Op) Txn {
	return l.Fence.txn([]Compare{Unchanged(l.Situation.Volume.KV), Unchanged(l.Situation.Use.KV), Unchanged(l.Situation.Hold.KV), Unchanged(l.Situation.Call.KV)}, then...)
}

// dropHold returns the operations that drop the hold of a host on the volume, and their conditions.
func (s Situation) dropHold(node string, d Drop) (compares []Compare, then []Op) {
	use, joined, still := leave(s.id, s.Use.Value, s.Users, node)
	then = slices.Concat([]Op{Delete(s.Hold.Key), Delete(UserKey(s.id, node))}, joined)
	if s.Use.Exists() {
		use.Generation++
		use.TakenOver = &TakenOver{From: node, Drop: d}
		then = append(then, s.Use.Put(use))
	}
	return append([]Compare{Unchanged(s.Use.KV), Unchanged(s.Hold.KV), Unchanged(s.Call.KV)}, still...), then
}

// drop returns the transaction that drops the hold because of a proof. The further operations belong to
// the call of the attachment.
func (l Lost) drop(who Asker, kind ProofKind, now time.Time, more ...Op) Txn {
	d := Drop{Volume: l.Situation.id, Kind: kind, By: who.Node, At: now}
	compares, then := l.Situation.dropHold(l.Fence.node, d)
	p := l.Fence.Proof.Value
	if kind == ProvenDetach && !l.Fence.Node.Value.ProvenOff(l.Fence.Meta.Value) {
		p = p.newest(kind, "host "+who.Node, "the controller of the driver has detached the host", now, who.Era)
	}

	p = p.with(d)
	return l.Fence.txn(append(compares, Unchanged(l.Situation.Volume.KV)), slices.Concat(then, more, []Op{l.Fence.Proof.Put(p)})...)
}

// DropProven returns the transaction that drops the hold of a host that is proven off. If the hold has an
// attachment, the transaction announces its ControllerUnpublishVolume, and no host gets a hold before
// that call has succeeded. An empty transaction means that the host has no hold.
func (l Lost) DropProven(who Asker, deadline time.Duration, now time.Time) (Txn, error) {
	if err := l.checkDrop(who); err != nil {
		return Txn{}, err
	}

	hold, c := l.Situation.Hold.Value, l.Situation.Call.Value
	ours := l.Situation.Call.Exists() && c.attachment() && c.Target == l.Fence.node && c.TakenOver(c.Executor)
	switch {
	case !l.Fence.Node.Value.ProvenOff(l.Fence.Meta.Value):
		return Txn{}, ErrFencedElsewhere
	case !l.Situation.Hold.Exists():
		return Txn{}, nil
	case l.Situation.Call.Exists() && !ours:
		return Txn{}, notReady("host %q is calling %s for volume %q since %s", c.Executor, c.Call, l.Situation.id, ago(c.Since, now))
	case hold.Attachment == "" || ours:
		return l.drop(who, l.Fence.Node.Value.Fencing.Proven, now), nil
	case hold.NodeID == "":
		return Txn{}, volume.Errorf(volume.ErrRefused, "the hold of host %q on volume %q names no CSI node id; nothing can be detached safely", l.Fence.node, l.Situation.id)
	}

	return l.drop(who, l.Fence.Node.Value.Fencing.Proven, now, l.Situation.Call.Put(Call{
		Executor: who.Node, Incarnation: who.Incarnation, Operation: hold.Operation, Call: call.ControllerUnpublish, Target: l.Fence.node,
		NodeID: hold.NodeID, Since: now, Deadline: deadline, Taken: true,
	})), nil
}

// BeginDetach returns the transaction that announces the ControllerUnpublishVolume by which a fencing
// proves that the host is cut off from the volume. The caller has begun the fencing. The operation names
// the call.
func (l Lost) BeginDetach(who Asker, operation string, deadline time.Duration, now time.Time) (Txn, error) {
	if err := l.checkDetach(who); err != nil {
		return Txn{}, err
	}
	if c := l.Situation.Call.Value; l.Situation.Call.Exists() {
		return Txn{}, notReady("host %q is calling %s for volume %q since %s", c.Executor, c.Call, l.Situation.id, ago(c.Since, now))
	}

	hold := l.Situation.Hold.Value
	hold.Attachment, hold.By = Unclear, who.Node // if the hold is not dropped, the host attaches the volume again
	return l.txn(l.Situation.Hold.Put(hold), l.Situation.Call.Put(Call{
		Executor: who.Node, Incarnation: who.Incarnation, Operation: operation, Call: call.ControllerUnpublish, Target: l.Fence.node,
		NodeID: hold.NodeID, Since: now, Deadline: deadline, Fence: true,
	})), nil
}

// checkDetach returns an error if a detach would not prove that the host is cut off.
func (l Lost) checkDetach(who Asker) error {
	if err := l.checkDrop(who); err != nil {
		return err
	}

	hold := l.Situation.Hold.Value
	switch {
	case !l.Fence.mine(who):
		return ErrFencedElsewhere
	case !l.Situation.Hold.Exists():
		return notReady("host %q has no hold on volume %q", l.Fence.node, l.Situation.id)
	case hold.Attachment == "":
		return volume.Errorf(volume.ErrRefused, "volume %q needs no attachment, so a detach proves nothing", l.Situation.id)
	case hold.NodeID == "":
		return volume.Errorf(volume.ErrRefused, "the hold of host %q on volume %q names no CSI node id; nothing can be detached safely", l.Fence.node, l.Situation.id)
	case hold.Late != "":
		return volume.Errorf(volume.ErrRefused, "a %s of host %q for volume %q may still arrive, so a detach proves nothing", call.ControllerPublish, hold.Late, l.Situation.id)
	default:
		return nil
	}
}

// DropDetached returns the transaction that drops the hold after the announced detach has succeeded.
func (l Lost) DropDetached(who Asker, operation string, now time.Time) (Txn, error) {
	if err := l.checkDetach(who); err != nil {
		return Txn{}, err
	}
	if !l.Announced(who, operation) {
		return Txn{}, notReady("the detach of volume %q from host %q was taken over", l.Situation.id, l.Fence.node)
	}
	return l.drop(who, ProvenDetach, now, Delete(l.Situation.Call.Key)), nil
}

// LeaveDetach returns the transaction that ends the announced detach without a proof. The host may not be
// fenced any more. If the outcome of the call is unknown, uncertain is set: the call then stays announced,
// and belongs to no agent any more. Any host with a controller takes it over when it can have no further
// effect. An empty transaction means that the call was taken over.
func (l Lost) LeaveDetach(who Asker, operation string, uncertain bool) (Txn, error) {
	if err := CheckRegistered(l.Fence.Meta, l.Fence.Own, who); err != nil {
		return Txn{}, err
	}
	if !l.Announced(who, operation) {
		return Txn{}, nil
	}

	guards := []Compare{Unchanged(l.Fence.Meta.KV), Unchanged(l.Fence.Own.KV), Unchanged(l.Situation.Call.KV)}
	if !uncertain {
		return Txn{If: guards, Then: []Op{Delete(l.Situation.Call.Key)}}, nil
	}
	c := l.Situation.Call.Value
	c.Task, c.Incarnation = "", 0
	return Txn{If: guards, Then: []Op{l.Situation.Call.Put(c)}}, nil
}

// Announced reports whether the call in flight is the detach that the asking host has announced.
func (l Lost) Announced(who Asker, operation string) bool {
	c := l.Situation.Call.Value
	return l.Situation.Call.Exists() && c.Fence && c.Executor == who.Node && c.Operation == operation
}
