package shared

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// Move is the order of a person to move a volume from the host that holds it to another one. The host
// that carries out the order is the mover:
//
//	          asked ──── Accept (target) ──▶ accepted ──── GiveUp (source) ──▶ reserved
//	            │                               │                                 │
//	   Decline (target)                End, after a timeout              Admit (target), or End
//	            ▼                               ▼                                 ▼
//	declined ── End (mover) ──▶ no key       no key                            no key
//
// An accepted move reserves the volume: only the target gets the hold. The key has the lease of the
// mover until the target answers. From then on, it has the lease of the target, so that no reservation
// outlives its host. The hold itself moves only by GiveUp and Admit, as without a move.
type Move struct {
	ID   string `json:"id"`
	By   string `json:"by"` // the mover
	From string `json:"from"`
	To   string `json:"to"`

	State MoveState `json:"state"`
	Since time.Time `json:"since"`

	// Within is the time that the source has to give up its hold. The target measures it from its
	// acceptance.
	Within time.Duration `json:"within"`

	// Reason and Remedy are those of a target that has declined.
	Reason string        `json:"reason,omitempty"`
	Remedy remedy.Remedy `json:"remedy,omitzero"`

	// Claimed is set if a claim on the target waits for the volume.
	Claimed bool `json:"claimed,omitempty"`

	// Remains lists the claims and mounts that keep the volume on the source.
	Remains []MoveRemains `json:"remains,omitempty"`
}

// MoveState is the state of a move.
type MoveState string

// These are the states of a move. A move is reserved if it is accepted and the source has given up its
// hold.
const (
	MoveAsked    MoveState = "asked"
	MoveAccepted MoveState = "accepted"
	MoveDeclined MoveState = "declined"
)

// MoveRemains is a claim or a mount that keeps the volume on the source.
type MoveRemains struct {
	Alloc  string        `json:"alloc,omitempty"`
	Reason string        `json:"reason"`
	Remedy remedy.Remedy `json:"remedy,omitzero"` // on the source
}

// Same reports whether both values tell people the same.
func (m MoveRemains) Same(o MoveRemains) bool {
	return m.Alloc == o.Alloc && m.Reason == o.Reason && m.Remedy.Equal(o.Remedy)
}

// Words describes a move that has not ended. The argument holder is the host that holds the volume.
func (m Move) Words(holder string) string {
	switch {
	case m.State == MoveAsked:
		return fmt.Sprintf("host %q is asked to take it", m.To)
	case m.State == MoveDeclined:
		return fmt.Sprintf("host %q refuses it: %s", m.To, m.Reason)
	case holder != m.From:
		return fmt.Sprintf("reserved for host %q", m.To)
	case len(m.Remains) > 0:
		return fmt.Sprintf("moving to host %q; host %q still has %s", m.To, m.From, m.remaining())
	default:
		return fmt.Sprintf("moving to host %q; host %q gives it up", m.To, m.From)
	}
}

// remaining names the claims and mounts that keep the volume on the source.
func (m Move) remaining() string {
	names := make([]string, len(m.Remains))
	for i, r := range m.Remains {
		names[i] = r.Reason
		if r.Alloc != "" {
			names[i] = fmt.Sprintf("the claim of %q (%s)", r.Alloc, r.Reason)
		}
	}
	return strings.Join(names, ", ")
}

// Late returns the error for a source that has not given the volume up in time. It names the
// claims and mounts there.
func (m Move) Late(id string) error {
	fix, remains := remedy.Of(remedy.ShowVolume, id), "its agent has not said why"
	if len(m.Remains) > 0 {
		fix, remains = m.Remains[0].Remedy.Or(fix), "it has "+m.remaining()
	}
	return volume.Errorf(volume.ErrTimeout, "timed out: host %q has not given the volume up within %s, and keeps it: %s", m.From, m.Within, remains).
		WithRemedy(fix)
}

// Moved is the result of a move.
type Moved struct {
	From, To string

	// Taken is set if the target has the hold. Otherwise the volume is free, and reserved for the
	// target for the time Reserved.
	Taken    bool
	Reserved time.Duration
}

// Moving contains the keys that decide about a move.
type Moving struct {
	Situation // of the host that decides

	Source, Target         Entry[Node]
	SourceLive, TargetLive Entry[Live]

	from, to string
}

// MovingReads returns the operations that read a Moving. The source is the host that an earlier read has
// shown as the holder.
func MovingReads(node, id, from, to string) []Op {
	return append(Reads(node, id), Get(NodeKey(from)), Get(LiveKey(from)), Get(NodeKey(to)), Get(LiveKey(to)))
}

