// Package drain empties the host. From then on the agent admits no claim. The package detaches
// claims that have no owner or whose owner has ended, and names the others with the command that
// ends each one.
package drain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// Store holds the records.
type Store interface {
	// Volumes returns all volumes, and the leftovers of forced deregisters.
	Volumes() []volume.Record
	Draining() bool
	// SetDraining stores the setting and returns when it is on disk; on an error nothing has
	// changed. It reports whether the setting changed. Claims that were admitted before are in
	// Volumes when it returns, and no claim is admitted later.
	SetDraining(ctx context.Context, draining bool) (changed bool, err error)
}

// Claims detaches claims.
type Claims interface {
	Detach(ctx context.Context, id, alloc string, force bool, wait time.Duration) error
}

// Queue takes volumes down.
type Queue interface {
	Wake(key string)
	Look(ctx context.Context, r volume.Record) (volume.Observed, *volume.Attempt)
}

// Owners tells which owners of claims are alive.
type Owners interface {
	volume.Owners
	// Check looks at owners again.
	Check(ctx context.Context, owners []volume.Owner)
}

// Service drains the host.
type Service struct {
	Store  Store
	Claims Claims
	Queue  Queue
	Owners Owners

	// Strays returns things on the host that no record mentions and that would be lost too.
	Strays func() []volume.Occupant
	Events func(...volume.Event)

	// Halt says why a drain is refused; empty in normal operation.
	Halt string
}

const (
	// lookEvery is the interval at which a waiting drain looks again.
	lookEvery = 500 * time.Millisecond

	// lookWithin bounds the look at one volume. A mount that does not answer in time is reported as
	// such.
	lookWithin = 500 * time.Millisecond

	// atOnce limits how many volumes are handled at the same time.
	atOnce = 128
)

// Drain refuses new claims from now on, also after restarts. It detaches the claims that have no
// live owner. Then it waits, up to wait, until the host holds nothing of any volume. It returns the
// claims, mounts and calls that remain. A caller may drain again at any time, which retries
// postponed steps at once. Drain returns ErrRefused if the drain was ended meanwhile.
func (s *Service) Drain(ctx context.Context, wait time.Duration) (volume.Occupancy, error) {
	if s.Halt != "" {
		return volume.Occupancy{}, volume.Errorf(volume.ErrRefused, "cannot drain this host: %s", s.Halt)
	}

	changed, err := s.Store.SetDraining(ctx, true)
	if err != nil {
		return volume.Occupancy{}, err
	}

	if changed {
		s.Events(volume.Event{Type: "node-draining", Message: "new claims are refused; claims without a living owner are detached"})
	}
	s.retry()
	ctx, cancel := context.WithTimeoutCause(ctx, wait, errOver)
	defer cancel()

	for {
		unstored := s.detach(context.WithoutCancel(ctx))
		left := s.Look(context.WithoutCancel(ctx))
		left.Left = append(left.Left, unstored...)
		if left.Empty() || errors.Is(context.Cause(ctx), errOver) {
			return left, nil
		}

		select {
		case <-ctx.Done():
		case <-time.After(lookEvery):
		}

		switch {
		case ctx.Err() != nil && !errors.Is(context.Cause(ctx), errOver):
			return left, ctx.Err()
		case !s.Store.Draining():
			return left, volume.Errorf(volume.ErrRefused, "the drain was ended meanwhile").WithHint("volctl node drain")
		}
	}
}

// errOver is the cause of a context whose wait used all its time.
var errOver = errors.New("the wait is over")

// Undrain admits claims again. It reports whether they were refused before.
func (s *Service) Undrain(ctx context.Context) (changed bool, err error) {
	changed, err = s.Store.SetDraining(ctx, false)
	if changed {
		s.Events(volume.Event{Type: "node-undrained", Message: "claims are accepted again"})
	}
	return changed, err
}

// retry looks at the owners again and retries failed steps, because the person who asks may have
// solved the problem.
func (s *Service) retry() {
	var owners []volume.Owner
	for _, r := range s.Store.Volumes() {
		leaving := r.Held()
		for _, c := range r.Claims {
			if leaving = leaving && !c.Wanted; c.Wanted && c.Owner.Mortal() {
				owners = append(owners, c.Keeper())
			}
		}

		if leaving {
			s.Queue.Wake(r.Key())
		}
	}

	if len(owners) == 0 {
		return
	}

	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()

	s.Owners.Check(ctx, owners)
}

// release detaches the claims that have no live owner. It returns those whose change could not be
// stored.
func (s *Service) detach(ctx context.Context) (failed []volume.Occupant) {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		slots = make(chan struct{}, atOnce)
	)

	for _, r := range s.Store.Volumes() {
		for _, c := range r.Claims {
			if r.Leftover || !c.Wanted || c.Owner.Mortal() && !s.Owners.Gone(c.Keeper()) {
				continue
			}

			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				err := s.Claims.Detach(ctx, r.Volume.ID, c.Alloc, false, 0)
				if err == nil || errors.Is(err, volume.ErrNotFound) || errors.Is(err, volume.ErrRefused) {
					return // the claim is gone, or its owner is alive after all
				}

				mu.Lock()
				defer mu.Unlock()

				failed = append(failed, notDetached(r.Volume.ID, c.Alloc, err))
			})
		}
	}

	wg.Wait()
	return failed
}

func notDetached(id, alloc string, err error) volume.Occupant {
	o := volume.Occupant{Volume: id, Alloc: alloc, Message: fmt.Sprintf("its detach could not be stored: %v", err), Command: remedy.Of(remedy.ShowNode)}
	var e *volume.Error
	if errors.As(err, &e) {
		o.Command = e.Remedy.Or(remedy.Advice(e.Hint)).Or(o.Command)
	}
	return o
}

// Look returns the claims and leftovers that keep volumes on the host. It looks at several volumes
// at the same time.
func (s *Service) Look(ctx context.Context) volume.Occupancy {
	var held []volume.Record
	for _, r := range s.Store.Volumes() {
		if r.Held() {
			held = append(held, r)
		}
	}

	slices.SortFunc(held, func(a, b volume.Record) int { return cmp.Compare(a.Key(), b.Key()) })
	found := make([]volume.Occupancy, len(held))
	var wg sync.WaitGroup
	slots := make(chan struct{}, atOnce)

	for i, r := range held {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, lookWithin)
			defer cancel()
			obs, at := s.Queue.Look(ctx, volume.Past(r, s.Owners))
			found[i] = r.Occupancy(obs, at, s.Owners)
		})
	}

	wg.Wait()
	var all volume.Occupancy
	for _, o := range found {
		all.Waiting, all.Left = append(all.Waiting, o.Waiting...), append(all.Left, o.Left...)
	}
	if all.Empty() && s.Strays != nil {
		all.Left = s.Strays()
	}

	return all
}
