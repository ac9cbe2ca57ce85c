package treecopy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// maxDepth limits the depth of a tree that can be copied, because the copier keeps two directories
// open for each level.
const maxDepth = 2048

// treeCopier copies a tree only through descriptors of open directories. So a concurrent rename, or
// a new link, cannot lead it out of the tree.
type treeCopier struct {
	ctx   context.Context
	prog  *Progress
	links *hardLinks
	// resume is true if the target may contain the result of a copy that did not finish.
	resume bool
}

// entry copies the entry with the given name and everything below it. It opens the entry once and
// then uses only the descriptor. Otherwise, a process that renames files in the volume could mix
// the owner, the mode and the content of different files.
func (c *treeCopier) entry(from int, name string, to int, toName string, depth int) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}

	// Use O_PATH, because opening a device or a pipe has side effects.
	src, err := openBeneath(from, name, unix.O_PATH)
	if err != nil {
		return named(name, ignoreGone(err))
	}

	taken, err := c.copy(src, to, toName, depth)
	if !taken {
		err = errors.Join(err, ignoreClosed(src.Close()))
	}

	return named(name, err)
}

// copy copies an open file or directory. The result taken is true if src must stay open, because
// hardLinks now keeps it.
func (c *treeCopier) copy(src *os.File, to int, toName string, depth int) (taken bool, err error) {
	st, err := StatOpen(src)
	if err != nil {
		return false, err
	}
	if depth > maxDepth {
		return false, ErrTooDeep
	}
	if c.resume {
		if done, err := c.place(src, st, to, toName); done || err != nil {
			return false, err
		}
	}
	if linked, err := c.links.link(st, to, toName); linked || err != nil {
		return false, err
	}

	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return false, c.dir(src, to, toName, depth)
	case unix.S_IFREG:
		err = c.file(src, to, toName)
	default:
		err = copySpecial(src, st, to, toName)
	}
	if err != nil {
		return false, err
	}

	return c.links.add(src, st, to, toName)
}

// copySpecial copies a symbolic link, a pipe, a socket or a device node.
func copySpecial(src *os.File, st *unix.Statx_t, to int, toName string) error {
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		target, err := readLink(src)
		if err != nil {
			return err
		}
		if err := unix.Symlinkat(target, to, toName); err != nil {
			return err
		}
	} else {
		dev := unix.Mkdev(st.Rdev_major, st.Rdev_minor)
		if err := unix.Mknodat(to, toName, uint32(st.Mode&unix.S_IFMT)|0o600, int(dev)); err != nil {
			return err
		}
	}

	return settleEntry(xattrsOfPath(src), to, toName, st)
}

// readLink returns the target of a symbolic link that is open with O_PATH.
func readLink(link *os.File) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(link.Fd()), "", buf)
	return string(buf[:max(n, 0)]), err
}

func (c *treeCopier) dir(src *os.File, to int, toName string, depth int) error {
	in, err := openDir(int(src.Fd()), ".")
	if err != nil {
		return ignoreGone(err)
	}
	defer func() { _ = in.Close() }() // closing cannot lose data, because the file was only read

	// close src now, because a deep tree would need too many descriptors
	if err := src.Close(); err != nil {
		return err
	}

	st, err := StatOpen(in)
	if err != nil {
		return err
	}
	// Set the attributes of the directory after its files are copied. A default ACL must not affect
	// these files, and making the files changes the times of the directory.
	err = unix.Mkdirat(to, toName, 0o700)
	if err != nil && (!c.resume || !errors.Is(err, unix.EEXIST)) {
		return err
	}

	out, err := openDir(to, toName)
	if err != nil {
		return err
	}

	err = eachName(in, func(n string) error { return c.entry(int(in.Fd()), n, int(out.Fd()), n, depth+1) })
	if err == nil {
		err = settle(xattrsOf(in), out, st)
	}

	return errors.Join(err, out.Close())
}

func (c *treeCopier) file(src *os.File, to int, toName string) error {
	in, err := reopen(src)
	if err != nil {
		return err
	}
	// closing cannot lose data, because the file was only read
	defer func() { _ = in.Close() }()

	st, err := StatOpen(in)
	if err != nil {
		return err
	}
	fd, err := unix.Openat(to, toName, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}

	out := os.NewFile(uintptr(fd), toName)
	err = Reflink(in, out)
	if errors.Is(err, ErrNoReflink) {
		err = Data(c.ctx, in, out, int64(st.Size), c.prog)
	}
	if err == nil {
		err = settle(xattrsOf(in), out, st)
	}

	return errors.Join(err, out.Close())
}

// statEntry returns the attributes of an entry. It does not follow a link. If the entry is a mount
// point, it returns an error.
func statEntry(dir int, name string) (*unix.Statx_t, error) {
	var st unix.Statx_t
	err := unix.Statx(dir, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_BASIC_STATS, &st)
	if err == nil && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		err = named(name, ErrMountInside)
	}
	return &st, err
}

// eachName calls the function do with every name in a directory.
func eachName(dir *os.File, do func(name string) error) error {
	for {
		names, err := dir.Readdirnames(512)
		for _, n := range names {
			if err := do(n); err != nil {
				return err
			}
		}

		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func ignoreClosed(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

func ignoreGone(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// placed wraps an error with the path of the entry that caused the error.
type placed struct {
	path string
	err  error
}

func (p *placed) Unwrap() error { return p.err }

func (p *placed) Error() string {
	return fmt.Sprintf("%q: %v", shortened(p.path), p.err)
}

// shortened shortens a path to at most 256 bytes. A longer path loses its start, which is less
// informative than its end.
func shortened(path string) string {
	const most = 256
	if len(path) > most {
		path = "…" + strings.ToValidUTF8(path[len(path)-most:], "")
	}
	return path
}

// named adds the name of the entry to err, if err is not nil.
func named(name string, err error) error {
	if err == nil {
		return nil
	}
	if p := (*placed)(nil); errors.As(err, &p) {
		p.path = name + "/" + p.path
		return err
	}
	return &placed{name, err}
}
