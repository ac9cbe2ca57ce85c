package mount

import (
	"context"
	"errors"
	"fmt"
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
