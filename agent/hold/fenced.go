package hold

import (
	"context"
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// undoWithin is how long a fenced host tries to unmount its lost volumes, before it registers without
// them.
const undoWithin = 30 * time.Second

// returnFenced unmounts the volumes that this host has lost in a fencing, before it registers. The host
// makes no controller call for a lost volume. The result undone reports that the host may register. Volumes that
// are still mounted after undoWithin are quarantined: this host refuses their use until they are
// unmounted.
//
// A volume of which this host has lost the hold, and which it still has mounted, is quarantined without a
// fencing too. An error says that the host must wait.
func (s *Service) returnFenced(ctx context.Context) (undone bool, quarantined []string, err error) {
	a, err := s.readArrival(ctx)
	if err != nil {
		return false, nil, err
	}
	if !a.Node.Value.Fenced(a.Meta.Value) {
		s.setFencedSince(time.Time{})
		return false, s.stillMounted(), nil
	}

	if err := s.loseTaken(ctx); err != nil {
		return false, nil, err
	}
	if err := s.showReturned(ctx); err != nil {
		return false, nil, err
	}

	since := s.fencedSince()
	left := s.stillMounted()
	if a.Node.Value.State != shared.NodeFenced || len(left) > 0 && time.Since(since) < undoWithin {
		return false, left, nil // the registration is refused, and tried again
	}
	for _, id := range left {
		s.Log.Error("this host has lost a volume, and cannot unmount it; it registers without the volume", "volume", id, "remedy", "end the processes that use the volume, or reboot this host")
		s.Events(volume.Event{Type: volume.EventQuarantined, Volume: id, Message: "this host has lost the volume, and cannot unmount it; the volume is refused here until it is unmounted"})
	}
	return true, left, nil
}

// loseTaken ends the claims on the volumes that other hosts have taken over. A hold whose loss has no proof
// stays, and the comparison after the registration examines it.
func (s *ownHolds) loseTaken(ctx context.Context) error {
	found, err := s.readHolds(ctx)
	if err != nil {
		return err
	}

	for _, r := range slices.Concat(s.Records.Volumes(), s.Records.Leftovers()) {
		h := r.Node.Hold
		mayHave := h.State == volume.Present || h.State == volume.Unknown && h.Unverified
		if !r.Volume.Shared || h.Lost || !mayHave || shows(found[r.Volume.ID], r) {
			continue
		}
		if err := s.checkLoss(ctx, r); err != nil {
			s.Log.Debug("a hold is missing in the cluster, and no proof names the volume", "volume", r.Volume.ID, "error", err)
			continue
		}
		if err := s.lose(ctx, r.Key(), h.Token); err != nil {
			return err
		}
	}
	return nil
}

// showReturned shows in the cluster that this host is back, and which volumes it has mounted. The key ends with a
// lease of its own, because this host is not registered.
func (s *Service) showReturned(ctx context.Context) error {
	lease, err := s.Store.Grant(ctx, leaseTTL)
	if err != nil {
		return err
	}
	back := shared.Returned{Boot: s.Boot, Mounted: s.mounted()}
	_, err = s.Store.Do(ctx, shared.Txn{Then: []shared.Op{
		shared.PutLeased(shared.ReturnedKey(s.Node), shared.Entry[shared.Returned]{}.Encode(back), lease),
	}})
	return err
}

// mounted returns the shared volumes that this host has mounted, or may have.
func (s *ownHolds) mounted() []string {
	return s.volumesWhere(func(r volume.Record) bool { return r.Mounted() })
}

// stillMounted returns the volumes that this host has lost, and has mounted or may have.
func (s *ownHolds) stillMounted() []string {
	return s.volumesWhere(func(r volume.Record) bool { return r.Node.Hold.Lost && r.Mounted() })
}

// volumesWhere returns the ids of the shared volumes whose records fulfil a condition, in ascending order.
func (s *ownHolds) volumesWhere(is func(volume.Record) bool) (ids []string) {
	for _, r := range slices.Concat(s.Records.Volumes(), s.Records.Leftovers()) {
		if r.Volume.Shared && is(r) && !slices.Contains(ids, r.Volume.ID) {
			ids = append(ids, r.Volume.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// fencedSince returns when this host has first seen that it is fenced.
func (s *Service) fencedSince() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.fencedAt.IsZero() {
		s.fencedAt = time.Now()
	}
	return s.fencedAt
}

// setFencedSince records when this host has first seen that it is fenced. The zero time means that it is
// not.
func (s *Service) setFencedSince(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.fencedAt = at
}

// compareQuarantine writes to the cluster which lost volumes are still mounted on this host, if the cluster
// shows others.
func (s *Service) compareQuarantine(ctx context.Context, a shared.Arrival, who shared.Asker) error {
	shown := a.Node.Value.Quarantined
	if len(shown) == 0 {
		return nil
	}
	left := s.stillMounted()
	s.mu.Lock()
	s.quarantined = len(left) > 0
	s.mu.Unlock()
	for _, id := range left {
		s.Wake(id) // the process that used the mount may have ended since the last try to unmount it
	}
	if slices.Equal(shown, left) {
		return nil
	}

	txn, err := a.SetQuarantined(who, left)
	if err != nil {
		return err
	}
	res, err := s.Store.Do(ctx, txn)
	if err == nil && !res.Done {
		s.registerAgain()
	}
	return err
}

// settleReturned settles the holds of this host after its registration. A host that was fenced first loses
// the volumes that other hosts have taken over until the registration.
func (s *Service) settleReturned(ctx context.Context, who shared.Asker, forgotten, undone bool) error {
	if undone {
		if err := s.loseTaken(ctx); err != nil {
			return err
		}
	}
	return s.settle(ctx, who, forgotten)
}
