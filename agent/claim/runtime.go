package claim

import (
	"context"
	"errors"

	"github.com/volagent/volagent/volmgr/volume"
)

// Drop releases a claim that nobody needs any more, by word of who it belongs to. The
// intent is on disk when that returns. A claim that the alloc made since is another, and
// stays; one that is gone was dropped.
func (s *Service) Drop(ctx context.Context, id string, c volume.Claim) error {
	_, err := s.release(ctx, id, c.Alloc, c.Seq, volume.WithPlugin)
	if errors.Is(err, volume.ErrNotFound) {
		return nil
	}
	return err
}

// Freed waits until all of a dropped claim is undone. The release goes on after a wait
// that ended.
func (s *Service) Freed(ctx context.Context, id string, c volume.Claim) error {
	return s.freed(ctx, id, c, volume.WithPlugin)
}
