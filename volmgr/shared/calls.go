package shared

import (
	"time"

	"github.com/volagent/volagent/volmgr/call"
)

// AnnouncedCall describes a controller call before it is made.
type AnnouncedCall struct {
	Asker
	Operation string // of the hold, or of the intent that the call serves
	Call      call.Method
	Target    string // the host whose attachment the call changes; empty for other calls
	NodeID    string
	Deadline  time.Duration // of the call
	Mounted   bool          // the host has the volume mounted, or may have it
	Now       time.Time
}

// value returns the stored form of the call.
func (c AnnouncedCall) value() Call {
	return Call{
		Executor: c.Node, Incarnation: c.Incarnation, Operation: c.Operation, Call: c.Call, Target: c.Target, NodeID: c.NodeID, Since: c.Now, Deadline: c.Deadline,
		Mounted: c.Mounted && c.Call == call.ControllerPublish,
	}
}

// BeginAttachmentCall returns the transaction that announces a ControllerPublishVolume or
// ControllerUnpublishVolume under a hold of the host. The agent makes the call only after this
// transaction, because etcd alone says whether the host still has the hold. An earlier call of the
// same host is replaced: the record on the host already waits for its late effects. After a restore of the
// store, the storage may be attached to another host instead, so the host does not attach the volume again
// until a person resumes the cluster.
func (s Situation) BeginAttachmentCall(c AnnouncedCall) (Txn, error) {
	if err := s.checkHold(c.Asker, c.Operation); err != nil {
		return Txn{}, err
	}
	if err := s.checkNoOtherCall(c); err != nil {
		return Txn{}, err
	}
	hold := s.Hold.Value
	if c.Call == call.ControllerPublish {
		if err := s.checkAlone(hold.Access, hold.Reader); err != nil {
			return Txn{}, err
		}
	}

	hold.NodeID, hold.Attachment, hold.By = c.NodeID, Attaching, ""
	if hold.Late == c.Node {
		hold.Late = "" // the call of this host has ended, because the host makes the next one
	}
	if c.Call == call.ControllerUnpublish {
		hold.Attachment = Detaching
	}

	return s.txn(c.Asker, []Compare{Unchanged(s.Hold.KV), Unchanged(s.Call.KV)}, s.Hold.Put(hold), s.Call.Put(c.value())), nil
}

// checkNoOtherCall returns an error if another host has a call in flight for the volume.
func (s Situation) checkNoOtherCall(c AnnouncedCall) error {
	if !s.Call.Exists() || s.mine(c.Asker) {
		return nil
	}

	other := s.Call.Value
	return s.held("host %q is calling %s for volume %q since %s", other.Executor, other.Call, s.id, ago(other.Since, c.Now))
}

// EndLateDetach returns the transaction that ends an announced ControllerUnpublishVolume of the host which
// the host has not made. Its announcement was executed late, after the host had kept the volume for another
// claim. The attachment becomes unknown, and the host attaches the volume again. An empty transaction means
// that no such call is announced.
func (s Situation) EndLateDetach(who Asker, operation string) (Txn, error) {
	if err := s.checkHold(who, operation); err != nil {
		return Txn{}, err
	}
	if !s.mine(who) || s.Call.Value.Call != call.ControllerUnpublish {
		return Txn{}, nil
	}

	hold := s.Hold.Value
	hold.Attachment, hold.By = Unclear, who.Node
	return s.txn(who, []Compare{Unchanged(s.Hold.KV), Unchanged(s.Call.KV)}, s.Hold.Put(hold), Delete(s.Call.Key)), nil
}

// EndAttachmentCall returns the transaction that ends an announced call that has failed with an
// answer. The state of the attachment is then unknown, and the volume is free for the calls of other
// hosts. An empty transaction means that nothing is left to do.
func (s Situation) EndAttachmentCall(who Asker, operation string) (Txn, error) {
	if err := s.checkHold(who, operation); err != nil {
		return Txn{}, err
	}
	if !s.mine(who) {
		return Txn{}, nil
	}

	hold := s.Hold.Value
	hold.Attachment, hold.By = Unclear, ""
	return s.txn(who, []Compare{Unchanged(s.Hold.KV), Unchanged(s.Call.KV)}, s.Hold.Put(hold), Delete(s.Call.Key)), nil
}

// EndOldCall is EndAttachmentCall for a call of an earlier agent of the host, while a restore of the store prevents
// the host from using the hold. No step of the volume leads to the end of such a call, and the call would keep a
// rival from its detach. An empty transaction also means that the call may still be in flight.
func (s Situation) EndOldCall(who Asker, operation string, now time.Time) (Txn, error) {
	c := s.Call.Value
	if s.Call.Exists() && now.Sub(c.Since) <= c.Deadline {
		return Txn{}, nil
	}
	return s.EndAttachmentCall(who, operation)
}
