package claim

import (
	"context"
	"errors"

	"github.com/volagent/volagent/volmgr/volume"
)

// Drop detaches a claim that its owner no longer needs. When Drop returns, the decision is on disk.
// Drop ignores a newer claim of the same alloc. It returns nil if the claim is already gone.
func (s *Service) Drop(ctx context.Context, id string, c volume.Claim) error {
	_, err := s.endClaim(ctx, id, c.Alloc, c.Seq, volume.WithPlugin)
	if errors.Is(err, volume.ErrNotFound) {
		return nil
	}
	return err
}

// Freed waits until all mounts of a dropped claim are gone. After the wait, the agent continues to
// unmount.
func (s *Service) Freed(ctx context.Context, id string, c volume.Claim) error {
	return s.freed(ctx, id, c, volume.WithPlugin)
}
