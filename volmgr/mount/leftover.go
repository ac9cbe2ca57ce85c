package mount

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// RemoveLeftover removes the file that remains at path after an unmount: an empty directory, an
// empty regular file or a device node. It refuses a mount point, a symbolic link, and a file or
// directory with contents. Its error then describes the obstacle. RemoveLeftover succeeds if path
// does not exist.
func (h *Host) RemoveLeftover(path string) error {
	path = filepath.Clean(path)
	err := h.gate.do(context.Background(), kindChange, path, func() error { return h.removeLeftover(path) })
	if err != nil {
		return fmt.Errorf("cannot remove %q: %w", path, err)
	}
	return nil
}

func (c *changer) removeLeftover(path string) error {
	st, err := statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_STATX_DONT_SYNC, unix.STATX_BASIC_STATS)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}

	mounted, err := c.mountedAt(path)
	if err != nil {
		return err
	}
	if mounted {
		return errors.New("it is a mount point")
	}

	// The file at path may have changed since the check above. Even so, rmdir and unlink remove no
	// mount point, no target of a link, and no directory with contents.
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
		return fmt.Errorf("%w: it contains %s", err, someNames(path))
	}

	return err
}

// someNames returns the names of a few entries of a directory, for an error message.
func someNames(dir string) string {
	const limit = 5
	list, err := names(dir, limit+1)
	if err != nil || len(list) == 0 {
		return "something"
	}

	for i, n := range list {
		list[i] = strconv.Quote(n)
	}
	if len(list) > limit {
		return strings.Join(list[:limit], ", ") + " and more"
	}
	return strings.Join(list, ", ")
}

// Contents describes the file at a path.
type Contents struct {
	Kind    string // one of the Kind constants
	Mounted bool   // the path is a mount point
	Size    int64  // the size of a file, in bytes
	// Names are entries of a directory, unsorted, up to the requested number.
	Names []string
}

// These constants are the kinds of files in Contents.
const (
	KindNone   = "" // the path does not exist
	KindDir    = "directory"
	KindFile   = "file"
	KindDevice = "device"
	KindOther  = "other" // a symbolic link, a socket, …
)

// Empty reports whether the path exists, is not a mount point, and contains no data.
func (c Contents) Empty() bool {
	return !c.Mounted && (c.Kind == KindDir && len(c.Names) == 0 || c.Kind == KindFile && c.Size == 0 || c.Kind == KindDevice)
}

// Contents describes the file at path and does not follow a symbolic link. It lists at most limit
// entries of a directory, or all entries if limit is negative. It does not read the contents of a
// mount point, unless readMount is set.
func (h *Host) Contents(ctx context.Context, path string, limit int, readMount bool) (Contents, error) {
	path = filepath.Clean(path)
	c, err := bounded(ctx, &h.gate, kindLook, path, func() (c Contents, err error) {
		for range 3 {
			if c, err = h.contents(path, limit, readMount); !errors.Is(err, errVanished) {
				break // errVanished: a mount has just appeared or disappeared, so try again
			}
		}

		return c, err
	})

	if err != nil {
		return c, fmt.Errorf("cannot read the contents of %q: %w", path, err)
	}
	return c, nil
}

func (r *reader) contents(path string, limit int, readMount bool) (c Contents, err error) {
	st, err := statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_STATX_DONT_SYNC, unix.STATX_BASIC_STATS)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return c, nil
	}
	if err != nil {
		return c, err
	}

	c.Kind = kindOf(st.Mode)
	if c.Mounted, err = r.mountedAt(path); err != nil || c.Mounted && !readMount {
		return c, err
	}

	switch c.Kind {
	case KindFile:
		c.Size = int64(st.Size) //nolint:gosec // no file has more than that
	case KindDir:
		c.Names, err = names(path, limit)
	}

	if errors.Is(err, unix.ENOENT) {
		return Contents{}, nil // the file was removed after the first check
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
