package hold

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// rangePage is the number of keys in one page of a long read.
const rangePage = 500

// ownHolds are the holds of this host, in its records and in the cluster.
type ownHolds struct {
	*scopes

	ending map[string]string // operations of the holds that this host is giving up, by volume
	strays map[string]bool   // volumes for which the cluster may show a hold that no record explains
}

// compareHolds compares the holds of this host in the cluster with its records. A record whose hold
// the cluster does not show loses its claims. For a hold that no record explains, compareHolds adds
// a record, so that the queue takes the volume off this host and gives up the hold. If forgotten is
// set, the records are older than the cluster's state, and all holds are lost.
func (s *ownHolds) compareHolds(ctx context.Context, epoch int64, forgotten bool) error {
	records := slices.Concat(s.Records.Volumes(), s.Records.Leftovers()) // before the holds, because a step may get a hold at any time
	found, err := s.readHolds(ctx)
	if err != nil {
		return err
	}

	for _, r := range records {
		if err := s.noteSeen(ctx, r, shows(found[r.Volume.ID], r) && !forgotten); err != nil {
			return err
		}
		// After a reboot, the state of the hold is unknown, and only a forgotten host loses it now.
		rebooted := r.Volume.Shared && r.Node.Hold.Unverified && !r.Node.Hold.Lost
		lost := forgotten && rebooted
		if !lost && !s.expects(r) {
			continue
		}
		if err := s.compareHold(ctx, r, found[r.Volume.ID], epoch, forgotten); err != nil {
			return err
		}
	}

	for id, e := range found {
		if err := s.explain(ctx, id, e, epoch); err != nil {
			return err
		}
	}

	return nil
}

// compareHold compares the hold of a record with e, the hold of this host in the cluster.
func (s *ownHolds) compareHold(ctx context.Context, r volume.Record, e shared.Entry[shared.Hold], epoch int64, forgotten bool) error {
	h := r.Node.Hold
	shown := shows(e, r)
	gone := h.Token.Epoch == epoch && !shown // after a restore of etcd, a missing hold proves nothing
	switch {
	case forgotten:
		return s.lose(ctx, r.Key(), h.Token)
	case shown:
		return s.doubtAttachment(ctx, r.Volume.ID, e.KV)
	case !gone:
		return nil
	case s.isSuspended():
		s.Log.Warn("the cluster does not show a hold of this host; the host keeps the volume until a person runs \"volctl cluster resume\"", "volume", r.Volume.ID)
		return nil
	}

	if err := s.checkLoss(ctx, r); err != nil {
		return err
	}
	return s.lose(ctx, r.Key(), h.Token)
}

// expects reports whether the cluster must show the hold of a record.
func (s *ownHolds) expects(r volume.Record) bool {
	h := r.Node.Hold
	return r.Volume.Shared && h.State == volume.Present && !h.Lost && !s.isEnding(r.Volume.ID, h.Operation)
}

// shows reports whether e, a hold of this host in the cluster, is the hold of a record.
func shows(e shared.Entry[shared.Hold], r volume.Record) bool {
	return e.Exists() && e.Value.Operation == r.Node.Hold.Operation && e.Create == r.Node.Hold.Token.Revision
}

// readHolds returns the holds of this host in the cluster, by volume.
func (s *ownHolds) readHolds(ctx context.Context) (map[string]shared.Entry[shared.Hold], error) {
	var found map[string]shared.Entry[shared.Hold]
	for part, err := range shared.RangeAll(ctx, s.Store, shared.HoldsOf(s.Node), rangePage) {
		if err != nil {
			return nil, err
		}
		if part.First {
			found = map[string]shared.Entry[shared.Hold]{}
		}

		for _, kv := range part.KVs {
			e, err := shared.Decode[shared.Hold](kv)
			if err != nil {
				return nil, err
			}
			if _, id, ok := shared.HoldIDs(kv.Key); ok {
				found[id] = e
			}
		}
	}

	return found, nil
}

// lose records that this host has lost a hold. It does nothing if the record has another hold by
// now.
func (s *ownHolds) lose(ctx context.Context, key string, token volume.Token) error {
	var evs []volume.Event
	err := s.Records.ChangeShared(ctx, key, func(r volume.Record, ok bool) (volume.Record, bool) {
		if !ok || r.Node.Hold.Token != token {
			return r, false
		}

		var now volume.Record
		now, evs = volume.LoseHold(r)
		return now, len(evs) > 0
	})
	if err == nil && len(evs) > 0 {
		s.Events(evs...)
		s.Wake(key)
	}

	return err
}

