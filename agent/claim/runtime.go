package claim

import (
	"context"
	"errors"

	"github.com/volagent/volagent/volmgr/volume"
)

// Drop detaches a claim that its owner has declared unneeded. The intent is on disk when Drop
// returns. Drop ignores a newer claim of the same alloc, and returns nil for a claim that is gone.
func (s *Service) Drop(ctx context.Context, id string, c volume.Claim) error {
	_, err := s.endClaim(ctx, id, c.Alloc, c.Seq, volume.WithPlugin)
	if errors.Is(err, volume.ErrNotFound) {
		return nil
	}
	return err
}

// Freed waits until all mounts of a dropped claim are gone. The agent continues to detach after the
// wait has ended.
func (s *Service) Freed(ctx context.Context, id string, c volume.Claim) error {
	return s.freed(ctx, id, c, volume.WithPlugin)
}
