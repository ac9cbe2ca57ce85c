package tree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// MaxDepth limits the directories that are open at once during the removal of a tree. Deeper ones
// are first moved up beside the tree.
const MaxDepth = 64

// RemoveTree deletes name in the open directory top, with everything below it. newName returns names
// for directories that it moves into top. At a mount point, it stops with an error.
func RemoveTree(ctx context.Context, top int, name string, newName func() string) error {
	r := remover{ctx: ctx, top: top, newName: newName}
	err := r.remove(top, name, 0)

	// The removal has moved each directory that was nested too deeply into the directory top. Such
	// a directory may contain more of them.
	for err == nil && len(r.hoisted) > 0 {
		name := r.hoisted[len(r.hoisted)-1]
		r.hoisted = r.hoisted[:len(r.hoisted)-1]
		err = r.remove(top, name, 0)
	}

	return err
}

// remover deletes trees using only directory descriptors. A concurrent rename, or a new link,
// therefore cannot lead it elsewhere.
type remover struct {
	ctx     context.Context
	top     int // the open directory to which deep directories are moved
	hoisted []string
	newName func() string // returns a name for a directory that is moved to top
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

	if depth >= MaxDepth {
		up := r.newName()
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
		// Removing entries while reading the directory skips none of them, because unread names
		// stay in the listing.
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
