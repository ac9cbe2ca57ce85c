// Package tree removes trees of files, and copies images. It accesses trees only through open
// directories, so another process cannot lead it out of a tree. It also copies trees, through
// treecopy.
package tree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// MaxDepth limits how many directories are open at once while a tree is removed. A directory that
// is nested more deeply is first moved to the top directory.
const MaxDepth = 64

// RemoveTree deletes the entry with the given name in the open directory top, with everything below
// it. It moves deeply nested directories into top, under names that newName returns. At a mount
// point, it stops with an error.
func RemoveTree(ctx context.Context, top int, name string, newName func() string) error {
	r := remover{ctx: ctx, top: top, newName: newName}
	err := r.remove(top, name, 0)

	// Remove the deeply nested directories that the removal has moved into the directory top. Such
	// a directory may again contain directories that are nested too deeply.
	for err == nil && len(r.hoisted) > 0 {
		name := r.hoisted[len(r.hoisted)-1]
		r.hoisted = r.hoisted[:len(r.hoisted)-1]
		err = r.remove(top, name, 0)
	}

	return err
}

// remover deletes trees only through descriptors of open directories. So a concurrent rename, or a
// new link, cannot lead it to a directory outside the tree.
type remover struct {
	ctx     context.Context
	top     int // the open directory into which deeply nested directories are moved
	hoisted []string
	newName func() string // returns a name for a directory that is moved into top
}

// remove deletes the entry with the given name in the open directory dir, with everything below it.
func (r *remover) remove(dir int, name string, depth int) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}

	// Try to remove the entry without opening it, which works for a file, a link and an empty
	// directory. For a mount point, the kernel returns EBUSY.
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

// empty removes everything in a directory. The kernel refuses to open the directory if it is a
// mount point (EXDEV) or a link.
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
		// Names that have not been read yet stay in the listing. So the loop skips no entry
		// although it removes entries while it reads the directory.
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
