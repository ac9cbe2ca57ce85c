package shared

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// AwayFor is how long a host whose agent was stopped in order is expected back. In this time, no
// other host takes over its volumes automatically.
const AwayFor = 5 * time.Minute

// Fence contains the keys that decide about the fencing of a host. The fencing drops the holds of the
// host that other hosts wait for:
//
//	ready, away, … ── Begin ──▶ fencing ── drops ──▶ fencing ── End ──▶ fenced, or as before
//	       │                       │
//	       │                       └── ProveHook, ProveReturned ──▶ fenced
//	       └── Declare (a person) ──▶ fenced ── Register ──▶ ready
//
// Begin freezes the incarnation: each write of the host compares its key, and fails from then on. The
// host registers again after the fencing has ended. A living host is never fenced.
type Fence struct {
	Meta     Entry[Meta]
	Own      Entry[Node] // the host that decides
	Node     Entry[Node] // the host that is fenced
	Live     Entry[Live]
	Info     Entry[NodeInfo]
	Proof    Entry[Proof] // for the incarnation that Node has
	Writer   Entry[Live]  // the lease of the host that fences
	Returned Entry[Returned]

	node, writer string
	incarnation  uint64
}

// FenceReads returns the operations that read a Fence. The incarnation is the last known one of the
// host that is fenced, and writer the last known host that fences. Both are empty for the first read.
func FenceReads(own, node string, incarnation uint64, writer string) []Op {
	return []Op{
		Get(MetaKey), Get(NodeKey(own)), Get(NodeKey(node)), Get(LiveKey(node)), Get(NodeInfoKey(node)),
		Get(FencedKey(node, incarnation)), Get(LiveKey(writer)), Get(ReturnedKey(node)),
	}
}

// ParseFence decodes the results of the operations from FenceReads. If complete is false, the host has
// another incarnation or another writer than the read assumed. The caller must then read again with
// those of Node.
func ParseFence(own, node string, incarnation uint64, writer string, reads [][]KV) (f Fence, complete bool, err error) {
	f.node, f.writer, f.incarnation = node, writer, incarnation
	if len(reads) != len(FenceReads(own, node, incarnation, writer)) {
		return f, false, volume.Errorf(volume.ErrInvalid, "etcd has answered %d reads of host %q", len(reads), node)
	}

	var errs []error
	f.Meta = entry[Meta](MetaKey, reads[0], &errs)
	f.Own = entry[Node](NodeKey(own), reads[1], &errs)
	f.Node = entry[Node](NodeKey(node), reads[2], &errs)
	f.Live = entry[Live](LiveKey(node), reads[3], &errs)
	f.Info = entry[NodeInfo](NodeInfoKey(node), reads[4], &errs)
	f.Proof = entry[Proof](FencedKey(node, incarnation), reads[5], &errs)
	f.Writer = entry[Live](LiveKey(writer), reads[6], &errs)
	f.Returned = entry[Returned](ReturnedKey(node), reads[7], &errs)

	n := f.Node.Value
	complete = n.Incarnation == incarnation && (n.Fencing == nil || n.Fencing.By == writer)
	return f, complete, errors.Join(errs...)
}

// ErrFencedElsewhere means that another host fences the host, or has ended the fencing.
var ErrFencedElsewhere = volume.Errorf(volume.ErrRefused, "another host fences the host, or has ended its fencing")

// Fenced reports whether the host is being fenced, or was fenced, in the present epoch of the cluster. A
// restore of the store voids an earlier fencing.
func (n Node) Fenced(m Meta) bool {
	state := n.State == NodeFencing || n.State == NodeFenced
	return state && (n.Fencing == nil || n.Fencing.Era == m.Era())
}

// ProvenOff reports whether a proof shows that the whole host cannot write, in the present epoch.
func (n Node) ProvenOff(m Meta) bool {
	return n.Fenced(m) && n.Fencing != nil && n.Fencing.Proven != ""
}

