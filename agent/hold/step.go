package hold

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// Steps performs the steps of volumes. For a shared volume, it first asks the cluster.
type Steps struct {
	*ownHolds

	waits       *waits
	definitions Definitions
}

// Observe observes the paths of a record on this host.
func (s Steps) Observe(ctx context.Context, r volume.Record, now volume.Glimpse) volume.Observed {
	return s.Host.Observe(ctx, r, now)
}

// Do performs one step.
func (s Steps) Do(ctx context.Context, r volume.Record, a volume.Action, p plugin.View) volume.Outcome {
	if !r.Volume.Shared {
		return s.Host.Do(ctx, r, a, p)
	}

	ctx = inLane(ctx, a.Kind)
	switch a.Kind {
	case volume.Acquire:
		return s.acquire(ctx, r, p)
	case volume.Confirm:
		return s.confirm(ctx, r)
	case volume.GiveUp:
		return s.giveUp(ctx, r)
	case call.ControllerPublish, call.ControllerUnpublish:
		return s.announced(ctx, r, a, p)
	case call.NodeExpand:
		out := s.Host.Do(ctx, r, a, p)
		if out.Err == nil && s.Cluster(r).Away == "" {
			s.nodeExpanded(ctx, r.Volume.ID, a.Size)
		}
		return out
	default:
		return s.Host.Do(ctx, r, a, p)
	}
}

// acquire gets the hold of this host, or verifies the one that it has.
func (s Steps) acquire(ctx context.Context, r volume.Record, p plugin.View) volume.Outcome {
	who, err := s.Asker()
	if err != nil {
		return unsent(volume.Acquire, err)
	}

	begun := time.Now()
	h := r.Node.Hold
	ask := shared.Ask{
		Asker: who, Operation: h.Operation, Access: h.Access, Reader: h.Reader,
		Attach: p.Info.Caps.Attach, NodeID: p.Info.NodeID, Deadline: p.ControllerTimeout, Controller: p.Info.HasController, Now: time.Now().UTC(),
	}

	id := r.Volume.ID
	admits := func(sit shared.Situation) (shared.Txn, error) {
		if _, ok := sit.Granted(ask); ok {
			return shared.Txn{}, sit.CheckVerified(ask)
		}
		return sit.Admit(ask)
	}
	sit, err := s.decide(ctx, id, admits)
	if err != nil {
		out := outcome(volume.Acquire, err)
		_, granted := sit.Granted(ask)
		switch {
		case granted:
			s.endOldCall(ctx, id, sit, h.Operation)
		case sit.Hold.Exists():
			s.adoptHold(ctx, id, h.Operation, sit.Hold.Value)
		}
		if errors.Is(err, shared.ErrDraining) && !s.Draining() {
			out.Err.Retry = volume.RetryBackoff // the drain has ended, and the cluster does not show that yet
		}
		if out.Err.Code == volume.CodeHeld {
			s.waits.noteAbsence(ctx, sit, id, out.Err)
			s.waits.await(id, true, admits)
		}
		return out
	}

	s.Admitted(time.Since(begun))
	s.waits.stopAwaiting(id)
	s.setEnding(id, "")
	if !ask.Attach {
		s.takeCached(id) // no further transaction follows soon
	}
	if err := s.redefine(ctx, sit.Volume.Value.Volume); err != nil {
		s.Log.Error("cannot store the newest definition of a volume", "volume", id, "error", err)
	}
	token, _ := sit.Granted(ask)
	return volume.Outcome{Token: token, Since: sit.Hold.Value.Since}
}

// confirm records the attachment in the cluster.
func (s Steps) confirm(ctx context.Context, r volume.Record) volume.Outcome {
	who, err := s.Asker()
	if err != nil {
		return unsent(volume.Confirm, err)
	}

	_, err = s.decide(ctx, r.Volume.ID, func(sit shared.Situation) (shared.Txn, error) { return sit.Confirm(who, r.Node.Hold.Operation) })
	s.takeCached(r.Volume.ID)
	return s.checkedHold(ctx, r, volume.Confirm, err)
}

// giveUp ends the hold of this host.
func (s Steps) giveUp(ctx context.Context, r volume.Record) volume.Outcome {
	id := r.Volume.ID
	s.waits.stopAwaiting(id)
	if r.Node.Hold.Lost {
		s.markStray(id) // this host may have another hold, which is given up next
		return volume.Outcome{}
	}

	who, err := s.Asker()
	if err != nil {
		return unsent(volume.GiveUp, err)
	}

	s.setEnding(id, r.Node.Hold.Operation)
	ends := func(sit shared.Situation) (shared.Txn, error) {
		if is := sit.Hold.Value; is.Operation == r.Node.Hold.Operation && is.MayBeAttached(who) {
			return shared.Txn{}, errAttached
		}
		return sit.GiveUp(who, r.Node.Hold.Operation, time.Now().UTC())
	}
	sit, err := s.decide(ctx, id, ends)
	s.takeCached(id)
	if err == nil {
		return volume.Outcome{}
	}
	if errors.Is(err, errAttached) {
		err = errors.Join(err, s.findAttachment(ctx, id, sit.Hold.Value))
	}

	out := outcome(volume.GiveUp, err)
	if out.Err.Code == volume.CodeHeld {
		s.waits.await(id, false, ends) // otherwise only the next retry would see the end of the other call
	}
	if out.Unsent {
		s.setEnding(id, "") // the host keeps the hold, and may lose it
	}
	return out
}

