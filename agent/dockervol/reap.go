package dockervol

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

const (
	// reapEvery is the interval between two passes that search for leaked references.
	reapEvery = 30 * time.Second

	// youngest is the minimum age of a reference that can count as leaked. It must be longer than
	// the time between a Mount and the start of the container.
	youngest = time.Minute

	// agreeing is the number of consecutive passes that must find no use of the volume.
	agreeing = 2
)

// Run searches for leaked references until ctx ends. A reference leaks if its container has ended
// and the runtime sent no Unmount, for example because the runtime was killed.
func (s *Service) Run(ctx context.Context) {
	tick := time.NewTicker(reapEvery)
	defer tick.Stop()

	for {
		s.Reap(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Reap runs one pass of the reaper. It removes the references of a claim only if two consecutive
// passes find no use of the volume. A pass finds no use if no other mount namespace contains the
// mount, and if the runtime reports no container that uses the volume. If one of these checks
// fails, the references stay. References for which a Mount arrives during the pass also stay.
func (s *Service) Reap(ctx context.Context) { reaper{s}.pass(ctx) }

// reaper removes references whose containers have ended.
type reaper struct{ *Service }

// pass searches for leaked references once.
func (s reaper) pass(ctx context.Context) {
	s.orphans(ctx)
	volumes := s.Store.RuntimeVolumes()

	// Record the time of new references before the first request to a runtime, which may take long
	// to answer.
	for _, v := range volumes {
		for _, r := range v.Refs {
			s.activity.last(v.Key(), r.ID, s.now())
		}
	}

	suspects := map[string]int{}
	var doubts []Doubt

	for _, v := range volumes {
		for _, alloc := range allocs(v) {
			if ctx.Err() != nil {
				return
			}
			turns := s.turns(v, alloc)
			if turns == nil {
				continue
			}
			d := s.doubt(ctx, v, alloc)
			if !d.leaked() {
				continue
			}
			if d.Kept == "" {
				key := d.key()
				if suspects[key] = s.suspects[key] + 1; suspects[key] >= agreeing {
					s.reap(ctx, v, alloc, turns)
					delete(suspects, key)
					continue
				}
			}
			doubts = append(doubts, d)
		}
	}

	s.suspects = suspects
	s.doubts.replace(doubts, s.now())
}

// allocs returns the allocs of the volume's references, without duplicates.
func allocs(v volume.RuntimeVolume) []string {
	var names []string
	for _, r := range v.Refs {
		names = append(names, r.Alloc)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// turns returns the number of the last Mount for each reference of an alloc. It returns nil if a
// Mount is running or a reference is still too young.
func (s reaper) turns(v volume.RuntimeVolume, alloc string) map[string]uint64 {
	if s.activity.isMounting(v.Runtime) {
		return nil
	}

	turns := map[string]uint64{}
	for _, r := range v.Refs {
		if r.Alloc != alloc {
			continue
		}

		t := s.activity.last(v.Key(), r.ID, s.now())
		if s.now().Sub(t.at) < youngest {
			return nil
		}

		turns[r.ID] = t.turn
	}

	return turns
}

// doubt checks whether containers use the claim of an alloc. It also counts the references of the
// claim for which it finds no container.
func (s reaper) doubt(ctx context.Context, v volume.RuntimeVolume, alloc string) Doubt {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()

	d := newDoubt(v, alloc)
	if r, ok := s.Store.Volume(v.VolumeID); ok && r.Claims[alloc].Owner == v.Owner() {
		holders, err := s.holders(ctx, r, r.Claims[alloc])
		switch {
		case err != nil:
			d.Kept = fmt.Sprintf("cannot determine which mount namespaces contain its mount: %v", err)
			s.tell(v, "cannot determine whether containers use a volume; its claim stays", "error", err)
			return d
		case len(holders) > 0:
			s.Log.Trace("containers keep a volume", "runtime", v.Runtime, "volume", v.Name, "holders", holders)
			return d.heldBy(holders, slices.Contains(v.Unneeded(), alloc))
		}
	}

	using, err := s.Containers.Using(ctx, v.Runtime, v.Name)
	switch {
	case err != nil:
		d.Kept = fmt.Sprintf("cannot determine which containers use it: %v", err)
		s.tell(v, "cannot determine whether containers use a volume; its claim stays", "error", err)
	case len(using) > 0:
		d.Kept = strings.Join(using, ", ") + " may start to use it"
		s.tell(v, "no process uses a volume, but its claim stays because containers may start to use it", "who", strings.Join(using, ", "))
	default:
		s.told.forget(v.Key())
	}

	return d
}

// reap removes the references of an alloc that no container uses. It keeps a reference if a Mount
// has used it since the check.
func (s reaper) reap(ctx context.Context, v volume.RuntimeVolume, alloc string, turns map[string]uint64) {
	_, err := s.giveBack(ctx, v.Runtime, v.Name, func(v volume.RuntimeVolume) volume.RuntimeVolume {
		return v.Returning(func(r volume.RuntimeRef) bool {
			turn, was := turns[r.ID]
			return was && r.Alloc == alloc && s.activity.last(v.Key(), r.ID, s.now()).turn == turn
		})
	})

	if err != nil {
		s.Log.Warn("cannot detach a volume whose containers are gone; the agent retries", "runtime", v.Runtime, "volume", v.VolumeID, "error", err)
		return
	}
	if now, ok := s.Store.RuntimeVolume(v.Runtime, v.Name); ok && now.Claimed(alloc) {
		return // a container has mounted the volume meanwhile
	}

	s.Events(volume.Event{
		Type: volume.EventOwnerGone, Volume: v.VolumeID, Alloc: alloc,
		Message: fmt.Sprintf("no container of %s uses it, and %s did not unmount it", v.Runtime, v.Runtime),
	})
}

// orphans detaches the claims of runtimes that have no reference. Such a claim remains if an agent
// ended between its two commits, or if the name was lost.
func (s reaper) orphans(ctx context.Context) {
	for _, r := range s.Store.Volumes() {
		for _, c := range r.Ordered() {
			if c.Owner.Kind != volume.OwnerRuntime || !c.Wanted {
				continue
			}
			v, ok := s.Store.RuntimeVolume(c.Owner.Runtime, c.Owner.Volume)
			if ok && v.Claimed(c.Alloc) {
				continue
			}
			if err := s.orphan(ctx, r, c); err != nil {
				s.Log.Warn("cannot detach a volume that no container uses; the agent retries", "volume", r.Volume.ID, "alloc", c.Alloc, "error", err)
			}
		}
	}
}

// orphan checks a claim again under the lock, and detaches it.
func (s reaper) orphan(ctx context.Context, r volume.Record, c volume.Claim) error {
	release, err := s.locks.hold(ctx, volume.RuntimeKey(c.Owner.Runtime, c.Owner.Volume))
	if err != nil {
		return err
	}
	defer release()
	v, ok := s.Store.RuntimeVolume(c.Owner.Runtime, c.Owner.Volume)
	if ok && v.Claimed(c.Alloc) {
		return nil
	}
	if holders, err := s.holders(ctx, r, c); err != nil || len(holders) > 0 {
		lost := volume.RuntimeVolume{Runtime: c.Owner.Runtime, Name: c.Owner.Volume, VolumeID: r.Volume.ID}
		s.tell(lost, "no container refers to a volume, but its claim stays while a mount namespace contains its mount", "who", strings.Join(holders, ", "), "error", err)
		return nil
	}

	return s.Claims.Drop(ctx, r.Volume.ID, c)
}