// ExpectedBack returns how long after the end of its lease the host is expected back. It is 0 for a host
// whose agent was not stopped in order.
func (n Node) ExpectedBack() time.Duration {
	switch {
	case n.State == NodeAway, n.State == NodeDraining && !n.Until.IsZero():
		return AwayFor
	default:
		return 0
	}
}

// check returns an error if the host cannot be fenced at all.
func (f Fence) check(who Asker) error {
	if err := CheckRegistered(f.Meta, f.Own, who); err != nil {
		return err
	}
	switch {
	case !f.Node.Exists():
		return volume.Errorf(volume.ErrNotFound, "the cluster has no host %q", f.node).WithHint("volctl node list")
	case f.node == who.Node:
		return volume.Errorf(volume.ErrRefused, "host %q is this host, and its agent is alive", f.node).WithHint("volctl node drain")
	case f.Live.Exists():
		return volume.Errorf(volume.ErrRefused, "host %q is alive: its agent renews its lease", f.node).
			WithHint("to empty a host that is alive, run on it: volctl node drain")
	default:
		return nil
	}
}

// mine reports whether the asking host fences the host.
func (f Fence) mine(who Asker) bool {
	n := f.Node.Value
	return n.State == NodeFencing && n.Fenced(f.Meta.Value) && n.Fencing != nil &&
		n.Fencing.By == who.Node && n.Fencing.ByIncarnation == who.Incarnation
}

// Abandoned reports whether the host that fences is gone or was restarted. Another host then continues the
// fencing, or ends it.
func (f Fence) Abandoned() bool {
	n := f.Node.Value
	if n.State != NodeFencing || n.Fencing == nil {
		return false
	}
	return !f.Writer.Exists() || f.Writer.Value.Incarnation != n.Fencing.ByIncarnation
}

// txn returns a transaction that compares all keys of the fencing that decide.
func (f Fence) txn(compares []Compare, then ...Op) Txn {
	guards := []Compare{Unchanged(f.Meta.KV), Unchanged(f.Own.KV), Unchanged(f.Node.KV), Unchanged(f.Proof.KV), Absent(f.Live.Key)}
	return Txn{If: append(guards, compares...), Then: then}
}

// Begin returns the transaction that begins a fencing, or continues one whose writer is gone. An empty
// transaction means that the asking host fences already.
func (f Fence) Begin(who Asker, now time.Time) (Txn, error) {
	if err := f.check(who); err != nil {
		return Txn{}, err
	}

	n := f.Node.Value
	current := n.State == NodeFencing && n.Fenced(f.Meta.Value)
	switch {
	case f.Meta.Value.Suspended != "":
		return Txn{}, volume.Errorf(volume.ErrRefused, "the cluster fences no host until a person resumes it: %s", f.Meta.Value.Suspended)
	case f.mine(who):
		return Txn{}, nil
	case current && n.Fencing == nil, current && !f.Abandoned():
		return Txn{}, ErrFencedElsewhere // a person replaces the host, or another host fences it
	}

	is := Fencing{Was: n.State, Since: n.Since}
	switch {
	case current:
		is = *n.Fencing
	case n.Fenced(f.Meta.Value) && n.Fencing != nil:
		is = *n.Fencing
		is.Was = NodeFenced
	case n.State == NodeFencing || n.State == NodeFenced:
		is.Was, is.Since = NodeAway, now // a restore of the store has voided the earlier fencing
	}
	is.By, is.ByIncarnation, is.Era = who.Node, who.Incarnation, who.Era

	n.State, n.Since, n.Fencing = NodeFencing, now, &is
	return f.txn([]Compare{Unchanged(f.Writer.KV)}, f.Node.Put(n)), nil
}

// End returns the transaction that ends a fencing. The host is then fenced if a hold was dropped or a
// hook was asked. Otherwise it is as before. An empty transaction means that the asking host does not
// fence the host.
func (f Fence) End(who Asker, now time.Time) (Txn, error) {
	if err := CheckRegistered(f.Meta, f.Own, who); err != nil {
		return Txn{}, err
	}
	if !f.mine(who) {
		return Txn{}, nil
	}

	n := f.Node.Value
	is := *n.Fencing
	proven := is.Proven != "" || is.Hook || len(f.Proof.Value.Drops) > 0
	if proven || is.Was == NodeFenced {
		n.State, n.Since, n.Fencing = NodeFenced, now, &is
		return f.txn(nil, f.Node.Put(n)), nil
	}
	n.State, n.Since, n.Fencing = is.Was, is.Since, nil
	return f.txn(nil, f.Node.Put(n)), nil
}

