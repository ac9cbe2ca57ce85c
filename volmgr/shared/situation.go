package shared

import (
	"errors"
	"fmt"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// Asker is a host that asks for a change, as the host itself knows it.
type Asker struct {
	Node        string
	Incarnation uint64
	Era         Era // in which the host has registered
}

// Situation contains the keys that a decision about one volume and one host needs. One transaction
// has read all of them.
type Situation struct {
	Meta   Entry[Meta]
	Node   Entry[Node]
	Volume Entry[Definition]
	Use    Entry[Use]
	Hold   Entry[Hold]
	Call   Entry[Call]
	Users  []Entry[User] // at most two of the users
	Move   Entry[Move]

	Revision int64 // of the read
	id       string
}

// readUsers is the number of users that a situation contains. If there is a user beside the asking
// host, one of two users is such a user.
const readUsers = 2

// Reads returns the operations that read a situation. ParseSituation decodes their results.
func Reads(node, id string) []Op {
	return []Op{
		Get(MetaKey), Get(NodeKey(node)), Get(VolumeKey(id)), Get(UseKey(id)), Get(HoldKey(node, id)), Get(CallKey(id)),
		GetSpan(Users(id), readUsers), Get(MoveKey(id)),
	}
}

// ParseSituation decodes the results of the operations from Reads.
func ParseSituation(node, id string, res Result) (Situation, error) {
	s, reads := Situation{id: id, Revision: res.Revision}, res.Reads
	if len(reads) != len(Reads(node, id)) {
		return s, volume.Errorf(volume.ErrInvalid, "etcd has answered %d reads of volume %q", len(reads), id)
	}

	var errs []error
	s.Meta = entry[Meta](MetaKey, reads[0], &errs)
	s.Node = entry[Node](NodeKey(node), reads[1], &errs)
	s.Volume = entry[Definition](VolumeKey(id), reads[2], &errs)
	s.Use = entry[Use](UseKey(id), reads[3], &errs)
	s.Hold = entry[Hold](HoldKey(node, id), reads[4], &errs)
	s.Call = entry[Call](CallKey(id), reads[5], &errs)
	for _, kv := range reads[6] {
		e, err := Decode[User](kv)
		s.Users, errs = append(s.Users, e), append(errs, err)
	}
	s.Move = entry[Move](MoveKey(id), reads[7], &errs)
	if is := s.Volume.Value.Volume.ID; s.Volume.Exists() && is != id {
		errs = append(errs, volume.Errorf(volume.ErrRefused, "etcd has volume %q under the key of volume %q", is, id))
	}

	return s, errors.Join(errs...)
}

// entry decodes the only key of a read, which may not exist.
func entry[T any](key string, read []KV, errs *[]error) Entry[T] {
	kv := KV{Key: key}
	if len(read) > 0 {
		kv = read[0]
	}

	e, err := Decode[T](kv)
	*errs = append(*errs, err)
	return e
}

// checkWrite returns an error if the host cannot write to the cluster at all.
func (s Situation) checkWrite(who Asker) error {
	return CheckRegistered(s.Meta, s.Node, who)
}

// CheckRegistered returns an error if the cluster does not show a host with the given incarnation as
// registered.
func CheckRegistered(meta Entry[Meta], node Entry[Node], who Asker) error {
	switch n := node.Value; {
	case !meta.Exists():
		return volume.Errorf(ErrUnregistered, "the cluster's etcd has no data of this cluster").
			WithHint("was etcd restored or replaced? See cluster.endpoints and cluster.prefix")
	case meta.Value.Schema > Schema:
		return volume.Errorf(ErrNewerSchema, "the cluster was upgraded to schema %d, and this release writes schema %d; it only reads", meta.Value.Schema, Schema).
			WithHint("install the newer release of volagent on this host")
	case meta.Value.Era() != who.Era:
		return volume.Errorf(ErrUnregistered, "the cluster is in epoch %d, and host %q has registered in epoch %d", meta.Value.Epoch, who.Node, who.Era.Epoch)
	case !node.Exists():
		return volume.Errorf(ErrUnregistered, "host %q is not registered in the cluster", who.Node)
	case n.Incarnation != who.Incarnation:
		return volume.Errorf(ErrUnregistered, "host %q was registered again in the meantime (incarnation %d, this agent has %d)", who.Node, n.Incarnation, who.Incarnation)
	case n.State == NodeFencing || n.State == NodeFenced:
		return volume.Errorf(ErrUnregistered, "host %q is being fenced; its volumes are taken over by other hosts", who.Node)
	default:
		return nil
	}
}

// ErrNewerSchema means that the release of this host is too old to write to the cluster.
var ErrNewerSchema = fmt.Errorf("newer schema: %w", volume.ErrRefused)

// ErrUnregistered means that the cluster does not accept writes of this host, until the host has
// registered. It wraps volume.ErrRefused.
var ErrUnregistered = fmt.Errorf("not registered: %w", volume.ErrRefused)

// After returns the situation after a transaction that was executed in a revision.
func (s Situation) After(t Txn, revision int64) (Situation, error) {
	var errs []error
	for _, op := range t.Then {
		kv := KV{Key: op.Key}
		if op.Kind == OpPut {
			kv = KV{Key: op.Key, Value: op.Value, Create: revision, Mod: revision}
		}

		switch op.Key {
		case s.Volume.Key:
			s.Volume = entry[Definition](op.Key, s.Volume.changed(kv), &errs)
		case s.Use.Key:
			s.Use = entry[Use](op.Key, s.Use.changed(kv), &errs)
		case s.Hold.Key:
			s.Hold = entry[Hold](op.Key, s.Hold.changed(kv), &errs)
		case s.Call.Key:
			s.Call = entry[Call](op.Key, s.Call.changed(kv), &errs)
		case s.Move.Key:
			s.Move = entry[Move](op.Key, s.Move.changed(kv), &errs)
		}
	}

	return s, errors.Join(errs...)
}

// mine reports whether the call in flight was made by the asking host for its own attachment. Calls
// that the host makes for the storage, or for other hosts, have their own end.
func (s Situation) mine(who Asker) bool {
	c := s.Call.Value
	return s.Call.Exists() && c.Executor == who.Node && c.Target == who.Node && !c.Taken
}

// guards returns the conditions that every transaction of a host has: the cluster and the host's own
// key have not changed.
func (s Situation) guards() []Compare {
	return []Compare{Unchanged(s.Meta.KV), Unchanged(s.Node.KV)}
}

// txn returns a transaction with the given conditions and changes. If a condition is false, the
// transaction reads the situation anew.
func (s Situation) txn(who Asker, compares []Compare, then ...Op) Txn {
	return Txn{If: append(s.guards(), compares...), Then: then, Else: Reads(who.Node, s.id)}
}

// othersUse reports whether a host other than the given one uses a volume beside others. It also
// returns the condition under which the answer stays true. The parameter users contains at most two
// of the users.
func othersUse(id string, users []Entry[User], node string) (others bool, still []Compare) {
	own := UserKey(id, node)
	for _, u := range users {
		if u.Key != own {
			return true, []Compare{Unchanged(u.KV)}
		}
	}

	span := Users(id)
	return false, []Compare{NoneIn(Span{Key: span.Key, End: own}), NoneIn(Span{Key: own + "\x00", End: span.End})}
}

// single reports whether only one host may use a volume in the mode.
func single(mode call.AccessMode) bool {
	switch mode {
	case call.MultiNodeReaderOnly, call.MultiNodeSingleWriter, call.MultiNodeMultiWriter:
		return false
	default:
		return true
	}
}

// holds reports whether a hold with these properties makes its host the holder in Use. Otherwise
// its host is one of the users.
func holds(mode call.AccessMode, reader bool) bool {
	return single(mode) || mode == call.MultiNodeSingleWriter && !reader
}

// held returns the error for a volume that another host prevents from being used. The agent retries
// when the keys change.
func (s Situation) held(format string, args ...any) *volume.CallError {
	return &volume.CallError{
		Step: string(volume.Acquire), Code: volume.CodeHeld, Message: volume.Errorf(nil, format, args...).Message,
		Retry: volume.RetryBackoff, Answered: true, Remedy: remedy.Of(remedy.ShowVolume, s.id),
	}
}

// ago describes a time for a message: the time itself, and how long ago it was.
func ago(t, now time.Time) string {
	if t.IsZero() {
		return "an unknown time"
	}
	return t.UTC().Format(time.RFC3339) + " (" + now.Sub(t).Round(time.Second).String() + ")"
}
