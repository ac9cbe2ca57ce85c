package hold

import (
	"context"

	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// follower reacts to changes in the cluster that concern this host.
type follower struct {
	*ownHolds
}

// follow watches the keys of this host until ctx ends. A change of the host's own key or of the
// cluster's key asks for a check of the registration. A hold that vanished is lost.
func (s *follower) follow(ctx context.Context) {
	spans := []shared.Span{{Key: shared.MetaKey}, {Key: shared.NodeKey(s.Node)}, shared.HoldsOf(s.Node), shared.Questions()}
	tails := []shared.Span{shared.Notices(), {Key: shared.RemovedKey}}    // one per changed volume, so the agent remembers none of them
	_ = shared.Follow(ctx, s.Store, spans, tails, func(u shared.Update) { // the error is that of ctx
		if u.Complete {
			// A hold or a definition may have changed before this reading, so all are compared again.
			s.CompareAgain()
		}
		s.lag.seen(u.Revision)
		for _, c := range u.Changes {
			_, _, isHold := shared.HoldIDs(c.Key)
			if u.Complete && isHold && c.Deleted {
				continue // etcd may have been restored, and the comparison looks for a proof of the loss
			}
			s.react(ctx, c)
		}
	})
}

// react reacts to one change in the cluster.
func (s *follower) react(ctx context.Context, c shared.Change) {
	if id, ok := shared.NoticeID(c.Key); ok {
		s.noticed(ctx, id, c)
		return
	}
	if c.Key == shared.RemovedKey {
		s.removed(c)
		return
	}
	if shared.Questions().Contains(c.Key) {
		if !c.Deleted {
			s.answer(ctx, c.KV)
		}
		return
	}

	_, id, isHold := shared.HoldIDs(c.Key)
	if c.Key == shared.MetaKey {
		s.mu.Lock()
		s.compare = true // at the end of a suspension, this host gives up the holds that it does not know
		s.mu.Unlock()
	}
	if !isHold {
		s.registerAgain()
		return
	}
	if !c.Deleted {
		if !s.explains(id, c.KV) {
			s.CompareAgain() // a late transaction of this host was executed
		}
		if err := s.doubtAttachment(ctx, id, c.KV); err != nil {
			s.Log.Error("cannot store that the attachment of a volume is unknown", "volume", id, "error", err)
			s.registerAgain()
		}
		return
	}

	r, ok := s.holder(id)
	if !ok || r.Node.Hold.State != volume.Present || r.Node.Hold.Token.Revision >= c.Mod {
		return
	}
	if s.isEnding(id, r.Node.Hold.Operation) || s.isSuspended() {
		return
	}
	if err := s.lose(ctx, r.Key(), r.Node.Hold.Token); err != nil {
		s.Log.Error("cannot store that this host has lost a volume", "volume", id, "error", err)
		s.registerAgain()
	}
}

// explains reports whether a record of this host explains its hold in the cluster.
func (s *ownHolds) explains(id string, kv shared.KV) bool {
	e, err := shared.Decode[shared.Hold](kv)
	r, ok := s.holder(id)
	known := ok && r.Node.Hold.Operation == e.Value.Operation
	return err != nil || known || s.isMoving(id)
}

// doubtAttachment learns from a hold of this host that a cleaning, also one of this host itself, has
// found the attachment changed.
func (s *ownHolds) doubtAttachment(ctx context.Context, id string, kv shared.KV) error {
	e, err := shared.Decode[shared.Hold](kv)
	if err != nil {
		return err
	}
	by := e.Value.By
	r, ok := s.holder(id)
	if by == "" || !ok {
		s.endLateDetach(ctx, id, e.Value) // a step of this host has made the change
		return nil
	}

	doubted, unknown := false, false
	err = s.Records.ChangeShared(ctx, r.Key(), func(r volume.Record, ok bool) (volume.Record, bool) {
		doubted, unknown = false, false
		if !ok {
			return r, false
		}
		r, doubted = volume.DoubtAttachment(r, e.Value.Operation)
		unknown = r.Node.Attached == volume.Unknown
		return r, doubted
	})
	if err == nil && unknown && !doubted {
		s.Wake(id) // a further detach may have succeeded, so that the mounts are dead now
	}
	if err == nil && doubted {
		s.Log.Warn("the cluster found that a volume is not attached to this host; it is attached again after it is unstaged", "volume", id, "host", by)
		s.Wake(id)
	}
	return err
}

// endLateDetach ends a detach that this host has announced and not made. The store has executed the
// announcement late, after this host had kept the volume for another claim. Without that, the announcement
// would keep other hosts waiting until the next step of the volume.
func (s *ownHolds) endLateDetach(ctx context.Context, id string, h shared.Hold) {
	if !s.keeps(id, h) {
		return
	}
	who, err := s.Asker()
	if err != nil {
		s.CompareAgain() // the comparison after the registration looks again
		return
	}
	sit, err := s.read(ctx, id)
	if err != nil || !s.keeps(id, sit.Hold.Value) {
		return // the comparison after an outage looks again, or a step has begun to detach the volume
	}

	txn, err := sit.EndLateDetach(who, sit.Hold.Value.Operation)
	if err != nil || len(txn.Then) == 0 {
		return
	}
	if res, err := s.Store.Do(ctx, txn); err == nil && res.Done {
		s.Log.Warn("the announcement of a detach was executed late; the volume stays in use, and is attached again after it is unstaged", "volume", id)
	}
}

// keeps reports whether a hold shows a detach, and the record of this host shows that it keeps the volume. A
// step that detaches the volume first marks the record as not confirmed.
func (s *ownHolds) keeps(id string, h shared.Hold) bool {
	r, ok := s.holder(id)
	is := r.Node.Hold
	same := ok && is.Operation == h.Operation && h.Attachment == shared.Detaching
	return same && is.State == volume.Present && is.Confirmed && !is.Lost && r.Node.Attached == volume.Present
}

// holder returns the record of this host that has a hold on a volume. It is a leftover record if the
// volume was deregistered by force.
func (s *ownHolds) holder(id string) (volume.Record, bool) {
	if r, ok := s.Records.Volume(id); ok && r.Node.Hold.Operation != "" {
		return r, true
	}
	for _, r := range s.Records.Leftovers() {
		if r.Volume.ID == id && r.Node.Hold.Operation != "" {
			return r, true
		}
	}
	return volume.Record{}, false
}

// setEnding records that this host gives up the hold of an operation itself. An empty operation
// clears the record.
func (s *ownHolds) setEnding(id, operation string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if operation == "" {
		delete(s.ending, id)
		return
	}
	s.ending[id] = operation
}

// isEnding reports whether this host gives up the hold of an operation itself.
func (s *ownHolds) isEnding(id, operation string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.ending[id] == operation
}
