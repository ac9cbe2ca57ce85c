// Package move moves shared volumes from one host to another. A person orders a move on any host, the
// mover. The target accepts it first, which reserves the volume. The source then detaches its claims as in
// a drain, and gives up its hold.
//
//	move.go     Service, its dependencies, and which moves concern this host
//	order.go    the side of the mover
//	target.go   the side of the target
//	source.go   the side of the source
//
// Package volmgr/shared decides each transaction, and describes the protocol at its type Move. No step
// of a move changes a hold. The source gives its hold up, and the target gets one, as without a move.
package move

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// These are the defaults of the times in Options.
const (
	defaultAnswer  = 10 * time.Second       // for a target to answer
	defaultReserve = time.Minute            // for a claim on the target to come
	defaultEvery   = 500 * time.Millisecond // between two looks at a move without an event
)

// Options are the dependencies of a Service.
type Options struct {
	Store shared.Store
	Node  string

	// Asker returns this host for a transaction. It fails while the host is not registered. Lease
	// returns the lease of the host.
	Asker func() (shared.Asker, error)
	Lease func() shared.Lease

	// Accepts returns an error if no claim on this host could use a volume. The result claimed says
	// whether a claim waits for it. Otherwise, Accepts reserves a place for the volume on this host, and Freed
	// ends the reservation.
	Accepts func(ctx context.Context, v volume.Volume) (claimed bool, err error)
	Freed   func(id string)

	// Draining reports whether a person drains this host.
	Draining func() bool

	// Release detaches the claims on a volume of this host as a drain does. It returns the claims and
	// mounts that remain.
	Release func(ctx context.Context, id string) volume.Occupancy

	Events func(...volume.Event)
	Log    hclog.Logger

	Answer  time.Duration // 0 means the default; so do the next ones
	Reserve time.Duration
	Every   time.Duration
}

// Service moves volumes. Its methods are safe for concurrent use.
type Service struct {
	Options

	mu      sync.Mutex
	known   map[string]known // the moves that concern this host, by volume
	working map[string]chan struct{}
	workers sync.WaitGroup
}

// known is a move as the last event has shown it.
type known struct {
	shared.Move
	seen time.Time // when this host saw it first
	gone bool      // this host has given the volume up
}

// New returns a Service that does nothing until Run starts.
func New(o Options) *Service {
	if o.Answer == 0 {
		o.Answer = defaultAnswer
	}
	if o.Reserve == 0 {
		o.Reserve = defaultReserve
	}
	if o.Every == 0 {
		o.Every = defaultEvery
	}
	return &Service{Options: o, known: map[string]known{}, working: map[string]chan struct{}{}}
}

// Run does the part of this host in all moves, until ctx ends.
func (s *Service) Run(ctx context.Context) {
	_ = shared.Follow(ctx, s.Store, []shared.Span{shared.Moves()}, nil, func(u shared.Update) { // the error is that of ctx
		for _, c := range u.Changes {
			s.note(ctx, c)
		}
	})
	s.workers.Wait()
}

