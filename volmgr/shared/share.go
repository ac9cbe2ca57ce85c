package shared

import (
	"fmt"

	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// Question asks every host whether it uses a storage volume under an id of its own. Its key has the
// lease of the asking host.
type Question struct {
	ID         string `json:"id"` // unique
	Node       string `json:"node"`
	Volume     string `json:"volume"`
	Driver     string `json:"driver"`
	ExternalID string `json:"external_id"`
}

// Answer is the answer of one host. Its key has the lease of the asking host. Volume is the id under which the host uses the storage, or empty.
type Answer struct {
	Volume string `json:"volume,omitempty"`
}

// Ask returns the transaction that asks a question. A question of another host about the same
// storage must end first.
func (p Place) Ask(who Asker, q Question, lease Lease) (Txn, error) {
	if err := CheckRegistered(p.Meta, p.Node, who); err != nil {
		return Txn{}, err
	}
	if err := p.checkNew(q.ExternalID); err != nil {
		return Txn{}, err
	}
	if other := p.Question.Value; p.Question.Exists() && other.Node != who.Node {
		return Txn{}, volume.Errorf(volume.ErrRefused, "host %q is sharing external_id %q of driver %s as volume %q", other.Node, other.ExternalID, other.Driver, other.Volume)
	}

	then := []Op{PutLeased(p.Question.Key, p.Question.Encode(q), lease)}
	if p.Question.Exists() {
		then = append(then, Op{Kind: OpDelete, Span: Answers(p.Question.Value.ID)})
	}
	return p.txn([]Compare{Unchanged(p.Question.KV)}, then...), nil
}

// EndQuestion returns the transaction that removes a question with its answers. An empty transaction
// means that the question is gone.
func (p Place) EndQuestion(id string) Txn {
	if !p.Question.Exists() || p.Question.Value.ID != id {
		return Txn{}
	}
	answers := Op{Kind: OpDelete, Span: Answers(id)}
	return p.txn([]Compare{Unchanged(p.Question.KV)}, Delete(p.Question.Key), answers)
}

// checkNew refuses a volume whose id or storage the cluster already has.
func (p Place) checkNew(external string) error {
	if p.Volume.Exists() {
		had := p.Volume.Value.Volume
		return volume.Errorf(volume.ErrRefused, "this host has volume %q with external_id %q, and the cluster already has a shared volume %q with external_id %q of plugin %q",
			p.id, external, p.id, had.ExternalID, had.PluginID).WithHint("one of both needs another id: deregister it, and register it under a new one")
	}
	return p.checkUnique()
}

// Share returns the transaction that makes a volume of one host a shared volume. The parameter hold
// is the hold that the host gets in the same transaction, or nil if it does not use the volume. The
// parameter question is the id of the question that all hosts have answered, or empty if they were
// not asked.
func (p Place) Share(who Asker, v volume.Volume, hold *Hold, question string) (Txn, error) {
	if err := CheckRegistered(p.Meta, p.Node, who); err != nil {
		return Txn{}, err
	}
	if err := p.checkNew(v.ExternalID); err != nil {
		return Txn{}, err
	}
	if question != "" && (!p.Question.Exists() || p.Question.Value.ID != question) {
		return Txn{}, volume.Errorf(volume.ErrRefused, "the question to the other hosts about volume %q has ended too early", p.id).WithRemedy(remedy.Of(remedy.ShareVolume, p.id))
	}

	compares, then := p.claimStorage()
	compares = append(compares, Absent(p.Volume.Key), Unchanged(p.Use.KV), Absent(p.Call.Key), Absent(p.Hold.Key), Unchanged(p.Question.KV))
	use := Use{Generation: p.Use.Value.Generation + 1}
	if hold != nil {
		use.Access = hold.Access
		then = append(then, p.Hold.Put(*hold))
		if holds(hold.Access, hold.Reader) {
			use.Holder, use.Since = who.Node, hold.Since
		} else {
			then = append(then, Put(UserKey(p.id, who.Node), Entry[User]{}.Encode(User{Since: hold.Since})))
		}
	}

	return p.txn(compares, append(then, p.put(Definition{Volume: v}), p.Use.Put(use))...), nil
}

// Shared returns the token of the hold that an earlier Share with the operation has made.
func (p Place) Shared(operation string) (token volume.Token, ok bool) {
	if !p.Hold.Exists() || p.Hold.Value.Operation != operation {
		return volume.Token{}, false
	}
	return volume.Token{Epoch: p.Meta.Value.Epoch, Revision: p.Hold.Create}, true
}

// Unshare returns the transaction that removes a volume from the cluster, together with the hold of
// the asking host. It refuses a volume that another host uses. Without a hold, operation is empty.
func (p Place) Unshare(who Asker, operation string) (Txn, error) {
	if err := CheckRegistered(p.Meta, p.Node, who); err != nil {
		return Txn{}, err
	}
	if err := p.checkUnshare(who, operation); err != nil {
		return Txn{}, err
	}

	own := UserKey(p.id, who.Node)
	span := Users(p.id)
	compares := []Compare{
		Unchanged(p.Volume.KV), Unchanged(p.Use.KV), Unchanged(p.Hold.KV), Absent(p.Call.Key), Unchanged(p.External.KV),
		NoneIn(Span{Key: span.Key, End: own}), NoneIn(Span{Key: own + "\x00", End: span.End}),
	}
	then := []Op{Delete(p.Volume.Key), Delete(p.Use.Key), Delete(p.Hold.Key), Delete(own), Delete(NoticeKey(p.id)), p.removed(volume.EventUnshared)}
	if p.External.Value.Volume == p.id {
		then = append(then, Delete(p.External.Key))
	}
	return p.txn(compares, then...), nil
}

// checkUnshare refuses a volume that another host uses, or whose definition is being changed.
func (p Place) checkUnshare(who Asker, operation string) error {
	v := p.Volume.Value.Volume
	if !p.Volume.Exists() {
		return missing(p.id)
	}
	if p.Call.Exists() {
		return p.busy()
	}
	for _, node := range p.Shown().Users {
		if node != who.Node {
			return volume.Errorf(volume.ErrRefused, "host %q uses volume %q in mode %s", node, p.id, p.Use.Value.Access).WithRemedy(remedy.Of(remedy.ShowVolume, p.id))
		}
	}

	unfinished := p.Volume.Value.Deleting || v.Provision != volume.Provisioned || v.Expansion.Want > 0 || len(v.Modifying) > 0
	switch {
	case unfinished:
		return volume.Errorf(volume.ErrRefused, "an earlier change of volume %q has not finished", p.id).WithRemedy(remedy.Of(remedy.ShowVolume, p.id))
	case p.Hold.Exists() && p.Hold.Value.Operation != operation:
		return volume.Errorf(volume.ErrRefused, "this host is still giving up its hold on volume %q", p.id).WithRemedy(remedy.Of(remedy.ShowVolume, p.id))
	case p.Hold.Exists() && p.Hold.Value.Attachment != "" && p.Hold.Value.Attachment != Attached:
		return volume.Errorf(volume.ErrRefused, "volume %q is %s on this host", p.id, p.Hold.Value.Attachment).WithRemedy(remedy.Of(remedy.ShowVolume, p.id))
	}

	return nil
}

// Elsewhere returns the error for storage that a host wants to use on its own, although the cluster
// has it as a shared volume or is about to share it.
func (p Place) Elsewhere(who Asker) error {
	what := fmt.Sprintf("external_id %q of driver %s", p.external, p.driver)
	switch q := p.Question.Value; {
	case p.External.Exists():
		other := p.External.Value.Volume
		return volume.Errorf(volume.ErrStorageTaken, "%s is registered in the cluster as shared volume %q", what, other).WithRemedy(remedy.Of(remedy.ShowVolume, other))
	case p.Question.Exists() && q.Node != who.Node:
		return volume.Errorf(volume.ErrRefused, "host %q is sharing %s as volume %q", q.Node, what, q.Volume)
	case p.Volume.Exists():
		return volume.Errorf(volume.ErrRefused, "the cluster has a shared volume %q with external_id %q", p.id, p.Volume.Value.Volume.ExternalID).
			WithHint("register the volume under another id")
	default:
		return nil
	}
}

// HoldOf returns a hold in the form in which a host stores it.
func HoldOf(e Entry[Hold], epoch int64) volume.Hold {
	h := e.Value
	return volume.Hold{
		State: volume.Present, Operation: h.Operation, Token: volume.Token{Epoch: epoch, Revision: e.Create},
		Access: h.Access, Reader: h.Reader, Since: h.Since, Confirmed: h.Attachment == Attached,
	}
}
