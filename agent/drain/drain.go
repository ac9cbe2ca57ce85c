// Package drain empties the host, for example before maintenance. While the host is draining, the
// agent admits no claim. The package detaches each claim that has no owner or whose owner has
// ended. For every other claim, it reports the command that ends the owner.
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

// Store reads the records, and stores whether the host is draining.
type Store interface {
	// Volumes returns the records of all volumes, and the leftover records of forced deregisters.
	Volumes() []volume.Record
	Draining() bool
	// SetDraining stores the setting and waits until it is on disk. It reports whether the setting
	// has changed. If SetDraining fails, the setting keeps its old value. When SetDraining returns,
	// Volumes includes all claims that were admitted before, and the agent admits no more claims.
	SetDraining(ctx context.Context, draining bool) (changed bool, err error)
}

// Claims detaches claims.
type Claims interface {
	Detach(ctx context.Context, id, alloc string, force bool, wait time.Duration) error
}

// Queue unmounts volumes that have no claim.
type Queue interface {
	Wake(key string)
	Look(ctx context.Context, r volume.Record) (volume.Observed, *volume.Attempt)
}

// Owners reports whether the owners of claims are alive.
type Owners interface {
	volume.Owners
	// Check determines the current state of the owners.
	Check(ctx context.Context, owners []volume.Owner)
}

// Service drains the host.
type Service struct {
	Store  Store
	Claims Claims
	Queue  Queue
	Owners Owners

	// Strays returns mounts and devices on the host that no record contains. The agent cannot undo
	// them.
	Strays func() []volume.Occupant
	Events func(...volume.Event)

	// Changed is called after a drain has begun or ended.
	Changed func()

	// Halt is the reason why the agent refuses to drain. It is empty in normal operation.
	Halt string
}

const (
	// lookEvery is the interval at which a waiting drain checks the host.
	lookEvery = 500 * time.Millisecond

	// lookWithin limits the check of one volume. A drain reports a mount that does not answer in
	// time.
	lookWithin = 500 * time.Millisecond

	// atOnce limits how many volumes the service handles at the same time.
	atOnce = 128
)

// Drain makes the agent refuse new claims, even after a restart of the agent. It detaches all
// claims that have no living owner. It then waits until nothing of any volume remains on the host,
// but at most for the duration wait. It returns the claims, mounts and calls that remain. A caller
// may repeat Drain at any time: a repeated drain also retries postponed steps at once. If an
// operator ends the drain in the meantime, Drain returns ErrRefused.
func (s *Service) Drain(ctx context.Context, wait time.Duration) (volume.Occupancy, error) {
	if s.Halt != "" {
		return volume.Occupancy{}, volume.Errorf(volume.ErrRefused, "cannot drain this host: %s", s.Halt)
	}

	changed, err := s.Store.SetDraining(ctx, true)
	if err != nil {
		return volume.Occupancy{}, err
	}

	if changed {
		s.Changed()
		s.Events(volume.Event{Type: volume.EventNodeDraining, Message: "new claims are refused; claims without a living owner are detached"})
	}
	s.retry()
	ctx, cancel := context.WithTimeoutCause(ctx, wait, errOver)
	defer cancel()

	for {
		unstored := s.detach(context.WithoutCancel(ctx), s.Store.Volumes(), all)
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

// errOver is the cancellation cause of a context when the wait has timed out.
var errOver = errors.New("the wait is over")

// Undrain makes the agent admit claims again. It reports whether the host was draining.
func (s *Service) Undrain(ctx context.Context) (changed bool, err error) {
	changed, err = s.Store.SetDraining(ctx, false)
	if changed {
		s.Changed()
		s.Events(volume.Event{Type: volume.EventNodeUndrained, Message: "claims are accepted again"})
	}
	return changed, err
}

// retry checks all owners again and wakes the volumes that are being unmounted. An operator who
// repeats a drain may have solved the problem that delayed the earlier drain.
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

// Release detaches the claims on one volume as Drain does, and returns the claims and mounts that remain. The
// host is not draining, so a person may change the plan. Release therefore detaches the claims that
// have no owner only when no claim has a living owner.
func (s *Service) Release(ctx context.Context, id string) volume.Occupancy {
	living := false
	for _, r := range s.recordsOf(id) {
		for _, c := range r.Claims {
			owned := c.Wanted && c.Owner.Mortal()
			living = living || owned && !s.Owners.Gone(c.Keeper())
		}
	}

	failed := s.detach(ctx, s.recordsOf(id), func(c volume.Claim) bool { return !living || c.Owner.Mortal() })
	left := s.look(ctx, s.recordsOf(id))
	left.Left = append(left.Left, failed...)
	return left
}

// recordsOf returns the record of a volume, or nothing.
func (s *Service) recordsOf(id string) (own []volume.Record) {
	for _, r := range s.Store.Volumes() {
		if r.Volume.ID == id && !r.Leftover {
			own = append(own, r)
		}
	}
	return own
}

// all selects all claims.
func all(volume.Claim) bool { return true }

// detach detaches the selected claims of some records that have no living owner. It returns the claims
// whose detach it could not store.
func (s *Service) detach(ctx context.Context, records []volume.Record, selected func(volume.Claim) bool) (failed []volume.Occupant) {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		slots = make(chan struct{}, atOnce)
	)

	for _, r := range records {
		for _, c := range r.Claims {
			lives := c.Owner.Mortal() && !s.Owners.Gone(c.Keeper())
			if r.Leftover || lives || !c.Wanted || !selected(c) {
				continue
			}

			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				err := s.Claims.Detach(ctx, r.Volume.ID, c.Alloc, false, 0)
				if err == nil || errors.Is(err, volume.ErrNotFound) || errors.Is(err, volume.ErrRefused) {
					return // the claim is gone, or its owner is alive
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
	o := volume.Occupant{Volume: id, Alloc: alloc, Message: fmt.Sprintf("cannot store its detach: %v", err), Command: remedy.Of(remedy.ShowNode)}
	var e *volume.Error
	if errors.As(err, &e) {
		o.Command = e.Remedy.Or(remedy.Advice(e.Hint)).Or(o.Command)
	}
	return o
}

// Look returns the claims and leftovers that keep volumes on this host. It checks several volumes
// at the same time.
func (s *Service) Look(ctx context.Context) volume.Occupancy {
	all := s.look(ctx, s.Store.Volumes())
	if all.Empty() && s.Strays != nil {
		all.Left = s.Strays()
	}
	return all
}

// look returns the claims and leftovers of some records that keep volumes on this host.
func (s *Service) look(ctx context.Context, records []volume.Record) volume.Occupancy {
	var held []volume.Record
	for _, r := range records {
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
	return all
}
