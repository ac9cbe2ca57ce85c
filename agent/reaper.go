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
	// reapEvery is when releases that were missed, for whatever reason, get their
	// second chance.
	reapEvery = 30 * time.Second
	// reapAgain is how soon a release that could not be stored is tried again.
	reapAgain = 2 * time.Second
	// settleFor is how long freed claims are waited for before their owners are
	// watched no more: one look at all claims does for many.
	settleFor = time.Second
	// reapsAtOnce share their commits.
	reapsAtOnce = 128
)

// reaper releases claims whose owners are gone: at once when one ends, when the
// agent starts, and in a periodic pass.
type reaper struct {
	db     store
	owners *owner.Watcher
	claims *claim.Service
	log    hclog.Logger
	freed  chan struct{} // a claim is gone
	missed bool          // the last pass left releases for the next, and that was said
}

// owners returns those of all claims that are wanted, as they are now.
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

// noteFreed has the reaper stop watching owners that own nothing any more.
func (r *reaper) noteFreed() {
	select {
	case r.freed <- struct{}{}:
	default:
	}
}

// run reaps until ctx ends.
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

// pass releases what is to be released, and reports whether all of it was.
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
	if n > 0 && !r.missed { // a disk may be full for hours, and the owners of thousands gone
		r.log.Warn("cannot release claims whose owners are gone; it is tried again until it can be done", "claims", n, "error", *last.Load())
	}
	r.missed = n > 0
	return n == 0
}

// living reads records as they are to be seen: a claim whose owner is gone is on
// its way out before that is stored.
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
