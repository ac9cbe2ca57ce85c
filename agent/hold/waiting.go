package hold

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/volagent/volagent/volmgr/backoff"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// Of several hosts that wait for a volume, each tries again after a random part of wakeWithin.
const wakeWithin = 100 * time.Millisecond

// waits wake the volumes that wait for another host.
type waits struct {
	*keys

	waiting map[string]context.CancelFunc
}

// await wakes a volume when another host changes its hold or ends its call. It does nothing if the
// volume is already awaited.
func (s *waits) await(id string, ask shared.Ask) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if _, ok := s.waiting[id]; ok {
		return
	}

	ctx, cancel := context.WithCancel(s.running)
	s.waiting[id] = cancel
	go s.awaitChange(ctx, id, ask)
}

// noteAbsence adds to the error of a volume that waits for another host whether that host is alive. The
// error stays as it is if the store does not answer.
func (s *waits) noteAbsence(ctx context.Context, sit shared.Situation, held *volume.CallError) {
	host := sit.Preventer(s.Node)
	if host == "" || host == s.Node {
		return
	}
	res, err := s.Store.Do(ctx, shared.Txn{Then: shared.AbsenceReads(host)})
	if err != nil {
		return
	}
	if a, err := shared.ParseAbsence(host, res.Reads); err == nil {
		a.Explain(held, time.Now().UTC())
	}
}

// stopAwaiting ends the wait for another host.
func (s *waits) stopAwaiting(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if cancel, ok := s.waiting[id]; ok {
		cancel()
		delete(s.waiting, id)
	}
}

// awaitChange waits until the cluster would admit the host, and then wakes the volume. A change that
// still prevents the admission wakes nothing.
func (s *waits) awaitChange(ctx context.Context, id string, ask shared.Ask) {
	keys := []shared.Span{{Key: shared.UseKey(id)}, {Key: shared.CallKey(id)}, {Key: shared.VolumeKey(id)}, {Key: shared.MetaKey}}
	for ctx.Err() == nil {
		sit, err := s.read(ctx, id)
		if err != nil {
			s.endAwaiting(ctx, id) // the end of the outage wakes the volume
			return
		}

		var held *volume.CallError
		if _, err := sit.Admit(ask); !errors.As(err, &held) {
			s.endAwaiting(ctx, id)
			s.Wake(id) // the host is admitted, or the reason has changed
			return
		}
		s.awaitEvent(ctx, keys, sit.Revision+1)
		backoff.Pause(ctx, rand.N(wakeWithin))
	}
}

// endAwaiting ends the wait that ctx belongs to. It does nothing if stopAwaiting has ended the wait,
// because the volume may then have a new wait.
func (s *waits) endAwaiting(ctx context.Context, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if cancel, ok := s.waiting[id]; ok && ctx.Err() == nil {
		cancel()
		delete(s.waiting, id)
	}
}
