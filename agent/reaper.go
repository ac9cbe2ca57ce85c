package agent

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/claim"
	"github.com/volagent/volagent/agent/owner"
	"github.com/volagent/volagent/volmgr/volume"
)

const (
	// reapEvery is the interval of the periodic pass, which catches ends of owners that were
	// missed.
	reapEvery = 30 * time.Second
	// reapAgain is the delay before the retry of a release that could not be stored.
	reapAgain = 2 * time.Second
	// settleFor is the delay after the end of a claim before the reaper stops watching owners
	// without claims. One pass covers all claims that end in that time.
	settleFor = time.Second
	// reapsAtOnce limits the parallel releases, which share their commits.
	reapsAtOnce = 128
)

// reaper detaches claims whose owners have ended: at once when an owner ends, when the agent
// starts, and in a periodic pass.
type reaper struct {
	db     store
	owners *owner.Watcher
	claims *claim.Service
	log    hclog.Logger
	freed  chan struct{} // receives a message after a claim is gone
	missed bool          // the last pass failed to release claims, and logged that
}

// owners returns the current owners of all wanted claims.
func (s store) owners() []volume.Owner {
	var list []volume.Owner
	for _, r := range s.Volumes() {
		for _, c := range r.Claims {
			if c.Wanted && c.Owner.Mortal() {
				list = append(list, c.Keeper())
			}
		}
	}

	return list
}

// noteFreed makes the reaper stop watching owners without claims.
func (r *reaper) noteFreed() {
	select {
	case r.freed <- struct{}{}:
	default:
	}
}

// run detaches claims until ctx ends.
func (r *reaper) run(ctx context.Context) {
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

		if r.pass(ctx) {
			next.Reset(reapEvery)
		} else {
			next.Reset(reapAgain)
		}
	}
}

// pass detaches all claims whose owners have ended, and reports whether all releases were stored.
func (r *reaper) pass(ctx context.Context) bool {
	r.owners.Keep(r.db.owners)
	var (
		wg     sync.WaitGroup
		missed atomic.Int64
		last   atomic.Pointer[error]
		slots  = make(chan struct{}, reapsAtOnce)
	)

	for _, rec := range r.db.Volumes() {
		for _, c := range rec.Claims {
			if !c.Wanted || !c.Owner.Mortal() || !r.owners.Gone(c.Keeper()) {
				continue
			}

			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				if err := r.claims.Reap(ctx, rec.Volume.ID, c); err != nil && ctx.Err() == nil {
					r.log.Debug("cannot release a claim whose owner is gone", "volume", rec.Volume.ID, "alloc", c.Alloc, "owner", c.Keeper().String(), "error", err)
					missed.Add(1)
					last.Store(&err)
				}
			})
		}
	}

	wg.Wait()
	n := missed.Load()
	if n > 0 && !r.missed { // log once: a full disk can last for hours and fail thousands of releases
		r.log.Warn("cannot release claims whose owners are gone; it is tried again until it can be done", "claims", n, "error", *last.Load())
	}
	r.missed = n > 0
	return n == 0
}

// living returns records as the API shows them: a claim whose owner has ended appears as detaching,
// even before that is stored.
type living struct {
	store
	owners volume.Owners
}

// Volume returns a volume's record.
func (l living) Volume(id string) (volume.Record, bool) {
	r, ok := l.store.Volume(id)
	return volume.Past(r, l.owners), ok
}

// Volumes returns all records.
func (l living) Volumes() []volume.Record {
	rs := l.store.Volumes()
	for i := range rs {
		rs[i] = volume.Past(rs[i], l.owners)
	}
	return rs
}
