package shared

import (
	"fmt"
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// Ask describes a hold that a host wants.
type Ask struct {
	Asker
	Operation string // unique name of the acquisition
	Access    call.AccessMode
	Reader    bool

	// Attach is set if the volume needs ControllerPublishVolume. NodeID is the CSI node id for it, and
	// Deadline is the time limit of the call.
	Attach   bool
	NodeID   string
	Deadline time.Duration

	// Controller is set if the host knows a controller of the driver, so that Attach is certain.
	Controller bool

	Now time.Time
}

// Granted returns the token of the hold that the operation of the request has already got. A hold of another kind
// is not the one that the request asks for. A host uses the name of its operation again for its next hold. So after a
// restore of the store, or of the host's disk, such a hold is older or newer than the record of the host.
func (s Situation) Granted(a Ask) (token volume.Token, ok bool) {
	if !s.Hold.Exists() || !s.Hold.Value.matches(a.Operation, a.Access, a.Reader) {
		return volume.Token{}, false
	}
	return volume.Token{Epoch: s.Meta.Value.Epoch, Revision: s.Hold.Create}, true
}

// matches reports whether the hold belongs to an operation and gives the same right.
func (h Hold) matches(operation string, access call.AccessMode, reader bool) bool {
	return h.Operation == operation && h.Access == access && h.Reader == reader
}

// MayBeAttached reports whether the volume may be attached for a hold of the host, although its record shows no
// attachment. The agent that got the hold may have sent its ControllerPublishVolume. The present one has not, if it
// has another incarnation.
func (h Hold) MayBeAttached(who Asker) bool {
	began := h.Attachment == Attaching && h.Incarnation != who.Incarnation
	return h.Attachment == Attached || began
}

// Admit returns the transaction that gives a host a hold on the volume. If the volume needs
// ControllerPublishVolume, the same transaction announces this call. The token of the hold is the
// revision of the transaction.
//
// Admit returns a volume.CallError with the code CodeHeld if the host must wait for another host,
// and a volume.Error if waiting is useless.
func (s Situation) Admit(a Ask) (Txn, error) {
	if err := s.checkAdmission(a); err != nil {
		return Txn{}, err
	}

	compares := []Compare{Unchanged(s.Volume.KV), Unchanged(s.Use.KV), Absent(s.Hold.Key), Absent(s.Call.Key), Unchanged(s.Move.KV)}
	hold := Hold{Access: a.Access, Reader: a.Reader, Operation: a.Operation, Incarnation: a.Incarnation, NodeID: a.NodeID, Since: a.Now}
	if a.Attach {
		hold.Attachment = Attaching
	}

	then := []Op{s.Hold.Put(hold)}
	if a.Attach {
		then = append(then, s.Call.Put(Call{
			Executor: a.Node, Incarnation: a.Incarnation, Operation: a.Operation,
			Call: call.ControllerPublish, Target: a.Node, NodeID: a.NodeID, Since: a.Now, Deadline: a.Deadline,
		}))
	}
	if def := s.Volume.Value; a.Controller && a.Attach != def.Attach {
		def.Attach = a.Attach
		then = append(then, s.Volume.Put(def))
	}

	if s.fulfils(a) {
		then = append(then, Delete(s.Move.Key))
	}

	use := s.Use.Value
	if holds(a.Access, a.Reader) {
		use.Holder, use.Since = a.Node, a.Now
	} else {
		then = append(then, Put(UserKey(s.id, a.Node), Entry[User]{}.Encode(User{Since: a.Now})))
	}

	// A further user changes nothing in the key use, so hosts that come at the same time do not
	// disturb each other.
	if use.Access = a.Access; !use.same(s.Use.Value) {
		use.Generation++
		then = append(then, s.Use.Put(use))
	}

	return s.txn(a.Asker, compares, then...), nil
}

// checkAdmission returns an error if the host cannot get the hold now.
func (s Situation) checkAdmission(a Ask) error {
	if err := s.checkWrite(a.Asker); err != nil {
		return err
	}

	use, id := s.Use.Value, s.id
	switch def := s.Volume.Value; {
	case !s.Volume.Exists() || !s.Use.Exists():
		return volume.Errorf(volume.ErrNotFound, "the cluster has no volume %q (any more)", id).WithHint("volctl volume list")
	case def.Deleting || def.Volume.Provision == volume.Deleting:
		return volume.Errorf(volume.ErrRefused, "volume %q is being deleted", id).WithRemedy(remedy.Of(remedy.ShowVolume, id))
	case def.Volume.Provision != volume.Provisioned:
		return volume.Errorf(volume.ErrRefused, "volume %q is not ready to be claimed: %s did not end", id, def.Volume.Provision).
			WithRemedy(remedy.Of(remedy.ShowVolume, id))
	case s.Node.Value.State == NodeDraining:
		return volume.Errorf(ErrDraining, "cannot claim volume %q: this host is draining", id).WithRemedy(remedy.Of(remedy.Undrain))
	case def.Attach && !a.Attach && !a.Controller:
		return s.held("volume %q needs %s, and this host knows no controller of driver %s yet", id, call.ControllerPublish, def.Volume.Driver)
	case len(use.Rivals) > 0:
		return s.conflict()
	case s.Hold.Exists():
		return s.held("an earlier hold of this host on volume %q is being given up", id)
	case s.Call.Exists():
		c := s.Call.Value
		return s.held("host %q is calling %s for volume %q since %s", c.Executor, c.Call, id, ago(c.Since, a.Now))
	case use.Access != "" && use.Access != a.Access:
		return s.held("volume %q is used in mode %s by %s; mode %s must wait until it is free", id, use.Access, s.user(a), a.Access)
	case use.Holder != "" && holds(a.Access, a.Reader):
		return s.held("volume %q is held by host %q in mode %s since %s", id, use.Holder, use.Access, ago(use.Since, a.Now))
	case s.waitsForResume(a.Access, a.Reader):
		return s.suspended()
	default:
		return s.reserved(a)
	}
}

// waitsForResume reports whether a hold must wait until a person resumes the cluster. A host that has not
// registered since the restore of the store may use the volume, also in another mode than the store shows.
func (s Situation) waitsForResume(access call.AccessMode, reader bool) bool {
	modes := s.Volume.Value.Volume.Capabilities
	other := func(c call.Capability) bool { return c.Access != modes[0].Access }
	return s.Meta.Value.Suspended != "" && (holds(access, reader) || slices.ContainsFunc(modes, other))
}

// user names one host that uses the volume, for a message.
func (s Situation) user(a Ask) string {
	if use := s.Use.Value; use.Holder != "" {
		return "host " + use.Holder + " since " + ago(use.Since, a.Now)
	}
	for _, u := range s.Users {
		if node, ok := LastID(u.Key); ok {
			return "host " + node + " since " + ago(u.Value.Since, a.Now)
		}
	}
	return "another host"
}

// ErrDraining means that the cluster shows the host as draining, so that the host gets no further hold.
var ErrDraining = fmt.Errorf("draining: %w", volume.ErrRefused)

// Confirm returns the transaction that records the attachment and ends the announced call. The agent
// mounts the volume only after this transaction. It returns an error if the host has lost its hold,
// if the call was taken over, or if the last call of the host may have detached the volume. A record that
// comes from an older snapshot of the host's disk does not show such a detach.
func (s Situation) Confirm(who Asker, operation string) (Txn, error) {
	if err := s.checkHold(who, operation); err != nil {
		return Txn{}, err
	}

	hold := s.Hold.Value
	if !s.Call.Exists() && hold.Attachment == Attached {
		return Txn{}, nil // an earlier transaction with a lost answer has done it
	}
	if s.mine(who) && s.Call.Value.Call == call.ControllerUnpublish {
		return Txn{}, s.held("an earlier agent of this host was detaching volume %q; it is attached again", s.id)
	}
	if !s.mine(who) {
		return Txn{}, s.held("the call that attached volume %q to this host was taken over; it is attached again", s.id)
	}

	hold.Attachment, hold.By = Attached, ""
	return s.txn(who, []Compare{Unchanged(s.Hold.KV), Unchanged(s.Call.KV)}, s.Hold.Put(hold), Delete(s.Call.Key)), nil
}

// checkHold returns an error if the host cannot write, or has lost its hold. An error for a lost
// hold wraps ErrHoldLost.
func (s Situation) checkHold(who Asker, operation string) error {
	if err := s.checkWrite(who); err != nil {
		return err
	}
	if !s.Hold.Exists() || s.Hold.Value.Operation != operation {
		return ErrHoldLost
	}
	return nil
}

// ErrHoldLost means that the cluster does not show the hold of the host. Another host may use the
// volume.
var ErrHoldLost = volume.Errorf(volume.ErrRefused, "this host has lost its hold on the volume")

// GiveUp returns the transaction that ends the hold of a host with the given operation. If the
// cluster shows no such hold, the transaction prevents that a late transaction still makes it. An
// empty transaction means that nothing is left to do. The caller must have the proof of unmount.
func (s Situation) GiveUp(who Asker, operation string, now time.Time) (Txn, error) {
	if err := s.checkWrite(who); err != nil {
		return Txn{}, err
	}
	if s.Call.Exists() && !s.mine(who) && s.Call.Value.Target == who.Node {
		c := s.Call.Value
		return Txn{}, s.held("host %q is calling %s for volume %q since %s", c.Executor, c.Call, s.id, ago(c.Since, now))
	}

	compares := []Compare{Unchanged(s.Use.KV), Unchanged(s.Hold.KV)}
	var then []Op
	if s.mine(who) {
		compares, then = append(compares, Unchanged(s.Call.KV)), append(then, Delete(s.Call.Key))
	}

	use := s.Use.Value
	if !s.Hold.Exists() || s.Hold.Value.Operation != operation {
		if !s.Use.Exists() {
			return Txn{}, nil // the volume is gone, and an admission compares its definition
		}

		use.Generation++
		return s.txn(who, compares, append(then, s.Use.Put(use))...), nil
	}

	then = append(then, Delete(s.Hold.Key), Delete(UserKey(s.id, who.Node)))
	use, joined, still := leave(s.id, use, s.Users, who.Node)
	then = append(then, joined...)
	if !use.same(s.Use.Value) {
		use.Generation++
		then = append(then, s.Use.Put(use))
	}

	return s.txn(who, slices.Concat(compares, still), then...), nil
}