// explain makes sure that a record of this host explains a hold in the cluster.
func (s *ownHolds) explain(ctx context.Context, id string, e shared.Entry[shared.Hold], epoch int64) error {
	h := e.Value
	if r, ok := s.holder(id); ok && r.Node.Hold.Operation == h.Operation && r.Volume.Shared {
		return nil
	}
	if s.isSuspended() {
		s.Log.Warn("the cluster shows a hold that this host does not know; it is given up after \"volctl cluster resume\"", "volume", id)
		return s.endRestoredCall(ctx, id, h.Operation)
	}

	sit, err := s.read(ctx, id)
	if err != nil {
		return err
	}
	if !sit.Volume.Exists() || !sit.Hold.Exists() || sit.Hold.Value.Operation != h.Operation {
		return nil // the host has given up the hold in the meantime
	}

	s.markStray(id) // if the record has another hold, the end of the record leads to this one
	def, added := definitionOf(sit), false
	if r, ok := s.Records.Volume(id); ok && !r.Volume.Shared && r.Same(volume.Record{Volume: def}) {
		return s.adopt(ctx, def, shared.HoldOf(e, epoch)) // a share or unshare was interrupted
	}

	err = s.Records.ChangeShared(ctx, id, func(r volume.Record, ok bool) (volume.Record, bool) {
		if ok && r.Held() {
			return r, false // the record has a hold of its own, and the next decision sees both
		}

		added = true
		return volume.Unexplained(def, earlierHold(h), s.StagingPath(def.PluginID, id)), true
	})
	if added && err == nil {
		s.Log.Warn("the cluster shows a hold that this host does not know; it is given up", "volume", id)
		s.Wake(id)
	}

	return err
}

// errAttached means that the record of this host comes from an older snapshot of its disk.
var errAttached = errors.New("the cluster shows an attachment that this host does not know; the volume is detached first")

// findAttachment makes a record that gives up its hold know the attachment that the cluster shows.
func (s *ownHolds) findAttachment(ctx context.Context, id string, h shared.Hold) error {
	return s.Records.ChangeShared(ctx, id, func(r volume.Record, ok bool) (volume.Record, bool) {
		if !ok {
			return r, false
		}
		return volume.FindAttachment(r, h.Operation, h.NodeID)
	})
}

// earlierHold returns a hold of this host that no record explains.
func earlierHold(h shared.Hold) volume.EarlierHold {
	return volume.EarlierHold{
		Hold:     volume.Hold{Operation: h.Operation, Access: h.Access, Reader: h.Reader, Since: h.Since},
		Attached: h.Attachment != "", NodeID: h.NodeID, Calling: h.Attachment != "" && h.Attachment != shared.Attached,
	}
}

// endRestoredCall ends a call of this host for a hold that no record explains, after a restore of the store. The
// call ended long ago, and no step of this host leads to its end. It would keep a rival from its detach, while
// the rival keeps this host from the volume.
func (s *ownHolds) endRestoredCall(ctx context.Context, id, operation string) error {
	who, err := s.Asker()
	if err != nil {
		s.CompareAgain()
		return nil //nolint:nilerr // the comparison after the registration looks again
	}
	sit, err := s.read(ctx, id)
	if err != nil {
		return err
	}
	txn, err := sit.EndAttachmentCall(who, operation)
	if err != nil || len(txn.Then) == 0 {
		return nil //nolint:nilerr // the hold or the registration has changed, which leads to another comparison
	}
	_, err = s.Store.Do(ctx, txn)
	return err
}

// endOldCall ends a call that an earlier agent of this host has announced under a hold which this host must not use
// after a restore of the store.
func (s *ownHolds) endOldCall(ctx context.Context, id string, sit shared.Situation, operation string) {
	who, err := s.Asker()
	if err != nil {
		return // the next try of the step looks again
	}
	txn, err := sit.EndOldCall(who, operation, time.Now())
	if err == nil && len(txn.Then) > 0 {
		_, err = s.Store.Do(ctx, txn)
	}
	if err != nil {
		s.Log.Debug("cannot end an announced call of an earlier agent; the next try of the step ends it", "volume", id, "error", err)
	}
}

// markStray records that the cluster may show a hold of this host that no record explains.
func (s *ownHolds) markStray(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.strays[id] = true
}

// explainStray looks for a hold that no record explains, after the record of the volume has ended.
func (s *ownHolds) explainStray(ctx context.Context, id string) error {
	s.mu.Lock()
	stray := s.strays[id]
	delete(s.strays, id)
	s.mu.Unlock()
	if !stray {
		return nil
	}

	sit, err := s.read(ctx, id)
	if err != nil {
		s.registerAgain()
		return nil //nolint:nilerr // the comparison after the outage finds the hold
	}
	if !sit.Hold.Exists() {
		return nil
	}
	return s.explain(ctx, id, sit.Hold, sit.Meta.Value.Epoch)
}

// adoptHold makes a record that waits for a hold explain an earlier hold of this host. A hold of the kind that
// the record waits for serves its claims. Any other hold is given up first. The volume may still be attached
// and staged under the earlier hold, so these sides become unknown.
func (s *ownHolds) adoptHold(ctx context.Context, id, operation string, h shared.Hold) {
	s.markStray(id)
	adopted := false
	err := s.Records.ChangeShared(ctx, id, func(r volume.Record, ok bool) (now volume.Record, changed bool) {
		adopted = false
		if !ok || r.Node.Hold.Operation != operation {
			return r, false
		}
		now, adopted = volume.AdoptHold(r, earlierHold(h))
		return now, adopted
	})
	if adopted && err == nil {
		s.Wake(id) // the next try asks for another hold, so the failures of the earlier tries do not count
	}
	if err != nil {
		s.Log.Warn("cannot continue an earlier hold of this host", "volume", id, "error", err)
	}
}
