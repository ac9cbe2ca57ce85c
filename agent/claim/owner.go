package claim

import (
	"context"
	"errors"

	"github.com/volagent/volagent/volmgr/volume"
)

// resolve completes the owner that a request names; without one the claim lives
// until it is detached.
func (s *Service) resolve(ctx context.Context, req *volume.Request) (err error) {
	if req.Owner.Kind == "" || req.Owner.Kind == volume.OwnerNone {
		req.Owner = volume.Owner{Kind: volume.OwnerNone}
	} else if s.Owners == nil {
		return volume.Errorf(volume.ErrInvalid, "claims cannot have owners here")
	} else if req.Owner, err = s.Owners.Resolve(ctx, req.Owner); err != nil {
		return err
	}
	if s.Owners != nil {
		req.Owners = s.Owners
	}
	return nil
}

// recheck asks again about the owners of claims that are wanted. It reports
// whether there was anything to ask.
func (s *Service) recheck(ctx context.Context, r volume.Record) bool {
	var owners []volume.Owner
	for _, c := range r.Ordered() {
		if c.Wanted && c.Owner.Mortal() {
			owners = append(owners, c.Keeper())
		}
	}
	if s.Owners == nil || len(owners) == 0 {
		return false
	}
	s.Owners.Check(ctx, owners)
	return true
}

// reapAll releases the claims of a volume whose owners are gone, for a request
// that waits for them. What fails here the reaper tries again.
func (s *Service) reapAll(ctx context.Context, id string) {
	r, _ := s.Store.Volume(id)
	for _, c := range r.Ordered() {
		if s.past(c) {
			_ = s.Reap(ctx, id, c)
		}
	}
}

// past reports whether a claim is wanted still, although its owner is gone.
func (s *Service) past(c volume.Claim) bool {
	return s.Owners != nil && c.Wanted && c.Owner.Mortal() && s.Owners.Gone(c.Keeper())
}

// Reap releases a claim whose owner is gone. It is the release that Detach makes;
// with both at once there is one. A claim that the alloc made since is another,
// and stays; so does one that the owner turns out to keep, when the release is to be
// stored. Of a mount that is exact: the agent takes away none before it is off the
// record, so what is on record then and not mounted was unmounted by somebody else.
func (s *Service) Reap(ctx context.Context, id string, c volume.Claim) error {
	if !s.past(c) {
		return nil
	}
	released, err := s.releaseIf(ctx, id, c.Alloc, volume.WithPlugin, func(now volume.Claim) bool {
		return now.Seq == c.Seq && s.past(now)
	})
	if errors.Is(err, volume.ErrNotFound) {
		return nil // it is gone already
	}
	if released {
		ended := " has ended"
		if c.Keeper().ByMount() {
			ended = " was taken away"
		}
		s.say(id, c.Alloc, "owner-gone", c.Keeper().String()+ended)
	}
	return err
}
