package hold

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// mostTries limits how often a decision is repeated because other hosts change the same keys.
const mostTries = 50

// decideWithin limits one decision. If etcd does not answer in this time, the volume takes its other
// steps, such as those of a detach on this host.
const decideWithin = 8 * time.Second

// decision is a transaction that one of the methods of a Situation returned, or an error.
type decision func(s shared.Situation) (shared.Txn, error)

// decide executes a decision about a volume. It reads the keys unless an earlier step has just
// read them. If another host changes the keys meanwhile, it decides again. It returns the situation
// after the transaction. An empty transaction executes nothing.
//
// If the answer of an earlier transaction of the same decision was lost, a later failure wraps
// shared.ErrUnknownOutcome, because the earlier transaction may have been executed.
func (s *keys) decide(ctx context.Context, id string, by decision) (shared.Situation, error) {
	leave, err := s.lanes.enter(ctx, laneOf(ctx))
	if err != nil {
		return shared.Situation{}, err
	}
	defer leave()

	ctx, cancel := context.WithTimeout(ctx, decideWithin)
	defer cancel()

	doubt := false
	failed := func(err error) error {
		s.noteError(err)
		if doubt && !errors.Is(err, shared.ErrUnknownOutcome) {
			return fmt.Errorf("%w (%w)", err, shared.ErrUnknownOutcome)
		}
		return err
	}

	sit, cached := s.takeCached(id)
	for try := 0; try < mostTries; try++ {
		if !cached && try == 0 {
			var err error
			if sit, err = s.read(ctx, id); err != nil {
				return sit, err
			}
		}

		txn, err := by(sit)
		if err != nil && cached {
			cached, try = false, -1 // a cached situation may be outdated, so it refuses nothing
			continue
		}
		if err != nil {
			return sit, failed(err)
		}
		if len(txn.Then) == 0 {
			return sit, nil
		}

		res, err := shared.DoSure(ctx, s.Store, txn)
		if err != nil {
			return sit, failed(err)
		}
		doubt = doubt || res.Repeated
		if res.Done {
			return s.executed(id, sit, txn, res.Revision)
		}
		if sit, err = shared.ParseSituation(s.Node, id, res); err != nil {
			return sit, err
		}
		cached = false
		try = max(try, 0)
	}

	return sit, failed(fmt.Errorf("volume %q is changed by other hosts all the time: %w", id, shared.ErrUnreachable))
}

// executed caches and returns the situation after a transaction.
func (s *keys) executed(id string, sit shared.Situation, txn shared.Txn, revision int64) (shared.Situation, error) {
	sit, err := sit.After(txn, revision)
	if err != nil {
		return sit, err
	}

	s.noteWrite(revision)
	if changesHold(txn, shared.HoldKey(s.Node, id)) {
		s.lag.made(revision)
	}
	s.mu.Lock()
	s.cached[id] = sit
	s.mu.Unlock()
	return sit, nil
}

// changesHold reports whether a transaction changes the key of a hold.
func changesHold(t shared.Txn, key string) bool {
	return slices.ContainsFunc(t.Then, func(op shared.Op) bool { return op.Key == key })
}

// definitionOf returns the volume in a situation, as this host records it.
func definitionOf(sit shared.Situation) volume.Volume { return sit.Volume.Value.Shown() }

// change executes a decision about a definition. If another host changes the keys meanwhile, it
// decides again. It returns the volume after the change. If this host has a record of the volume, the
// record gets the new definition.
func (s *keys) change(ctx context.Context, v volume.Volume, by func(shared.Asker, shared.Place) (shared.Txn, error)) (volume.SharedVolume, error) {
	who, err := s.Asker()
	if err != nil {
		return volume.SharedVolume{}, s.cannotLook(v.ID, err)
	}
	ctx, cancel := context.WithTimeout(ctx, decideWithin)
	defer cancel()

	changed, doubt := false, false
	res, err := s.Store.Do(ctx, shared.Txn{Then: shared.PlaceReads(s.Node, v)})
	for tries := 0; tries < mostTries || changed; tries++ {
		if err != nil {
			s.noteError(err)
			return volume.SharedVolume{}, s.cannotLook(v.ID, err)
		}

		place, err2 := shared.ParsePlace(s.Node, v, res.Reads)
		if err2 != nil {
			return volume.SharedVolume{}, err2
		}
		place.Attaches, place.Doubt = s.attaches, doubt

		var txn shared.Txn
		if !changed {
			if txn, err2 = by(who, place); err2 != nil {
				s.noteError(err2)
				return place.Shown(), err2
			}
		}
		if len(txn.Then) == 0 {
			return place.Shown(), s.refresh(ctx, place)
		}

		res, err = shared.DoSure(ctx, s.Store, txn)
		doubt = doubt || res.Repeated
		if err == nil && res.Done {
			changed = true
			res, err = s.Store.Do(ctx, shared.Txn{Then: shared.PlaceReads(s.Node, v)})
		}
	}

	return volume.SharedVolume{}, volume.Errorf(volume.ErrRefused, "volume %q is changed by other hosts all the time", v.ID)
}
