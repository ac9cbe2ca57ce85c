// Package drain empties the host: from then on no claim is taken, claims that
// nobody alive holds are released, and the rest is named with what ends it.
package drain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// Store holds the records.
type Store interface {
	// Volumes are all volumes, and what forced deregisters left.
	Volumes() []volume.Record
	Draining() bool
	// SetDraining is on disk when it returns, or nothing has changed. It reports
	// whether that was news. A claim that was taken before is in Volumes then, and none
	// is taken later.
	SetDraining(ctx context.Context, draining bool) (changed bool, err error)
}

// Claims releases them.
type Claims interface {
	Detach(ctx context.Context, id, alloc string, force bool, wait time.Duration) error
}

// Queue brings volumes down.
type Queue interface {
	Wake(key string)
	Look(ctx context.Context, r volume.Record) (volume.Observed, *volume.Attempt)
}

// Owners tells who is alive.
type Owners interface {
	volume.Owners
	// Check asks again about owners.
	Check(ctx context.Context, owners []volume.Owner)
}

// Service drains the host.
type Service struct {
	Store  Store
	Claims Claims
	Queue  Queue
	Owners Owners
	// Strays are what no record tells of and would be lost too.
	Strays func() []volume.Occupant
	Events func(...volume.Event)
	// Halt says why nothing is done at all; empty when it is.
	Halt string
}

const (
	// lookEvery is how often a drain that waits looks again.
	lookEvery = 500 * time.Millisecond
	// lookWithin bounds the look at one volume: a mount that hangs is told of as such.
	lookWithin = 500 * time.Millisecond
	// atOnce is how many volumes are worked on side by side.
	atOnce = 128
)

// Drain refuses new claims from now on, over restarts too, releases those that
// nobody alive holds, and waits up to wait until nothing of any volume is on the host.
// It returns what is left then. It may be asked for again at any time, which tries at
// once what was put off. It is an ErrRefused if the drain was ended meanwhile.
func (s *Service) Drain(ctx context.Context, wait time.Duration) (volume.Occupancy, error) {
	if s.Halt != "" {
		return volume.Occupancy{}, volume.Errorf(volume.ErrRefused, "cannot drain this host: %s", s.Halt)
	}
	changed, err := s.Store.SetDraining(ctx, true)
	if err != nil {
		return volume.Occupancy{}, err
	}
	if changed {
		s.Events(volume.Event{Type: "node-draining", Message: "new claims are refused; what nobody alive holds is released"})
	}
	s.retry()
	ctx, cancel := context.WithTimeoutCause(ctx, wait, errOver)
	defer cancel()
	for {
		unstored := s.release(context.WithoutCancel(ctx))
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

// errOver is why a wait ended that had its time.
var errOver = errors.New("the wait is over")

// Undrain takes claims again. It reports whether they were refused.
func (s *Service) Undrain(ctx context.Context) (changed bool, err error) {
	changed, err = s.Store.SetDraining(ctx, false)
	if changed {
		s.Events(volume.Event{Type: "node-undrained", Message: "claims are taken again"})
	}
	return changed, err
}

// retry asks again how the owners are, and tries again what failed: a person asks for
// it, who may have mended something.
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

// release releases the claims that nobody alive holds, and returns those for which that
// could not be stored.
func (s *Service) release(ctx context.Context) (failed []volume.Occupant) {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		slots = make(chan struct{}, atOnce)
	)
	for _, r := range s.Store.Volumes() {
		for _, c := range r.Claims {
			if r.Debt || !c.Wanted || c.Owner.Mortal() && !s.Owners.Gone(c.Keeper()) {
				continue
			}
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				err := s.Claims.Detach(ctx, r.Volume.ID, c.Alloc, false, 0)
				if err == nil || errors.Is(err, volume.ErrNotFound) || errors.Is(err, volume.ErrRefused) {
					return // it is gone, or somebody alive has it after all
				}
				mu.Lock()
				defer mu.Unlock()
				failed = append(failed, notReleased(r.Volume.ID, c.Alloc, err))
			})
		}
	}
	wg.Wait()
	return failed
}

func notReleased(id, alloc string, err error) volume.Occupant {
	o := volume.Occupant{Volume: id, Alloc: alloc, Message: fmt.Sprintf("its release could not be stored: %v", err), Command: "volctl node status"}
	var e *volume.Error
	if errors.As(err, &e) && e.Hint != "" {
		o.Command = e.Hint
	}
	return o
}

// Look tells what of any volume is on the host. Volumes are looked at side by side.
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
