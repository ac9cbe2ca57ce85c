package hold

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// remembered returns the stored membership of this host, with the newest revision of the store that
// the host remembers. The tokens of the holds are revisions too, so a use of the volumes needs no
// further commit.
func (s *membership) remembered() shared.Membership {
	m := s.Records.Membership()
	for _, r := range s.Records.Volumes() {
		if t := r.Node.Hold.Token; r.Volume.Shared && t.Epoch == m.Epoch {
			m.Revision = max(m.Revision, t.Revision)
		}
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.who.Era == m.Era {
		m.Revision = max(m.Revision, s.seen)
	}
	return m
}

// seenRevision returns the newest revision of the store that this host has seen.
func (s *membership) seenRevision() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen
}

// noteWrite records the revision of a transaction of this host.
func (s *membership) noteWrite(revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = max(s.seen, revision)
}

// noteRevision records the revision of a read. The parameter before is the newest revision that the
// host had seen when it sent the read. An error means that the store has gone back since then.
func (s *membership) noteRevision(revision, before int64) error {
	if err := shared.CheckRevision(revision, before); err != nil {
		return err
	}
	s.noteWrite(revision)
	return nil
}

// setSuspended records whether the cluster admits writers. After a restore, no host cleans up before a person
// resumes the cluster, so the host cleans up then.
func (s *membership) setSuspended(m shared.Meta) {
	s.mu.Lock()
	was := s.suspended
	s.suspended = m.Suspended != ""
	resumed := was && !s.suspended
	s.mu.Unlock()

	if resumed {
		s.Reachable()
	}
}

// isSuspended reports whether the cluster admits no writers after a restore.
func (s *membership) isSuspended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.suspended
}

// suspend stops the admission of writers in the whole cluster, because the store has gone back. It also
// stores the newest state of the store that this host remembers, so that a restart does not lose it.
func (s *Service) suspend(ctx context.Context, a shared.Arrival, m shared.Membership) error {
	if had := s.Records.Membership(); m.Revision > had.Revision {
		if err := s.Records.PutMembership(ctx, m); err != nil {
			return err
		}
	}

	txn := a.Suspend(s.Node, time.Now())
	if len(txn.Then) == 0 {
		return nil
	}
	s.Log.Error("etcd has gone back to an older state; the cluster admits no writer until a person runs \"volctl cluster restored\". Mounted volumes stay mounted")
	_, err := shared.DoSure(ctx, s.Store, txn) // if another host has changed the key, the next registration looks again
	return err
}

