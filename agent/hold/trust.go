package hold

import (
	"context"
	"errors"

	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// noteSilence records whether the store does not answer at all. A store that has refused this host has
// answered, so it counts as silent only after the next registration. The caller holds mu.
func (s *membership) noteSilence(cause error) {
	noAnswer := errors.Is(cause, shared.ErrUnreachable) || errors.Is(cause, shared.ErrUnknownOutcome)
	s.refused = s.refused || !noAnswer
	s.silent = !s.refused
}

// wakeTrusting wakes the volumes that this host may use without an answer of the store, if the store is
// silent.
func (s *membership) wakeTrusting() {
	s.mu.Lock()
	silent := s.silent
	s.mu.Unlock()
	if !silent {
		return
	}

	for _, r := range s.Records.Volumes() {
		if h := r.Node.Hold; r.Volume.Shared && h.Unverified && h.State == volume.Unknown {
			s.Wake(r.Volume.ID)
		}
	}
}

// noteSeen records whether the store shows a hold that it has not shown since the last boot.
func (s *ownHolds) noteSeen(ctx context.Context, r volume.Record, shown bool) error {
	if _, changed := volume.SeenHold(r, shown); !changed {
		return nil
	}
	return s.Records.ChangeShared(ctx, r.Key(), func(now volume.Record, ok bool) (volume.Record, bool) {
		if !ok || now.Node.Hold.Token != r.Node.Hold.Token {
			return now, false
		}
		return volume.SeenHold(now, shown)
	})
}