// announced makes a ControllerPublishVolume or ControllerUnpublishVolume. It announces the call in
// the cluster before. The admission has already announced the first ControllerPublishVolume.
func (s Steps) announced(ctx context.Context, r volume.Record, a volume.Action, p plugin.View) volume.Outcome {
	who, err := s.Asker()
	if err != nil {
		return unsent(a.Kind, err)
	}

	announced := shared.AnnouncedCall{
		Asker: who, Operation: r.Node.Hold.Operation, Call: a.Kind, Target: s.Node, NodeID: a.NodeID, Deadline: p.ControllerTimeout, Mounted: r.Mounted(), Now: time.Now().UTC(),
	}
	if !s.justAdmitted(r, a, announced) {
		begins := func(sit shared.Situation) (shared.Txn, error) { return sit.BeginAttachmentCall(announced) }
		if _, err := s.decide(ctx, r.Volume.ID, begins); err != nil {
			s.checkedHold(ctx, r, a.Kind, err)
			out := unsent(a.Kind, err)
			if out.Err.Code == volume.CodeHeld {
				s.waits.await(r.Volume.ID, false, begins) // otherwise only the next retry would see the end of the other call
			}
			return out
		}
	}

	s.calls.Add(1)
	out := s.Host.Do(ctx, r, a, p)
	s.calls.Add(-1)
	if out.Err != nil && out.Err.Unsent && out.Err.Code == volume.CodeNoExecutor {
		out.Unsent = true // the attachment is as before
	}
	uncertain := out.Err != nil && out.Err.Uncertain() && !out.Unsent
	if uncertain || out.Err == nil && !detachedForClaims(r, a) {
		return out // the call ends with the next step of the volume
	}

	if _, err := s.decide(ctx, r.Volume.ID, func(sit shared.Situation) (shared.Txn, error) {
		return sit.EndAttachmentCall(who, announced.Operation)
	}); err != nil {
		s.Log.Warn("cannot end an announced call in the cluster; the next step of the volume ends it", "volume", r.Volume.ID, "call", a.Kind, "error", err)
	}
	s.takeCached(r.Volume.ID)
	return out
}

// detachedForClaims reports whether a step has detached a volume that claims want, because an attach has failed.
// The next attach may be minutes away, and no host can correct a wrong attachment while a call is announced.
func detachedForClaims(r volume.Record, a volume.Action) bool {
	wanted := slices.ContainsFunc(r.Ordered(), func(c volume.Claim) bool { return c.Wanted })
	return a.Kind == call.ControllerUnpublish && wanted
}

// justAdmitted reports whether the last transaction about the volume was the admission of this host,
// which has announced the call.
func (s Steps) justAdmitted(r volume.Record, a volume.Action, c shared.AnnouncedCall) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	sit, ok := s.cached[r.Volume.ID]
	announced := sit.Call.Value
	first := r.Node.Attached == volume.Absent && a.Kind == call.ControllerPublish
	same := announced.Call == c.Call && announced.Operation == c.Operation && announced.Incarnation == c.Incarnation && announced.NodeID == c.NodeID
	return ok && first && sit.Call.Exists() && same
}

// checkedHold returns the outcome of a decision that compares the hold. If the hold is lost, the
// record learns that.
func (s Steps) checkedHold(ctx context.Context, r volume.Record, step call.Method, err error) volume.Outcome {
	if err == nil {
		return volume.Outcome{}
	}

	if errors.Is(err, shared.ErrHoldLost) && !s.isSuspended() {
		var lerr error
		if r.Node.Hold.State != volume.Unknown {
			lerr = s.checkLoss(ctx, r) // a hold of unknown state may have ended before the records were written
		}
		if lerr == nil {
			lerr = s.lose(ctx, r.Key(), r.Node.Hold.Token)
		}
		if lerr != nil {
			s.CompareAgain()
			err = errors.Join(err, lerr)
		}
	}

	return outcome(step, err)
}

// outcome returns the outcome of a step that failed in the cluster.
func outcome(step call.Method, err error) volume.Outcome {
	var ce *volume.CallError
	if errors.As(err, &ce) {
		return volume.Outcome{Err: ce}
	}

	failed := &volume.CallError{Step: string(step), Code: volume.CodeHost, Message: err.Error(), Retry: volume.RetryBackoff, Answered: true}
	var refused *volume.Error
	switch {
	case errors.Is(err, shared.ErrUnknownOutcome):
		failed.Answered = false
	case errors.As(err, &refused) && !passing(err):
		failed.Retry, failed.Remedy = volume.RetryChange, refused.Remedy
	default:
		return volume.Outcome{Err: failed, Unsent: true}
	}

	return volume.Outcome{Err: failed}
}

// passing reports whether a refusal ends without a change by a person: the host registers again, or the
// cluster becomes reachable.
func passing(err error) bool {
	for _, kind := range []error{shared.ErrUnregistered, shared.ErrHoldLost, shared.ErrWentBack, volume.ErrPluginUnavailable} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// unsent returns the outcome of a step that failed before it changed anything.
func unsent(step call.Method, err error) volume.Outcome {
	out := outcome(step, err)
	out.Unsent = true
	return out
}

// nodeExpanded records in the cluster that this host has completed NodeExpandVolume.
func (s Steps) nodeExpanded(ctx context.Context, id string, size int64) {
	_, err := s.definitions.Redefine(ctx, id, func(had volume.SharedVolume) (volume.Volume, bool, error) {
		now, changed := had.Volume.NodeEnlarged(size)
		return now, changed, nil
	})
	if err != nil {
		s.Log.Warn("cannot record an expansion in the cluster; the next host calls NodeExpandVolume again", "volume", id, "call", call.NodeExpand, "error", err)
	}
}
