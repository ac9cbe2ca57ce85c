package hold

import (
	"context"
	"sync"
	"time"

	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// Figures describe the part of this host in the cluster.
type Figures struct {
	Endpoints   string
	Away        string    // why the cluster is not usable; empty if it is
	Since       time.Time // when Away was set
	Incarnation uint64    // 0 until the host is registered

	Holds int
	Calls int // the announced controller calls in flight of this host

	// Lag is how long the oldest change of the host's own holds has been waiting for the watch. It
	// is 0 if no change is waiting.
	Lag time.Duration

	Lanes []Lane
}

// Lane describes the queue of one lane.
type Lane struct {
	Name   string
	Length int
	Age    time.Duration // how long the oldest write has waited
}

// Figures returns the current figures. It reads only memory.
func (s *Service) Figures() Figures {
	now := time.Now()
	f := Figures{Endpoints: s.Endpoints(), Lag: s.lag.of(now)}
	for in := range laneCount {
		length, age := s.lanes.queue(in, now)
		f.Lanes = append(f.Lanes, Lane{Name: laneNames[in], Length: length, Age: age})
	}
	for _, r := range s.Records.Volumes() {
		if r.Volume.Shared && r.Node.Hold.State == volume.Present && !r.Node.Hold.Lost {
			f.Holds++
		}
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	f.Incarnation, f.Calls, f.Away = s.who.Incarnation, int(s.calls.Load()), s.away
	if s.away != "" {
		f.Since = s.since.UTC()
	}
	return f
}

// lag measures how late the watch is. It compares the changes that this host has made itself with
// those that the watch has delivered.
type lag struct {
	mu      sync.Mutex
	highest int64 // the highest revision that the watch has delivered
	oldest  change
	newest  change
}

// change is a change by this host.
type change struct {
	revision int64
	at       time.Time
}

// made records a change by this host.
func (l *lag) made(revision int64) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if revision <= l.highest {
		return
	}
	l.newest = change{revision, time.Now()}
	if l.oldest.revision == 0 {
		l.oldest = l.newest
	}
}

// seen records that the watch has delivered a revision.
func (l *lag) seen(revision int64) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.highest = max(l.highest, revision)
	if l.oldest.revision > l.highest {
		return
	}
	l.oldest = change{}
	if l.newest.revision > l.highest {
		l.oldest = l.newest
	}
}

// of returns how long the oldest change has been waiting for the watch.
func (l *lag) of(now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.oldest.revision == 0 {
		return 0
	}
	return now.Sub(l.oldest.at)
}

// DrainChanged makes the cluster show whether this host is draining. It does not wait.
func (s *Service) DrainChanged() { s.registerAgain() }

// compareDrain writes to the cluster whether this host is draining, if the cluster shows otherwise.
func (s *Service) compareDrain(ctx context.Context, a shared.Arrival, who shared.Asker) error {
	wanted := shared.NodeReady
	if s.Draining() {
		wanted = shared.NodeDraining
	}
	shown := a.Node.Value.State
	if settled := shown == wanted || shown != shared.NodeReady && shown != shared.NodeDraining; settled {
		return nil
	}

	txn, err := a.SetState(who, wanted, time.Now().UTC())
	if err != nil {
		return err
	}
	res, err := s.Store.Do(ctx, txn)
	if err == nil && !res.Done {
		s.registerAgain()
	}
	return err
}