// ParseMoving decodes the results of the operations from MovingReads.
func ParseMoving(node, id, from, to string, res Result) (Moving, error) {
	own := len(Reads(node, id))
	if len(res.Reads) != own+4 {
		return Moving{}, volume.Errorf(volume.ErrInvalid, "etcd has answered %d reads of the move of volume %q", len(res.Reads), id)
	}

	reads := res.Reads[own:]
	res.Reads = res.Reads[:own]
	sit, err := ParseSituation(node, id, res)
	m, errs := Moving{Situation: sit, from: from, to: to}, []error{err}
	m.Source = entry[Node](NodeKey(from), reads[0], &errs)
	m.SourceLive = entry[Live](LiveKey(from), reads[1], &errs)
	m.Target = entry[Node](NodeKey(to), reads[2], &errs)
	m.TargetLive = entry[Live](LiveKey(to), reads[3], &errs)
	return m, errors.Join(errs...)
}

// ErrMoveOver means that a move has ended, or has another state than the decision needs.
var ErrMoveOver = volume.Errorf(volume.ErrRefused, "the move of the volume has ended")

// Begin returns the transaction by which the mover asks the target. It refuses a move that cannot
// succeed. The key has the lease of the mover.
func (m Moving) Begin(who Asker, order Move, l Lease) (Txn, error) {
	if m.is(order.ID) {
		return Txn{}, nil // an earlier transaction with a lost answer has done it
	}
	if err := m.checkWrite(who); err != nil {
		return Txn{}, err
	}
	if err := m.checkHeld(order); err != nil {
		return Txn{}, err
	}
	if err := m.checkHosts(order.Since); err != nil {
		return Txn{}, err
	}

	order.By, order.From, order.To, order.State = who.Node, m.from, m.to, MoveAsked
	compares := []Compare{
		Unchanged(m.Volume.KV), Unchanged(m.Use.KV), Absent(m.Move.Key),
		Unchanged(m.Source.KV), Unchanged(m.SourceLive.KV), Unchanged(m.Target.KV), Unchanged(m.TargetLive.KV),
	}
	return m.change(who, compares, PutLeased(m.Move.Key, m.Move.Encode(order), l)), nil
}

// checkHeld returns an error if the volume has no single holder that can give it up.
func (m Moving) checkHeld(order Move) error {
	use, id := m.Use.Value, m.id
	show := remedy.Of(remedy.ShowVolume, id)
	switch had := m.Move.Value; {
	case !m.Volume.Exists() || !m.Use.Exists():
		return volume.Errorf(volume.ErrNotFound, "the cluster has no volume %q", id).WithHint("volctl volume list")
	case m.Volume.Value.Deleting:
		return volume.Errorf(volume.ErrRefused, "volume %q is being deleted", id).WithRemedy(show)
	case m.Meta.Value.Suspended != "":
		return volume.Errorf(volume.ErrRefused, "%s", m.suspended().Error())
	case len(use.Rivals) > 0:
		return volume.Errorf(volume.ErrRefused, "%s", ConflictWords(id, use, m.Users)).WithRemedy(show)
	case m.Move.Exists():
		return volume.Errorf(volume.ErrRefused, "volume %q is being moved to host %q since %s, as asked on host %q", id, had.To, ago(had.Since, order.Since), had.By).
			WithRemedy(show)
	case use.Holder == "" && use.Access != "":
		return volume.Errorf(volume.ErrRefused, "volume %q is used in mode %s, which permits several hosts", id, use.Access).
			WithHint("claim it on the other host, and detach it on this one")
	case use.Holder == "":
		return volume.Errorf(volume.ErrRefused, "no host uses volume %q", id).WithHint("claim it on the host that needs it; a free volume needs no move")
	case use.Holder == m.to:
		return volume.Errorf(volume.ErrRefused, "host %q holds volume %q already", m.to, id).WithRemedy(show)
	default:
		return nil
	}
}

// checkHosts returns an error if the target cannot get the volume, or if the source cannot give it up.
func (m Moving) checkHosts(now time.Time) error {
	target, source := StateOf(m.Target.Value, m.TargetLive.Exists(), now), StateOf(m.Source.Value, m.SourceLive.Exists(), now)
	switch {
	case !m.Target.Exists():
		return volume.Errorf(volume.ErrNotFound, "the cluster has no host %q", m.to).WithHint("volctl node list")
	case target == HostDraining:
		return volume.Errorf(volume.ErrRefused, "host %q is draining, and gets no volumes", m.to).WithHint("name another host, or run on that host: volctl node undrain")
	case target != HostReady:
		return volume.Errorf(volume.ErrRefused, "host %q is %s, and cannot take the volume", m.to, target).WithHint("name another host (volctl node list), or start its agent")
	case source == HostState(NodeFencing), source == HostState(NodeFenced):
		return volume.Errorf(volume.ErrRefused, "host %q holds the volume, and is %s; another host gets the volume when that has ended", m.from, source).WithHint("volctl node list")
	case !m.SourceLive.Exists():
		return volume.Errorf(volume.ErrRefused, "host %q holds the volume, and is %s; only its agent can give the volume up", m.from, source).
			WithRemedy(remedy.Of(remedy.ReturnOrReplace, m.from))
	default:
		return nil
	}
}

