package hold

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/volagent/volagent/volmgr/shared"
)

// Of several hosts that wait for a volume, each tries again after a random part of wakeWithin.
const wakeWithin = 100 * time.Millisecond

// mostAwait limits how long a wait for another host goes on without a look at the volume.
const mostAwait = time.Minute

// await wakes a volume when another host changes its hold or ends its call. It does nothing if the
// volume is already awaited.
func (s *Service) await(id string, ask shared.Ask) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if _, ok := s.waiting[id]; ok {
		return
	}

	ctx, cancel := context.WithTimeout(s.running, mostAwait)
	s.waiting[id] = cancel
	go s.awaitChange(ctx, id, ask)
}

// stopAwaiting ends the wait for another host.
func (s *Service) stopAwaiting(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if cancel, ok := s.waiting[id]; ok {
		cancel()
		delete(s.waiting, id)
	}
}

// awaitChange waits for one change of the keys that prevent an admission, and then wakes the volume.
func (s *Service) awaitChange(ctx context.Context, id string, ask shared.Ask) {
	defer s.stopAwaiting(id)

	// The state may have changed since the refusal, so the wait starts with a read.
	sit, err := s.read(ctx, id)
	if err != nil {
		return // the end of the outage wakes the volume
	}

	if _, err := sit.Admit(ask); err != nil {
		keys := []shared.Span{{Key: shared.UseKey(id)}, {Key: shared.CallKey(id)}, {Key: shared.VolumeKey(id)}, {Key: shared.MetaKey}}
		s.awaitEvent(ctx, keys, sit.Revision+1)
	}

	pause(s.running, rand.N(wakeWithin))
	s.stopAwaiting(id)
	s.Wake(id)
}

// awaitEvent waits for the first change of the keys. It also returns if the watch fails.
func (s *Service) awaitEvent(ctx context.Context, keys []shared.Span, from int64) {
	for evs := range s.Store.Watch(ctx, keys, from) {
		if evs.Err != nil || len(evs.Changes) > 0 {
			return
		}
	}
}
