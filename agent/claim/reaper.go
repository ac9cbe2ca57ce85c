package claim

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/volmgr/volume"
)

const (
	// ReapEvery is the interval of the periodic pass. This pass finds owners whose end the watcher
	// did not notice.
	ReapEvery = 30 * time.Second
	// reapAgain is the delay before the reaper retries a detach that it could not store.
	reapAgain = 2 * time.Second
	// settleFor is the delay between the end of a claim and the moment when the reaper stops
	// watching the claim's owner. If several claims end within this delay, the reaper updates its
	// list of owners once.
	settleFor = time.Second
	// reapsAtOnce limits how many claims a pass detaches in parallel. Parallel detaches share their
	// commits.
	reapsAtOnce = 128
)

// Records returns the records of all volumes.
type Records interface {
	Volumes() []volume.Record
}

// Watcher watches the owners of claims.
type Watcher interface {
	// Ended returns a channel that receives a value after an owner has ended.
	Ended() <-chan struct{}
	// Gone reports whether the owner, which is a process, a unit or a mount, is known to have
	// ended.
	Gone(volume.Owner) bool
	// Keep makes the watcher watch exactly the owners that list returns.
	Keep(list func() []volume.Owner)
}

// Reaper detaches claims whose owners have ended. It runs a pass when the agent starts, when an
// owner ends, and at a regular interval.
type Reaper struct {
	records Records
	owners  Watcher
	claims  *Service
	log     hclog.Logger
	freed   chan struct{} // receives a value after a claim is gone
	missed  bool          // the last pass failed to store a detach and logged the failure
}

// NewReaper returns a reaper. The reaper does nothing before the caller calls Pass or Run.
func NewReaper(claims *Service, records Records, owners Watcher, log hclog.Logger) *Reaper {
	return &Reaper{records: records, owners: owners, claims: claims, log: log, freed: make(chan struct{}, 1)}
}

// mortal returns the owners to watch: one for each claim that has an owner and is not being
// detached.
func (r *Reaper) mortal() []volume.Owner {
	var list []volume.Owner
	for _, r := range r.records.Volumes() {
		for _, c := range r.Claims {
			if c.Wanted && c.Owner.Mortal() {
				list = append(list, c.Keeper())
			}
		}
	}

	return list
}

// Freed tells the reaper that a claim is gone. The reaper then stops watching owners that have no
// claim.
func (r *Reaper) Freed() {
	select {
	case r.freed <- struct{}{}:
	default:
	}
}

// Run detaches claims whose owners have ended, until ctx ends.
func (r *Reaper) Run(ctx context.Context) {
	next := time.NewTimer(0)
	defer next.Stop()

	for {
		select {
		case <-ctx.Done():
			return
		case <-r.owners.Ended():
		case <-next.C:
		case <-r.freed:
			next.Reset(settleFor)
			select {
			case <-ctx.Done():
				return
			case <-r.owners.Ended():
			case <-next.C:
			}
		}

		if r.Pass(ctx) {
			next.Reset(ReapEvery)
		} else {
			next.Reset(reapAgain)
		}
	}
}

// Pass detaches all claims whose owners have ended. It reports whether it stored all these
// detaches.
func (r *Reaper) Pass(ctx context.Context) bool {
	r.owners.Keep(r.mortal)
	var (
		wg     sync.WaitGroup
		missed atomic.Int64
		last   atomic.Pointer[error]
		slots  = make(chan struct{}, reapsAtOnce)
	)

	for _, rec := range r.records.Volumes() {
		for _, c := range rec.Claims {
			if !c.Wanted || !c.Owner.Mortal() || !r.owners.Gone(c.Keeper()) {
				continue
			}

			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				if err := r.claims.Reap(ctx, rec.Volume.ID, c); err != nil && ctx.Err() == nil {
					r.log.Debug("cannot detach a claim whose owner is gone", "volume", rec.Volume.ID, "alloc", c.Alloc, "owner", c.Keeper().String(), "error", err)
					missed.Add(1)
					last.Store(&err)
				}
			})
		}
	}

	wg.Wait()
	n := missed.Load()
	// Log once, because a full disk can last for hours and make thousands of detaches fail.
	if n > 0 && !r.missed {
		r.log.Warn("cannot detach claims whose owners are gone; the agent keeps retrying", "claims", n, "error", *last.Load())
	}
	r.missed = n > 0
	return n == 0
}
