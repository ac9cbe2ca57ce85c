package shared

import (
	"errors"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// Replacement contains the keys that decide about the replacement of a host. The replacement drops
// the holds of the host one by one:
//
//	ready, away, … ── Begin ──▶ fencing ── Drop, for each hold ──▶ fencing ── End ──▶ away
//
// Begin stores the proof and freezes the incarnation. From then on, no write of the old machine
// succeeds, because each write compares the key of its host. Any host can continue a replacement
// that has stopped in the middle. End raises the incarnation and forgets the machine, so that the
// next machine with the name can register.
type Replacement struct {
	Meta  Entry[Meta]
	Own   Entry[Node] // the host that carries out the replacement
	Node  Entry[Node] // the host that is replaced
	Live  Entry[Live]
	Info  Entry[NodeInfo]
	Told  Entry[Status]
	Proof Entry[Proof] // for the incarnation that Node has

	node string
}

// ReplacementReads returns the operations that read a Replacement. The incarnation is the last known
// one of the host that is replaced. It is 0 for the first read.
func ReplacementReads(own, node string, incarnation uint64) []Op {
	return []Op{
		Get(MetaKey), Get(NodeKey(own)), Get(NodeKey(node)), Get(LiveKey(node)), Get(NodeInfoKey(node)), Get(StatusKey(node)),
		Get(FencedKey(node, incarnation)),
	}
}

// ParseReplacement decodes the results of the operations from ReplacementReads. If complete is
// false, the host has another incarnation than the read assumed. The caller must then read again
// with the incarnation of Node.
func ParseReplacement(own, node string, incarnation uint64, reads [][]KV) (r Replacement, complete bool, err error) {
	r.node = node
	if len(reads) != len(ReplacementReads(own, node, incarnation)) {
		return r, false, volume.Errorf(volume.ErrInvalid, "etcd has answered %d reads of host %q", len(reads), node)
	}

	var errs []error
	r.Meta = entry[Meta](MetaKey, reads[0], &errs)
	r.Own = entry[Node](NodeKey(own), reads[1], &errs)
	r.Node = entry[Node](NodeKey(node), reads[2], &errs)
	r.Live = entry[Live](LiveKey(node), reads[3], &errs)
	r.Info = entry[NodeInfo](NodeInfoKey(node), reads[4], &errs)
	r.Told = entry[Status](StatusKey(node), reads[5], &errs)
	r.Proof = entry[Proof](FencedKey(node, incarnation), reads[6], &errs)
	return r, r.Node.Value.Incarnation == incarnation, errors.Join(errs...)
}

// check returns an error if the host cannot be replaced.
func (r Replacement) check(who Asker) error {
	if err := CheckRegistered(r.Meta, r.Own, who); err != nil {
		return err
	}
	if !r.Node.Exists() {
		return volume.Errorf(volume.ErrNotFound, "the cluster has no host %q", r.node).WithHint("volctl node list")
	}
	if r.Live.Exists() {
		return volume.Errorf(volume.ErrRefused, "host %q is alive: its agent renews its lease", r.node).
			WithHint("to empty a host that is alive, run on it: volctl node drain")
	}
	return nil
}

// begun reports whether the proof is stored and the incarnation is frozen.
func (r Replacement) begun() bool {
	return r.Node.Value.State == NodeFencing && r.Proof.Exists() && r.Proof.Value.Kind == Replaced
}

// txn returns a transaction that compares all keys of the replacement that decide.
func (r Replacement) txn(compares []Compare, then ...Op) Txn {
	guards := []Compare{Unchanged(r.Meta.KV), Unchanged(r.Own.KV), Unchanged(r.Node.KV), Unchanged(r.Proof.KV), Absent(r.Live.Key)}
	return Txn{If: append(guards, compares...), Then: then}
}

// Begin returns the transaction that stores the proof of a person and freezes the incarnation of the
// host. An empty transaction means that an earlier request has done so.
func (r Replacement) Begin(who Asker, p Proof) (Txn, error) {
	if err := r.check(who); err != nil {
		return Txn{}, err
	}
	if r.begun() {
		return Txn{}, nil
	}

	is := r.Proof.Value.newest(Replaced, p.Who, p.Reason, p.At, who.Era)
	n := r.Node.Value
	n.State, n.Since, n.Until = NodeFencing, p.At, time.Time{}
	n.Fencing = &Fencing{By: who.Node, ByIncarnation: who.Incarnation, Era: who.Era, Was: NodeAway, Since: p.At, Proven: Replaced}
	return r.txn(nil, r.Proof.Put(is), r.Node.Put(n)), nil
}

// Drop returns the transaction that drops one hold of the host. The situation is that of the replaced
// host. If the hold has an attachment, the transaction leaves a call of the replaced host in flight.
// Before any host gets a hold on the volume, a host must take that call over. It then calls
// ControllerUnpublishVolume for the old attachment. That call replaces an unfinished storage call of
// the replaced host, whose definition still shows the intent. Drop refuses to replace a call of another
// host.
func (r Replacement) Drop(who Asker, s Situation, now time.Time) (Txn, error) {
	if err := r.check(who); err != nil {
		return Txn{}, err
	}
	if !r.begun() || s.Node.Mod != r.Node.Mod {
		return Txn{}, volume.Errorf(volume.ErrRefused, "the replacement of host %q was ended by another host", r.node).WithHint("volctl node list")
	}
	if !s.Hold.Exists() {
		return Txn{}, nil
	}

	d := Drop{Volume: s.id, Kind: Replaced, By: who.Node, At: now}
	compares, then := s.dropHold(r.node, d)
	hold, c := s.Hold.Value, s.Call.Value
	detaches := s.Call.Exists() && c.attachment() && c.Target == r.node // it leads to the detach itself
	switch {
	case hold.Attachment == "" || detaches:
	case s.Call.Exists() && c.Executor != r.node:
		return Txn{}, volume.Errorf(volume.ErrRefused, "host %q is calling %s for volume %q, which must be detached from host %q after that", c.Executor, c.Call, s.id, r.node).
			WithHint("repeat the command when the call has ended")
	default:
		then = append(then, s.Call.Put(Call{
			Executor: r.node, Incarnation: r.Node.Value.Incarnation, Operation: hold.Operation,
			Call: call.ControllerUnpublish, Target: r.node, NodeID: hold.NodeID, Since: now,
			Deadline: r.Info.Value.Plugins[s.Volume.Value.Volume.PluginID].ControllerTimeout,
		}))
	}

	p := r.Proof.Value.with(d)
	return r.txn(compares, append(then, r.Proof.Put(p))...), nil
}

// End returns the transaction that ends a replacement. It fails if the host has a hold. The next
// machine that registers with the name gets a higher incarnation. An empty transaction means that
// an earlier request has ended the replacement.
func (r Replacement) End(who Asker, now time.Time) (Txn, error) {
	if err := r.check(who); err != nil {
		return Txn{}, err
	}
	if !r.begun() {
		return Txn{}, nil
	}

	n := r.Node.Value
	n.Incarnation++
	n.Registration, n.Boot, n.Machine = "", "", Machine{}
	n.State, n.Since, n.Until, n.Fencing, n.Quarantined = NodeAway, now, now, nil, nil
	return r.txn([]Compare{NoneIn(HoldsOf(r.node))}, r.Node.Put(n), Delete(r.Info.Key), Delete(r.Told.Key)), nil
}
