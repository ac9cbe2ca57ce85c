package localdriver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// maxDepth limits the directories that are open at once during the removal of a tree. Deeper ones
// are first moved up to the trash directory.
const maxDepth = 64

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

	r := remover{ctx: ctx, top: int(top.Fd())}
	err = r.remove(r.top, id, 0)

	// Directories that are too deep were moved beside the volume. Each may contain more of them.
	for err == nil && len(r.hoisted) > 0 {
		name := r.hoisted[len(r.hoisted)-1]
		r.hoisted = r.hoisted[:len(r.hoisted)-1]
		err = r.remove(r.top, name, 0)
	}
	if err != nil {
		err = fmt.Errorf("cannot remove the data of %q, which was deleted and stays in %s until the next attempt: %w",
			id, s.path(dirTrash), err)
	}

	return errors.Join(err, top.Close())
}

// remover deletes trees using only directory descriptors, so that a rename or link that is made
// meanwhile cannot lead it elsewhere.
type remover struct {
	ctx     context.Context
	top     int // the trash directory
	hoisted []string
}

// remove deletes name in the open directory dir, with everything below it.
func (r *remover) remove(dir int, name string, depth int) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}

	// A file, a link or an empty directory is removed without opening it. A mount point gives
	// EBUSY.
	err := unix.Unlinkat(dir, name, 0)
	if errors.Is(err, unix.EISDIR) {
		err = unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
	}

	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil
	case !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST):
		return fmt.Errorf("%q: %w", name, err)
	}

	if depth >= maxDepth {
		up := newID()
		if err := unix.Renameat2(dir, name, r.top, up, unix.RENAME_NOREPLACE); err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
		r.hoisted = append(r.hoisted, up)
		return nil
	}

	err = r.empty(dir, name, depth)
	if err == nil {
		err = unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%q: %w", name, err)
	}

	return nil
}

// empty removes everything in a directory. The kernel refuses to open the directory across a mount
// (EXDEV) or through a link.
func (r *remover) empty(dir int, name string, depth int) error {
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return err
	}

	f := os.NewFile(uintptr(fd), name)
	for {
		// Removing while reading skips no entry: unread names stay in the listing.
		names, err := f.Readdirnames(512)
		for _, n := range names {
			if err := r.remove(fd, n, depth+1); err != nil {
				return errors.Join(err, f.Close())
			}
		}

		if errors.Is(err, io.EOF) {
			return f.Close()
		}
		if err != nil {
			return errors.Join(err, f.Close())
		}
	}
}