// CheckHook returns an error if no hook may switch the host off, or if a hook that runs must be stopped. The
// asking host must fence the host. A host whose agent is back waits for the end of the fencing, so it is alive,
// although it has no lease yet.
func (f Fence) CheckHook(who Asker) error {
	if err := f.check(who); err != nil {
		return err
	}
	switch {
	case f.Node.Value.ProvenOff(f.Meta.Value):
		return notReady("host %q is proven off already", f.node)
	case f.Meta.Value.Suspended != "":
		return volume.Errorf(volume.ErrRefused, "the cluster fences no host until a person resumes it: %s", f.Meta.Value.Suspended)
	case !f.mine(who):
		return ErrFencedElsewhere
	case f.Returned.Exists():
		return notReady("host %q is back, and registers when its fencing has ended", f.node)
	default:
		return nil
	}
}

// AskHook returns the transaction that records that a hook is asked to switch the host off. The asking
// host runs the hook only after this transaction, and as long as CheckHook permits it.
func (f Fence) AskHook(who Asker, name string, now time.Time) (Txn, error) {
	if err := f.CheckHook(who); err != nil {
		return Txn{}, err
	}

	n, is, p := f.Node.Value, *f.Node.Value.Fencing, f.Proof.Value
	is.Hook, n.Fencing = true, &is
	if !slices.ContainsFunc(p.Hooks, func(h AskedHook) bool { return h.Name == name && h.By == who.Node }) {
		p.Hooks = append(slices.Clone(p.Hooks), AskedHook{Name: name, By: who.Node, At: now})
	}
	if !f.Proof.Exists() {
		p.Era, p.At = who.Era, now
	}
	return f.txn([]Compare{Unchanged(f.Returned.KV)}, f.Node.Put(n), f.Proof.Put(p)), nil
}

// NoteHook returns the transaction that records, for people, how the request to a hook has ended without a
// proof. The host may have changed meanwhile. An empty transaction means that the request is not recorded for
// the present incarnation of the host, or has this outcome already.
func (f Fence) NoteHook(who Asker, name, outcome string) (Txn, error) {
	if err := CheckRegistered(f.Meta, f.Own, who); err != nil {
		return Txn{}, err
	}

	p := f.Proof.Value
	i := slices.IndexFunc(p.Hooks, func(h AskedHook) bool { return h.Name == name && h.By == who.Node })
	if i < 0 || p.Hooks[i].Outcome == outcome {
		return Txn{}, nil
	}
	p.Hooks = slices.Clone(p.Hooks)
	p.Hooks[i].Outcome = outcome
	return Txn{If: []Compare{Unchanged(f.Meta.KV), Unchanged(f.Own.KV), Unchanged(f.Proof.KV)}, Then: []Op{f.Proof.Put(p)}}, nil
}

// ProveHook returns the transaction that records that a hook has switched the host off. The hook has
// reported that the host is off after it was asked.
func (f Fence) ProveHook(who Asker, name string, now time.Time) (Txn, error) {
	if err := f.check(who); err != nil {
		return Txn{}, err
	}
	if !f.mine(who) || !f.Node.Value.Fencing.Hook {
		return Txn{}, ErrFencedElsewhere
	}
	return f.prove(ProvenHook, "hook "+name+" on host "+who.Node, "the hook reports that the host is off", now), nil
}

