package claim

import (
	"context"
	"errors"

	"github.com/volagent/volagent/volmgr/volume"
)

// resolveOwner completes the owner that the request names. A claim without an owner stays until a
// user detaches it.
func resolveOwner(ctx context.Context, owners Owners, req *volume.Request) (err error) {
	if req.Owner.Kind == "" || req.Owner.Kind == volume.OwnerNone {
		req.Owner = volume.Owner{Kind: volume.OwnerNone}
	} else if owners == nil {
		return volume.Errorf(volume.ErrInvalid, "this agent does not support owners of claims")
	} else if req.Owner, err = owners.Resolve(ctx, req.Owner); err != nil {
		return err
	}

	if owners != nil {
		req.Owners = owners
	}

	return nil
}

// checkOwners checks the owners of all claims that are not being detached. It reports whether there
// is any such owner.
func checkOwners(ctx context.Context, owners Owners, r volume.Record) bool {
	var keepers []volume.Owner
	for _, c := range r.Ordered() {
		if c.Wanted && c.Owner.Mortal() {
			keepers = append(keepers, c.Keeper())
		}
	}

	if owners == nil || len(keepers) == 0 {
		return false
	}

	owners.Check(ctx, keepers)
	return true
}

// reapAll detaches each claim of a volume whose owner has ended, because a request waits for these
// claims. It ignores errors, because the reaper retries.
func (s *Service) reapAll(ctx context.Context, id string) {
	r, _ := s.Store.Volume(id)
	for _, c := range r.Ordered() {
		if ownerEnded(s.Owners, c) {
			_ = s.Reap(ctx, id, c)
		}
	}
}

// ownerEnded reports whether the owner of the claim has ended and the claim must still be detached.
func ownerEnded(owners Owners, c volume.Claim) bool {
	return owners != nil && c.Wanted && c.Owner.Mortal() && owners.Gone(c.Keeper())
}

// Reap detaches a claim whose owner has ended. If Detach runs at the same time, only one of the two
// changes the record. Reap does not detach a newer claim of the same alloc.
//
// Reap checks the owner again when it stores the decision, and keeps the claim if the owner is
// still alive. If the owner is a mount, this check is exact: before the agent unmounts one of its
// own mounts, it deletes the mount from the record. So if a mount is recorded but missing, another
// process has unmounted it.
func (s *Service) Reap(ctx context.Context, id string, c volume.Claim) error {
	if !ownerEnded(s.Owners, c) {
		return nil
	}

	released, err := s.endClaimIf(ctx, id, c.Alloc, volume.WithPlugin, func(now volume.Claim) bool {
		return now.Seq == c.Seq && ownerEnded(s.Owners, now)
	})
	if errors.Is(err, volume.ErrNotFound) {
		return nil // the claim is already gone
	}

	if released {
		ended := " has ended"
		if c.Keeper().ByMount() {
			ended = " was unmounted"
		}
		s.Events.emit(id, c.Alloc, volume.EventOwnerGone, c.Keeper().String()+ended)
	}

	return err
}
