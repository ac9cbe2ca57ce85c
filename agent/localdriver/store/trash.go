package store

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/localdriver/tree"
)

// discard removes an object that the method place could not complete. The object is in tmp. If only
// the last sync failed, the object is already at its final place.
func (s *StateDir) discard(ctx context.Context, id string) error {
	for _, from := range []string{DirTmp, DirVolumes, DirSnapshots, DirGroups} {
		if err := s.Move(id, from, DirTrash); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return s.Purge(ctx, id)
}

// Purge removes the data of a deleted volume, snapshot or group. After a failure or a crash, the
// caller can repeat it. Purge succeeds if no data is left. At a mount point, it stops with an
// error.
func (s *StateDir) Purge(ctx context.Context, id string) error {
	if !validAnyID(id) {
		return nil
	}

	top, err := os.Open(s.Path(DirTrash))
	if err != nil {
		return fmt.Errorf("cannot remove the data of %q: %w", id, err)
	}

	err = tree.RemoveTree(ctx, int(top.Fd()), id, NewID)
	if err != nil {
		err = fmt.Errorf("cannot remove the data of %q, which was deleted and stays in %s until the next attempt: %w",
			id, s.Path(DirTrash), err)
	}

	return errors.Join(err, top.Close())
}
