package localdriver

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/localdriver/tree"
)

// discard removes the leftovers of a failed place. They are in tmp, or already in their final place
// if only the last sync failed.
func (s *store) discard(ctx context.Context, id string) error {
	for _, from := range []string{dirTmp, dirVolumes, dirSnapshots, dirGroups} {
		if err := s.move(id, from, dirTrash); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return s.purge(ctx, id)
}

// purge removes the data of a deleted volume, snapshot or group. It can be repeated after any
// failure or crash, and succeeds if no data is left. At a mount point, it stops with an error.
func (s *store) purge(ctx context.Context, id string) error {
	if !validAnyID(id) {
		return nil
	}

	top, err := os.Open(s.path(dirTrash))
	if err != nil {
		return fmt.Errorf("cannot remove the data of %q: %w", id, err)
	}

	err = tree.RemoveTree(ctx, int(top.Fd()), id, newID)
	if err != nil {
		err = fmt.Errorf("cannot remove the data of %q, which was deleted and stays in %s until the next attempt: %w",
			id, s.path(dirTrash), err)
	}

	return errors.Join(err, top.Close())
}