// ProveReturned returns the transaction that records that the host is back after a reboot, and has
// nothing mounted. An empty transaction means that the host is not back, or that this proves nothing.
func (f Fence) ProveReturned(who Asker, now time.Time) (Txn, error) {
	if err := f.check(who); err != nil {
		return Txn{}, err
	}
	if !f.mine(who) {
		return Txn{}, ErrFencedElsewhere
	}

	back := f.Returned.Value
	if !f.Returned.Exists() || !differ(back.Boot, f.Node.Value.Boot) || len(back.Mounted) > 0 {
		return Txn{}, nil
	}
	t := f.prove(ProvenReturned, "host "+f.node, "the host has rebooted, and has nothing mounted", now)
	t.If = append(t.If, Unchanged(f.Returned.KV))
	return t, nil
}

// prove returns the transaction that records a proof for the whole host.
func (f Fence) prove(kind ProofKind, who, reason string, now time.Time) Txn {
	n, is := f.Node.Value, *f.Node.Value.Fencing
	is.Proven = kind
	n.State, n.Since, n.Fencing = NodeFenced, now, &is
	return f.txn(nil, f.Node.Put(n), f.Proof.Put(f.Proof.Value.newest(kind, who, reason, now, f.Meta.Value.Era())))
}

// Declare returns the transaction that records the statement of a person that the host is switched off.
// It needs no fencing, and ends one of another host. An empty transaction means that the cluster already
// has a proof for the whole host.
func (f Fence) Declare(who Asker, person, reason string, now time.Time) (Txn, error) {
	if err := f.check(who); err != nil {
		return Txn{}, err
	}

	n := f.Node.Value
	replacing := n.State == NodeFencing && f.Proof.Value.Kind == Replaced
	switch {
	case n.ProvenOff(f.Meta.Value):
		return Txn{}, nil
	case replacing:
		return Txn{}, volume.Errorf(volume.ErrRefused, "a replacement of host %q has begun and not ended", f.node).WithRemedy(remedy.Of(remedy.ReplaceNode, f.node))
	}

	is := Fencing{Was: n.State, Since: n.Since}
	if n.Fencing != nil {
		is = *n.Fencing
	}
	is.By, is.ByIncarnation, is.Era = who.Node, who.Incarnation, who.Era
	f.Node.Value.Fencing = &is
	return f.prove(ProvenPerson, person, reason, now), nil
}

// CheckUnfence returns an error if a host must not get its access to the storage back. The host may still
// have lost volumes mounted.
func (f Fence) CheckUnfence(who Asker) error {
	if err := CheckRegistered(f.Meta, f.Own, who); err != nil {
		return err
	}

	n, back := f.Node.Value, f.Returned
	switch {
	case !f.Node.Exists():
		return volume.Errorf(volume.ErrNotFound, "the cluster has no host %q", f.node).WithHint("volctl node list")
	case len(n.Quarantined) > 0:
		return volume.Errorf(volume.ErrRefused, "volume %q is still mounted on host %q, which has lost it", n.Quarantined[0], f.node).
			WithHint("end the processes on that host that use the volume, or reboot the host")
	case n.State == NodeFencing:
		return volume.Errorf(volume.ErrRefused, "host %q is being fenced", f.node).WithHint("wait for the end: volctl node list")
	case n.State != NodeFenced:
		return nil
	case !back.Exists():
		return volume.Errorf(volume.ErrRefused, "host %q is fenced and not back, so it may still have volumes mounted", f.node).
			WithHint("start its agent; a host that was switched off registers by itself")
	case !differ(back.Value.Boot, n.Boot) && len(back.Value.Mounted) > 0:
		return volume.Errorf(volume.ErrRefused, "host %q was not rebooted, and still has volume %q mounted", f.node, back.Value.Mounted[0]).
			WithHint("end the processes on that host that use the volume, or reboot the host")
	default:
		return nil
	}
}

// FencingWords describes the fencing for a message. It is empty for a host that is not fenced.
func (n Node) FencingWords(now time.Time) string {
	switch {
	case n.Fencing == nil:
		return ""
	case n.State == NodeFencing:
		return fmt.Sprintf("host %q fences it since %s", n.Fencing.By, ago(n.Since, now))
	case n.Fencing.Proven != "":
		return fmt.Sprintf("it is proven off (%s) since %s", n.Fencing.Proven, ago(n.Since, now))
	default:
		return "other hosts have taken over volumes of it since " + ago(n.Since, now)
	}
}