// checkHolds returns an error that wraps shared.ErrWentBack if the cluster lacks a hold of this host
// without a reason. The host has not registered yet.
func (s *ownHolds) checkHolds(ctx context.Context, m shared.Membership) error {
	var expected []volume.Record
	for _, r := range append(s.Records.Volumes(), s.Records.Leftovers()...) {
		if s.expects(r) && r.Node.Hold.Token.Epoch == m.Epoch {
			expected = append(expected, r)
		}
	}
	if len(expected) == 0 {
		return nil
	}

	found, err := s.readHolds(ctx)
	if err != nil {
		return err
	}
	for _, r := range expected {
		if shows(found[r.Volume.ID], r) {
			continue
		}
		if err := s.checkLoss(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// checkLoss returns an error that wraps shared.ErrWentBack if the cluster lacks a hold of this host
// without a reason. There is a reason if a proof names the volume, or if the volume is no longer shared.
func (s *ownHolds) checkLoss(ctx context.Context, r volume.Record) error {
	id := r.Volume.ID
	res, err := s.Store.Do(ctx, shared.Txn{Then: []shared.Op{shared.Get(shared.VolumeKey(id)), shared.GetSpan(shared.Proofs(s.Node), 0)}})
	if err != nil || len(res.Reads[0]) == 0 {
		return err
	}

	for _, kv := range res.Reads[1] {
		p, err := shared.Decode[shared.Proof](kv)
		if err != nil {
			return err
		}
		later := kv.Mod > r.Node.Hold.Token.Revision // an earlier proof concerns an earlier hold
		if later && slices.Contains(p.Value.Volumes, id) {
			return nil
		}
	}
	return shared.LostWithoutProof(s.Node, id)
}

// settleEvery is the pause between two tries to write the holds that the cluster has refused.
const settleEvery = time.Minute

// settle writes the holds of the volumes that this host uses, in a new epoch, and then shows that no
// hold is missing. If the cluster refuses a hold, a later check of the registration tries again, and the
// cluster admits no writer until then.
func (s *Service) settle(ctx context.Context, who shared.Asker, forgotten bool) error {
	complete, err := s.reclaimAll(ctx, who, forgotten)
	if err == nil && complete {
		complete, err = s.checkOwnVolumes(ctx)
	}
	if err == nil && complete {
		complete, err = s.showSettled(ctx, who)
	}
	if err != nil {
		return err
	}

	s.mu.Lock()
	s.settleAt = time.Time{}
	if !complete {
		s.settleAt = time.Now().Add(settleEvery)
	}
	s.mu.Unlock()
	return nil
}

// checkOwnVolumes returns false if the restored cluster has a volume that this host uses on its own, because
// the host unshared it after the backup. Otherwise another host could get the volume.
func (s *Service) checkOwnVolumes(ctx context.Context) (complete bool, err error) {
	a, err := s.readArrival(ctx)
	if err != nil || !a.Unsettled() {
		return err == nil, err
	}

	complete = true
	for _, r := range s.Records.Volumes() {
		if r.Volume.Shared || !r.Held() {
			continue
		}
		p, err := s.readPlace(ctx, r.Volume)
		if err != nil {
			return false, err
		}
		if p.External.Exists() || sameVolume(p, r.Volume) {
			complete = false
			s.Log.Error("the restored cluster has a volume that this host uses on its own; the cluster admits no writer until the volume is removed from it",
				"volume", r.Volume.ID, "remedy", "on another host: volctl volume deregister; the data remains")
		}
	}
	return complete, nil
}

// showSettled shows in the cluster that this host has written all its holds. It returns false if other
// changes of the keys prevent that.
func (s *Service) showSettled(ctx context.Context, who shared.Asker) (done bool, err error) {
	for range mostTries {
		a, err := s.readArrival(ctx)
		if err != nil {
			return false, err
		}
		txn, err := a.Settle(who)
		if err != nil || len(txn.Then) == 0 {
			return err == nil, err
		}
		res, err := shared.DoSure(ctx, s.Store, txn)
		if err != nil || res.Done {
			return err == nil, err
		}
	}
	return false, nil
}

// reclaimAll writes the holds of the volumes that this host uses, in a new epoch. A volume whose hold
// cannot be written stays mounted, and complete is then false. If forgotten is set, the records are older
// than the cluster's state, and prove no hold.
func (s *ownHolds) reclaimAll(ctx context.Context, who shared.Asker, forgotten bool) (complete bool, err error) {
	complete = true
	for _, r := range append(s.Records.Volumes(), s.Records.Leftovers()...) {
		if forgotten || !r.Reclaims(who.Era.Epoch) {
			continue
		}

		err := s.reclaim(ctx, who, r)
		var refused *volume.Error
		if errors.As(err, &refused) && !passing(err) {
			s.Log.Error("cannot write the hold of a volume in the new epoch; the volume stays mounted", "volume", r.Volume.ID, "error", err, "hint", refused.Hint)
			complete = false
			continue
		}
		if err != nil {
			return false, err
		}
	}
	return complete, nil
}

// reclaim writes the hold of one volume anew, and stores its token.
func (s *ownHolds) reclaim(ctx context.Context, who shared.Asker, r volume.Record) error {
	h, id := r.Node.Hold, r.Volume.ID
	var place shared.Place
	for try := 0; ; try++ {
		p, err := s.readPlace(ctx, r.Volume)
		if err != nil {
			return err
		}

		txn, err := p.Reclaim(who, r.Volume, shared.HoldFrom(r, who))
		if err != nil {
			return err
		}
		if len(txn.Then) == 0 {
			place = p
			break
		}
		if try == mostTries {
			return shared.ErrUnreachable
		}
		if _, err := shared.DoSure(ctx, s.Store, txn); err != nil {
			return err
		}
	}

	token := volume.Token{Epoch: who.Era.Epoch, Revision: place.Hold.Create}
	err := s.Records.ChangeShared(ctx, r.Key(), func(r volume.Record, ok bool) (volume.Record, bool) {
		if !ok || r.Node.Hold.Operation != h.Operation || r.Node.Hold.Lost {
			return r, false
		}
		r.Node.Hold.Token = token
		return r, true
	})
	if words := shared.ConflictWords(id, place.Use.Value, place.Users); words != "" && err == nil {
		s.Log.Error("several hosts use a volume since etcd was restored; all keep it until a person decides", "volume", id, "conflict", words)
		s.Events(volume.Event{Type: volume.EventHoldConflict, Volume: id, Plugin: r.Volume.PluginID, Message: words})
	}
	return err
}
