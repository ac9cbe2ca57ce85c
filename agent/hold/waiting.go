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
	wanted  map[string]bool // the volumes for which the cluster shows that this host waits, or may show it
	doubted map[string]bool // the volumes for which a transaction with a lost answer may still show it
}

// await wakes a volume when another host changes its hold or ends its call, so that the decision is not
// prevented any more. It replaces an earlier wait for the volume, because that may wait for an outdated
// decision: the host may not have known a controller of the volume then. With admits, the decision is an
// admission, and await also wakes the volume when the host that prevents it is gone.
func (s *waits) await(id string, admits bool, by decision) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if stop, ok := s.waiting[id]; ok {
		stop()
	}
	ctx, cancel := context.WithCancel(s.running)
	s.waiting[id] = cancel
	go s.awaitChange(ctx, id, admits, by)
}

// noteAbsence adds to the error of a volume that waits for another host whether that host is alive. If it is
// not, noteAbsence says in the cluster that this host waits, so that the volume is taken over. The error
// stays as it is if the store does not answer.
func (s *waits) noteAbsence(ctx context.Context, sit shared.Situation, id string, held *volume.CallError) {
	host := sit.Preventer(s.Node)
	if host == "" || host == s.Node {
		return
	}
	res, err := s.Store.Do(ctx, shared.Txn{Then: shared.AbsenceReads(s.Node, host, id)})
	if err != nil {
		return
	}
	a, err := shared.ParseAbsence(s.Node, host, id, res.Reads)
	if err != nil {
		return
	}

	a.Explain(held, time.Now().UTC())
	s.mu.Lock()
	lease := s.lease
	s.mu.Unlock()
	txn := a.Want(lease, time.Now().UTC())
	if len(txn.Then) == 0 {
		return
	}
	s.mu.Lock()
	s.wanted[id] = true // also if the answer is lost
	s.mu.Unlock()
	res, err = s.Store.Do(ctx, txn)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && !res.Done {
		delete(s.wanted, id) // the host is back, or the next try of the claim repeats it
	}
	if err != nil {
		s.doubted[id] = true
	}
}

// unwant says in the cluster that this host does not wait for a volume any more. It tries again until the
// store answers, because the key otherwise remains as long as the lease of this host. It ends when this host
// waits for the volume again.
func (s *waits) unwant(id string) {
	for s.running.Err() == nil {
		s.mu.Lock()
		again, doubted := s.wanted[id], s.doubted[id]
		delete(s.doubted, id)
		s.mu.Unlock()
		if again {
			return
		}

		ctx, cancel := context.WithTimeout(s.running, unwantWithin)
		_, err := s.Store.Do(ctx, shared.Txn{Then: []shared.Op{shared.Delete(shared.WantedKey(id, s.Node))}})
		cancel()
		if err == nil && !doubted {
			return
		}
		backoff.Pause(s.running, 2*unwantWithin) // a transaction whose answer was lost may still write the key
	}
}

// unwantWithin limits one try of unwant. Twice as long is the pause after a failure.
const unwantWithin = 5 * time.Second

// preventerGone reports whether the host that prevents the admission is gone, and the cluster does not show
// yet that this host waits for the volume.
func (s *waits) preventerGone(ctx context.Context, host, id string) bool {
	s.mu.Lock()
	wanted := s.wanted[id]
	s.mu.Unlock()
	if host == "" || wanted {
		return false
	}
	page, err := s.Store.Range(ctx, shared.Span{Key: shared.LiveKey(host)}, 1, 0)
	return err == nil && len(page.KVs) == 0
}

// stopAwaiting ends the wait for another host.
func (s *waits) stopAwaiting(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if cancel, ok := s.waiting[id]; ok {
		cancel()
		delete(s.waiting, id)
	}
	if s.wanted[id] {
		delete(s.wanted, id)
		go s.unwant(id)
	}
}

// awaitChange waits until no other host prevents a decision, and then wakes the volume. It also wakes the
// volume when the host that prevents an admission is gone. Any other change wakes nothing while a host
// still prevents the decision.
func (s *waits) awaitChange(ctx context.Context, id string, admits bool, by decision) {
	keys := []shared.Span{{Key: shared.UseKey(id)}, {Key: shared.CallKey(id)}, {Key: shared.VolumeKey(id)}, {Key: shared.MoveKey(id)}, {Key: shared.MetaKey}}
	for ctx.Err() == nil {
		sit, err := s.read(ctx, id)
		if err != nil {
			s.endAwaiting(ctx, id) // the end of the outage wakes the volume
			return
		}

		var held *volume.CallError
		host := sit.Preventer(s.Node)
		if _, err := by(sit); !errors.As(err, &held) || admits && s.preventerGone(ctx, host, id) {
			s.endAwaiting(ctx, id)
			s.Wake(id) // nothing prevents the decision, or the reason has changed
			return
		}
		s.awaitEvent(ctx, append(keys[:len(keys):len(keys)], shared.Span{Key: shared.LiveKey(host)}), sit.Revision+1)
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