// note learns of the change of a move. If the move concerns this host, a worker does the part of this
// host.
func (s *Service) note(ctx context.Context, c shared.Change) {
	id, ok := shared.LastID(c.Key)
	if !ok {
		return
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	had := s.known[id]
	delete(s.known, id)
	if wake, busy := s.working[id]; busy {
		select {
		case wake <- struct{}{}:
		default: // the worker has not seen the last event yet
		}
	}
	if c.Deleted {
		return
	}

	e, err := shared.Decode[shared.Move](c.KV)
	if err != nil {
		s.Log.Error("cannot read the move of a volume; it is ignored", "volume", id, "error", err)
		return
	}
	if e.Value.From != s.Node && e.Value.To != s.Node {
		return
	}

	now := known{Move: e.Value, seen: time.Now()}
	if had.ID == now.ID {
		now.seen, now.gone = had.seen, had.gone
	}
	s.known[id] = now
	if _, busy := s.working[id]; busy {
		return
	}

	wake := make(chan struct{}, 1)
	s.working[id] = wake
	s.workers.Go(func() { s.work(ctx, id, wake) })
}

// work does the part of this host in the moves of a volume, until no move concerns the host.
func (s *Service) work(ctx context.Context, id string, wake <-chan struct{}) {
	var part worker
	for {
		s.mu.Lock()
		now, ok := s.known[id]
		if !ok || now.To != s.Node {
			s.Freed(id)
		}
		if !ok || ctx.Err() != nil {
			delete(s.working, id)
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()

		if part.id != now.ID {
			part = worker{Service: s, volume: id, id: now.ID, from: now.From, to: now.To}
		}
		if err := part.step(ctx); err != nil && !errors.Is(err, shared.ErrMoveOver) && ctx.Err() == nil {
			part.warn(err)
		}

		select {
		case <-ctx.Done():
		case <-wake:
		case <-time.After(s.Every):
		}
	}
}

// worker does the part of this host in one move.
type worker struct {
	*Service
	volume, id, from, to string

	accepted time.Time // when this host has accepted the move; zero before
	released time.Time // when this host saw that the source has given up the volume; zero before
	warned   bool
}

// warn logs the first error of a move.
func (w *worker) warn(err error) {
	if !w.warned {
		w.Log.Warn("cannot continue the move of a volume; it is tried again", "volume", w.volume, "from", w.from, "to", w.to, "error", err)
	}
	w.warned = true
}

// step does the next part of this host.
func (w *worker) step(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, decideWithin)
	defer cancel()

	m, err := w.read(ctx, w.volume, w.from, w.to)
	if err != nil || !m.Running(w.id) {
		return err // the event of the end comes
	}
	if w.to == w.Node {
		return w.asTarget(ctx, m)
	}
	return w.asSource(ctx, m)
}

// Leaving returns the host to which a volume of this host is being moved. It returns an empty text if no
// move takes the volume from this host. While the cluster is silent, the answer ends with the time of the
// move.
func (s *Service) Leaving(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()

	m, ok := s.known[id]
	leaving := ok && m.From == s.Node && m.State == shared.MoveAccepted && !m.gone
	if !leaving || time.Since(m.seen) > m.Within+s.Answer {
		return ""
	}
	return m.To
}

// setGone records that this host has given the volume of a move up.
func (s *Service) setGone(volume, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if m, ok := s.known[volume]; ok && m.ID == id {
		m.gone = true
		s.known[volume] = m
	}
}

// mostTries limits how often a decision is repeated because other hosts change the same keys.
const mostTries = 50

// decideWithin limits one decision.
const decideWithin = 8 * time.Second

// errBusy means that other hosts change the same keys all the time.
var errBusy = errors.New("other hosts change the keys of the volume all the time")

// decide executes a decision about a move, and decides again while other hosts change its keys. It does
// nothing for an empty transaction. It returns the keys on which the last decision was based.
func (s *Service) decide(ctx context.Context, id, from, to string, by func(shared.Asker, shared.Moving) (shared.Txn, error)) (shared.Moving, error) {
	who, err := s.Asker()
	if err != nil {
		return shared.Moving{}, err
	}

	m, err := s.read(ctx, id, from, to)
	for range mostTries {
		if err != nil {
			return m, err
		}
		txn, derr := by(who, m)
		if derr != nil || len(txn.Then) == 0 {
			return m, derr
		}

		res, derr := shared.DoSure(ctx, s.Store, txn)
		if derr != nil || res.Done {
			return m, derr
		}
		m, err = shared.ParseMoving(s.Node, id, from, to, res)
	}
	return m, errBusy
}

// read reads the keys about a move.
func (s *Service) read(ctx context.Context, id, from, to string) (shared.Moving, error) {
	res, err := s.Store.Do(ctx, shared.Txn{Then: shared.MovingReads(s.Node, id, from, to)})
	if err != nil {
		return shared.Moving{}, err
	}
	return shared.ParseMoving(s.Node, id, from, to, res)
}
