package dockervol

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// askWithin limits the check whether one volume is in use.
const askWithin = 30 * time.Second

// giveBack changes the references of a volume and detaches the claims that no reference needs any
// longer. Both changes are on disk when it returns. It returns the detaching claims. If another
// mount namespace contains the mount of a claim, the claim stays, even if the count is 0.
// Otherwise, a repeated Unmount could remove the volume from a running container.
func (s *Service) giveBack(ctx context.Context, runtime, name string, change func(volume.RuntimeVolume) volume.RuntimeVolume) (gone []volume.Claim, err error) {
	release, err := s.locks.hold(ctx, volume.RuntimeKey(runtime, name))
	if err != nil {
		return nil, err
	}
	defer release()
	v, ok := s.Store.RuntimeVolume(runtime, name)
	if !ok {
		return nil, nil
	}

	// Only the holder of the lock changes references, so the check and the change see the same
	// references.
	keep := s.shown(ctx, change(v))
	v, ok, err = s.change(ctx, runtime, name, func(v volume.RuntimeVolume) volume.RuntimeVolume { return change(v).Settled(keep) })
	if err != nil || !ok {
		return nil, err
	}

	s.activity.forget(v)
	return s.detachUnclaimed(ctx, v)
}

// shown returns the allocs that have no mounted reference, although another mount namespace still
// contains their mount. It also returns an alloc if the check of its mount fails.
func (s *Service) shown(ctx context.Context, v volume.RuntimeVolume) (keep []string) {
	for _, alloc := range v.Unneeded() {
		r, ok := s.Store.Volume(v.VolumeID)
		c, claimed := r.Claims[alloc]
		if !ok || !claimed || c.Owner != v.Owner() {
			continue
		}
		if holders, err := s.holders(ctx, r, c); err != nil || len(holders) > 0 {
			s.tell(v, returnedWords, "who", strings.Join(holders, ", "), "error", err)
			keep = append(keep, alloc)
		}
	}

	return keep
}

// returnedWords is the log message for a claim that stays although its count is 0.
const returnedWords = "the runtime has unmounted a volume, but its claim stays while a mount namespace contains its mount"

// holders describes the processes outside the host's mount namespace that use the mount of a claim.
// It returns nothing for a claim that is being detached.
func (s *Service) holders(ctx context.Context, r volume.Record, c volume.Claim) ([]string, error) {
	if !c.Wanted || c.Mount == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	return s.Mounts.Elsewhere(ctx, *c.Mount, mine(c.Target, r.Node.StagingPath))
}

// detachUnclaimed detaches the claims of a volume that no reference needs. The caller holds the
// lock of the name.
func (s *Service) detachUnclaimed(ctx context.Context, v volume.RuntimeVolume) (gone []volume.Claim, err error) {
	r, ok := s.Store.Volume(v.VolumeID)
	if !ok {
		return nil, nil
	}

	for _, c := range r.Ordered() {
		if c.Owner != v.Owner() || v.Claimed(c.Alloc) {
			continue
		}
		if c.Wanted {
			if err := s.Claims.Drop(ctx, v.VolumeID, c); err != nil {
				return gone, fmt.Errorf("cannot detach volume %q: %w", v.VolumeID, err)
			}
		}

		gone = append(gone, c)
	}

	return gone, nil
}

// mine returns the paths that are not empty. The arguments are the paths at which the agent itself
// mounts a volume.
func mine(paths ...string) []string {
	return slices.DeleteFunc(paths, func(path string) bool { return path == "" })
}
