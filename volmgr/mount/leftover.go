package mount

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// RemoveLeftover removes what an unmount left at path: an empty directory, an
// empty regular file or a device node. Anything else is an error that says
// what is there: a mount point, a symbolic link, a file or a directory that
// holds something. A missing path is success.
func (h *Host) RemoveLeftover(path string) error {
	path = filepath.Clean(path)
	_, err := bounded(context.Background(), h, kindChange, path, h.bound, func() (struct{}, error) { return struct{}{}, h.removeLeftover(path) })
	if err != nil {
		return fmt.Errorf("cannot remove %q: %w", path, err)
	}
	return nil
}

func (h *Host) removeLeftover(path string) error {
	st, err := statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_STATX_DONT_SYNC, unix.STATX_BASIC_STATS)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	mounted, err := h.mountedAt(path)
	if err != nil {
		return err
	}
	if mounted {
		return errors.New("it is a mount point")
	}
	// Neither rmdir nor unlink takes a mount point, a link's target or a
	// directory that holds something, whatever happened since.
	flags := 0
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		flags = unix.AT_REMOVEDIR
	case unix.S_IFREG:
		if st.Size > 0 {
			return fmt.Errorf("it is a file of %d bytes", st.Size)
		}
	case unix.S_IFBLK, unix.S_IFCHR:
	case unix.S_IFLNK:
		return errors.New("it is a symbolic link")
	default:
		return fmt.Errorf("it is neither directory, file nor device (mode %#o)", st.Mode)
	}
	err = retry(func() error { return unix.Unlinkat(unix.AT_FDCWD, path, flags) })
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST):
		return fmt.Errorf("%w: it holds %s", err, contents(path))
	}
	return err
}

// contents names a few of the entries of a directory.
func contents(dir string) string {
	const most = 5
	d, err := os.Open(dir)
	if err != nil {
		return "something"
	}
	defer func() { _ = d.Close() }() // it was only read
	names, err := d.Readdirnames(most + 1)
	if err != nil {
		return "something"
	}
	var b strings.Builder
	for i, n := range names {
		switch {
		case i == most:
			b.WriteString(" and more")
			return b.String()
		case i > 0:
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%q", n)
	}
	return b.String()
}

// Contents is what is at a path, as far as it can be told without a look at
// anything that is mounted there.
type Contents struct {
	Kind    string // KindNone, or one of the other Kind constants
	Mounted bool   // something is mounted there: of what it holds nothing is known
	Size    int64  // of a file, in bytes
	// Names are of a directory's entries, in no order, and no more than were asked for.
	Names []string
}

// Kinds of what is at a path.
const (
	KindNone   = "" // nothing is there
	KindDir    = "directory"
	KindFile   = "file"
	KindDevice = "device"
	KindOther  = "other" // a symbolic link, a socket, …
)

// Empty reports whether it is what an unmount leaves: nothing of anybody's is in it.
func (c Contents) Empty() bool {
	return !c.Mounted && (c.Kind == KindDir && len(c.Names) == 0 || c.Kind == KindFile && c.Size == 0 || c.Kind == KindDevice)
}

// Contents looks at a path that is not followed if it is a symbolic link, and at no
// more than most entries of it, all if that is negative. Nothing is opened where
// something is mounted, but for the root of a listing: through tells that the path itself may be a mount point.
func (h *Host) Contents(ctx context.Context, path string, most int, through bool) (Contents, error) {
	path = filepath.Clean(path)
	c, err := bounded(ctx, h, kindLook, path, h.bound, func() (c Contents, err error) {
		for range 3 {
			if c, err = h.contents(path, most, through); !errors.Is(err, errVanished) {
				break // else a mount came or went
			}
		}
		return c, err
	})
	if err != nil {
		return c, fmt.Errorf("cannot look into %q: %w", path, err)
	}
	return c, nil
}

func (h *Host) contents(path string, most int, through bool) (c Contents, err error) {
	st, err := statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_STATX_DONT_SYNC, unix.STATX_BASIC_STATS)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return c, nil
	}
	if err != nil {
		return c, err
	}
	c.Kind = kindOf(st.Mode)
	if c.Mounted, err = h.mountedAt(path); err != nil || c.Mounted && !through {
		return c, err
	}
	switch c.Kind {
	case KindFile:
		c.Size = int64(st.Size) //nolint:gosec // no file has more than that
	case KindDir:
		c.Names, err = names(path, most)
	}
	if errors.Is(err, unix.ENOENT) {
		return Contents{}, nil // it went meanwhile
	}
	return c, err
}

func kindOf(mode uint16) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return KindDir
	case unix.S_IFREG:
		return KindFile
	case unix.S_IFBLK, unix.S_IFCHR:
		return KindDevice
	default:
		return KindOther
	}
}

// names lists some of a directory's entries.
func names(dir string, most int) ([]string, error) {
	if most == 0 {
		return nil, nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }() // it was only read
	list, err := d.Readdirnames(most)
	if errors.Is(err, io.EOF) {
		err = nil // it is empty
	}
	return list, err
}
