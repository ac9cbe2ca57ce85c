// Package treecopy copies a tree of files to another directory, and compares two trees. A copy keeps
// owners, modes, times, extended attributes (including ACLs and capabilities), hard links, symbolic
// links, special files and holes. It does not keep the attributes of chattr(1).
//
// The files may belong to an attacker who renames files, or replaces them with links, during the
// copy. The package therefore accesses both trees only through descriptors of open directories. The
// kernel refuses every step that would lead out of a tree, or across a mount.
//
//	copier.go      walks the source and makes the copies
//	resume.go      continues a copy that did not finish
//	data.go        copies the content of a file
//	attributes.go  copies the attributes of a file
//	hardlinks.go   gives the copy of a file with several names the same names
//	room.go        measures a tree, and the free space for its copy
//	compare.go     compares two trees
package treecopy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Callers distinguish these errors.
var (
	// ErrMissing means that the directory to copy does not exist.
	ErrMissing = errors.New("the directory that holds the data is missing")
	// ErrMountInside means that the tree contains a mount point.
	ErrMountInside = errors.New("something is mounted on it inside the volume, and a copy would not have it; unmount it first")
	// ErrTooDeep means that the tree has more levels of directories than can be copied.
	ErrTooDeep = fmt.Errorf("it lies more than %d directories deep, which is too deep to be copied", maxDepth)
)

// Progress counts the bytes of a copy or comparison. Shared data is not counted, so Total may stay 0.
type Progress struct{ Done, Total atomic.Int64 }

// Tree copies the directory src to dst, which must not exist yet, and waits until the copy is on
// disk. It skips files that are deleted before it reaches them. If the tree contains a mount point,
// it returns an error that wraps ErrMountInside. If the copy cannot fit on the disk, it returns a
// SpaceError before it copies anything.
func Tree(ctx context.Context, src, dst string, p *Progress) error {
	from, err := os.Open(filepath.Dir(src))
	if err != nil {
		return err
	}
	// closing cannot lose data, because the directory was only read
	defer func() { _ = from.Close() }()

	to, err := os.Open(filepath.Dir(dst))
	if err != nil {
		return err
	}
	defer func() { _ = to.Close() }() // syncfs reports all errors of the copy

	// The copier skips deleted files. But it must not skip the root, because the result would be an
	// empty copy.
	root, err := statEntry(int(from.Fd()), filepath.Base(src))
	if errors.Is(err, unix.ENOENT) || err == nil && root.Mode&unix.S_IFMT != unix.S_IFDIR {
		return fmt.Errorf("%w: %s", ErrMissing, src)
	}
	if err != nil {
		return err
	}
	if err := roomForTree(ctx, from, filepath.Base(src), to, p); err != nil {
		return err
	}

	links, err := newHardLinks(int(to.Fd()))
	if err != nil {
		return err
	}

	c := treeCopier{ctx: ctx, prog: p, links: links}
	err = c.entry(int(from.Fd()), filepath.Base(src), int(to.Fd()), filepath.Base(dst), 0)
	if err == nil {
		err = links.clear()
	}
	if err == nil {
		err = unix.Syncfs(int(to.Fd()))
	}

	return errors.Join(err, links.close())
}

// Content describes a copy of everything in one directory to another one.
type Content struct {
	From, To *os.File // the open directories
	// Scratch is an open directory in the file system of To, below To or beside it. A copy uses it for
	// temporary names.
	Scratch *os.File
	// Skip returns true for the names directly in the directories that are not part of the content.
	Skip     func(name string) bool
	Progress *Progress
}

// Copy copies the content, gives To the attributes of From, and waits until the copy is on disk.
//
// To may contain the result of a copy that did not finish. Copy then keeps the files whose content is
// equal, and replaces the others. It removes nothing that From does not have, and no directory that
// is not empty.
//
// Unlike Tree, Copy trusts inode numbers: no process may change From during the copy. Compare
// notices if one did.
func (c Content) Copy(ctx context.Context) error {
	// Each directory is opened anew, because a descriptor has a position in the list of names.
	in, err := openDir(int(c.From.Fd()), ".")
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // closing cannot lose data, because the directory was only read

	st, err := StatOpen(in)
	if err != nil {
		return err
	}

	links, err := newHardLinks(int(c.Scratch.Fd()))
	if err != nil {
		return err
	}
	links.trust = true

	copier := treeCopier{ctx: ctx, prog: c.Progress, links: links, resume: true}
	err = eachName(in, func(name string) error {
		if c.Skip(name) {
			return nil
		}
		return copier.entry(int(in.Fd()), name, int(c.To.Fd()), name, 1)
	})

	if err == nil {
		err = links.clear()
	}
	if err == nil {
		err = settle(xattrsOf(in), c.To, st)
	}
	if err == nil {
		err = unix.Syncfs(int(c.To.Fd()))
	}

	return errors.Join(err, links.close())
}
