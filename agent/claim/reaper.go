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
	// ReapEvery is the interval of the periodic pass, which catches ends of owners that were
	// missed.
	ReapEvery = 30 * time.Second
	// reapAgain is the delay before the retry of a release that could not be stored.
	reapAgain = 2 * time.Second
	// settleFor is the delay after the end of a claim before the reaper stops watching owners
	// without claims. One pass covers all claims that end in that time.
	settleFor = time.Second
	// reapsAtOnce limits the parallel releases, which share their commits.
	reapsAtOnce = 128
)

// Records returns all records.
type Records interface {
	Volumes() []volume.Record
}

// Watcher watches the owners of claims.
type Watcher interface {
	// Ended receives a message after an owner has ended.
	Ended() <-chan struct{}
	// Gone reports whether a mortal owner is known to have ended.
	Gone(volume.Owner) bool
	// Keep makes the watcher watch the listed owners and no others.
	Keep(list func() []volume.Owner)
}

// Reaper detaches claims whose owners have ended: at once when an owner ends, when the agent
// starts, and in a periodic pass.
type Reaper struct {
	records Records
	owners  Watcher
	claims  *Service
	log     hclog.Logger
	freed   chan struct{} // receives a message after a claim is gone
	missed  bool          // the last pass failed to detach claims, and logged that
}

// NewReaper returns a reaper that does nothing before Pass or Run.
func NewReaper(claims *Service, records Records, owners Watcher, log hclog.Logger) *Reaper {
	return &Reaper{records: records, owners: owners, claims: claims, log: log, freed: make(chan struct{}, 1)}
}

// mortal returns the current owners of all wanted claims.
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

// Freed makes the reaper stop watching owners without claims.
func (r *Reaper) Freed() {
	select {
	case r.freed <- struct{}{}:
	default:
	}
}

// Run detaches claims until ctx ends.
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

// Pass detaches all claims whose owners have ended, and reports whether all releases were stored.
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
	if n > 0 && !r.missed { // log once: a full disk can last for hours and fail thousands of releases
		r.log.Warn("cannot detach claims whose owners are gone; it is tried again until it can be done", "claims", n, "error", *last.Load())
	}
	r.missed = n > 0
	return n == 0
}