// Accept returns the transaction by which the target reserves the volume. The key gets the lease of the
// target. The argument claimed says whether a claim on the target waits for the volume.
func (m Moving) Accept(who Asker, id string, claimed bool, l Lease) (Txn, error) {
	if err := m.checkState(who, id, MoveAsked); err != nil {
		return Txn{}, err
	}
	if n := m.Node.Value; n.State != NodeReady {
		return Txn{}, ErrMoveOver
	}
	if holder := m.Use.Value.Holder; holder != m.Move.Value.From && holder != "" {
		return Txn{}, ErrMoveOver
	}

	order := m.Move.Value
	order.State, order.Claimed = MoveAccepted, claimed
	return m.change(who, []Compare{Unchanged(m.Use.KV), Unchanged(m.Move.KV)}, PutLeased(m.Move.Key, m.Move.Encode(order), l)), nil
}

// Decline returns the transaction by which the target refuses the volume.
func (m Moving) Decline(who Asker, id, reason string, fix remedy.Remedy) (Txn, error) {
	if err := m.checkState(who, id, MoveAsked); err != nil {
		return Txn{}, err
	}

	order := m.Move.Value
	order.State, order.Reason, order.Remedy = MoveDeclined, reason, fix
	return m.change(who, []Compare{Unchanged(m.Move.KV)}, PutLeased(m.Move.Key, m.Move.Encode(order), m.Move.Lease)), nil
}

// Report returns the transaction by which the source names the claims and mounts that keep the volume on
// it. An empty transaction means that the key names them already.
func (m Moving) Report(who Asker, id string, remains []MoveRemains) (Txn, error) {
	if err := m.checkState(who, id, MoveAccepted); err != nil {
		return Txn{}, err
	}

	order := m.Move.Value
	if slices.EqualFunc(order.Remains, remains, MoveRemains.Same) {
		return Txn{}, nil
	}
	order.Remains = remains
	return m.change(who, []Compare{Unchanged(m.Move.KV)}, PutLeased(m.Move.Key, m.Move.Encode(order), m.Move.Lease)), nil
}

// End returns the transaction that ends a move. An empty transaction means that it has ended.
func (m Moving) End(who Asker, id string) (Txn, error) {
	if err := m.checkWrite(who); err != nil {
		return Txn{}, err
	}
	if !m.is(id) {
		return Txn{}, nil
	}
	return m.change(who, []Compare{Unchanged(m.Use.KV), Unchanged(m.Move.KV)}, Delete(m.Move.Key)), nil
}

// is reports whether the key shows the move with an id.
func (m Moving) is(id string) bool { return m.Move.Exists() && m.Move.Value.ID == id }

// checkState returns an error if the move has not the state that a decision of its target or of its
// source needs.
func (m Moving) checkState(who Asker, id string, state MoveState) error {
	if err := m.checkWrite(who); err != nil {
		return err
	}
	if !m.is(id) || m.Move.Value.State != state {
		return ErrMoveOver
	}
	return nil
}

// change returns a transaction that reads the moving anew if a condition is false.
func (m Moving) change(who Asker, compares []Compare, then ...Op) Txn {
	t := m.txn(who, compares, then...)
	t.Else = MovingReads(who.Node, m.id, m.from, m.to)
	return t
}

// Released reports whether the source has given up the volume.
func (m Moving) Released() bool { return m.Use.Value.Holder != m.from }

// Reserved reports whether the source has given up the volume, and the target has no hold yet.
func (m Moving) Reserved(id string) bool {
	return m.is(id) && m.Move.Value.State == MoveAccepted && m.Use.Value.Holder == ""
}

// Stuck says why the source cannot give up its hold any more. It is empty if the source can.
func (m Moving) Stuck(now time.Time) string {
	if m.Released() || m.SourceLive.Exists() {
		return ""
	}
	return fmt.Sprintf("host %q, which holds the volume, is %s", m.from, StateOf(m.Source.Value, false, now))
}

// Ended says why a move has no key any more, although the source has the volume.
func (m Moving) Ended(now time.Time) string {
	target := StateOf(m.Target.Value, m.TargetLive.Exists(), now)
	if target == HostReady {
		return fmt.Sprintf("the move has ended, because the agent of host %q was restarted", m.to)
	}
	return fmt.Sprintf("the move has ended, because host %q is %s", m.to, target)
}

// Holder returns the host that holds the volume.
func (m Moving) Holder() string { return m.Use.Value.Holder }

// Running reports whether the key shows the move with an id.
func (m Moving) Running(id string) bool { return m.is(id) }

// reserved returns the error for a host that wants a hold which a move has reserved for another host.
func (s Situation) reserved(a Ask) error {
	order := s.Move.Value
	switch {
	case !s.Move.Exists() || order.State != MoveAccepted || order.To == a.Node || !holds(a.Access, a.Reader):
		return nil
	default:
		return s.held("volume %q is reserved for host %q, to which a person moves it since %s", s.id, order.To, ago(order.Since, a.Now))
	}
}

// fulfils reports whether the hold that a host asks for ends a move.
func (s Situation) fulfils(a Ask) bool {
	return s.Move.Exists() && s.Move.Value.To == a.Node && holds(a.Access, a.Reader)
}
