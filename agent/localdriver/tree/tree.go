// Package tree copies and removes trees of files, and copies images. It accesses trees only through
// open directories, so another process cannot lead it out of a tree.
package tree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/jobs"
)

// maxCopyDepth limits the depth of a tree that can be copied, because the copier keeps two
// directories open for each level.
const maxCopyDepth = 2048

// cloneBlock is the number of bytes that canReflink tries to clone. Every filesystem that can clone
// files can clone this number of bytes.
const cloneBlock = 4096

// treeCopier copies a tree only through descriptors of open directories. So a concurrent rename, or
// a new link, cannot lead it out of the tree. The copy keeps owners, modes, times, extended
// attributes (including ACLs and capabilities), hard links, symbolic links, special files and
// holes. It does not keep the attributes of chattr(1).
type treeCopier struct {
	ctx   context.Context
	prog  *jobs.Progress
	links *hardLinks
}

// CopyTree copies the directory src to dst, which must not exist yet, and waits until the copy is
// on disk. It skips files that are deleted before it reaches them. If the tree contains a mount
// point, it returns an error.
func CopyTree(ctx context.Context, src, dst string, p *jobs.Progress) error {
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
		return csierr.Preconditionf("the directory that holds the data is missing: %s", src)
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
		err = links.clear(ctx)
	}
	if err == nil {
		err = unix.Syncfs(int(to.Fd()))
	}

	return errors.Join(err, links.close())
}

// roomForTree measures the tree, and returns an error if the copy cannot fit on the disk. If the
// filesystem can share data, the data of the copy needs no space.
func roomForTree(ctx context.Context, from *os.File, name string, to *os.File, p *jobs.Progress) error {
	if canReflink(to) {
		return nil
	}
	bytes, err := countTree(ctx, int(from.Fd()), name, 0)
	if err != nil {
		return err
	}
	p.Total.Add(bytes)
	return needSpace(to, bytes)
}

// canReflink tries with two unnamed files whether the filesystem can clone files.
func canReflink(dir *os.File) bool {
	a, err := os.OpenFile(dir.Name(), os.O_RDWR|unix.O_TMPFILE, 0o600)
	if err != nil {
		return false
	}
	defer func() { _ = a.Close() }() // an unnamed file disappears when it is closed

	b, err := os.OpenFile(dir.Name(), os.O_RDWR|unix.O_TMPFILE, 0o600)
	if err != nil {
		return false
	}
	defer func() { _ = b.Close() }() // an unnamed file disappears when it is closed

	_, err = a.Write(make([]byte, cloneBlock))
	return err == nil && Reflink(a, b) == nil
}

// countTree adds up the sizes of all files in bytes. It counts a file with several names once.
func countTree(ctx context.Context, from int, name string, depth int) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}

	st, err := statEntry(from, name)
	if err != nil || depth > maxCopyDepth {
		return 0, ignoreGone(err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return int64(st.Blocks) * 512 / int64(max(1, st.Nlink)), nil
	}

	dir, err := openDir(from, name)
	if err != nil {
		return 0, ignoreGone(err)
	}

	sum := int64(0)
	err = eachName(dir, func(n string) error {
		bytes, err := countTree(ctx, int(dir.Fd()), n, depth+1)
		sum += bytes
		return err
	})

	return sum, errors.Join(err, dir.Close())
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
	if depth > maxCopyDepth {
		return false, csierr.Preconditionf("it lies more than %d directories deep, which is too deep to be copied", maxCopyDepth)
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
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(int(src.Fd()), "", buf)
		if err != nil {
			return err
		}
		if err := unix.Symlinkat(string(buf[:n]), to, toName); err != nil {
			return err
		}
	} else {
		dev := unix.Mkdev(st.Rdev_major, st.Rdev_minor)
		if err := unix.Mknodat(to, toName, uint32(st.Mode&unix.S_IFMT)|0o600, int(dev)); err != nil {
			return err
		}
	}

	return settle(xattrsOfPath(src), to, toName, st)
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
	if err := unix.Mkdirat(to, toName, 0o700); err != nil {
		return err
	}

	out, err := openDir(to, toName)
	if err != nil {
		return err
	}

	err = eachName(in, func(n string) error { return c.entry(int(in.Fd()), n, int(out.Fd()), n, depth+1) })
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}

	return settle(xattrsOf(in), to, toName, st)
}

func (c *treeCopier) file(src *os.File, to int, toName string) error {
	fd, err := unix.Open(openPath(src), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}

	in := os.NewFile(uintptr(fd), src.Name())
	// closing cannot lose data, because the directory was only read
	defer func() { _ = in.Close() }()

	st, err := StatOpen(in)
	if err != nil {
		return err
	}
	if fd, err = unix.Openat(to, toName, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600); err != nil {
		return err
	}

	out := os.NewFile(uintptr(fd), toName)
	err = Reflink(in, out)
	if errors.Is(err, ErrNoReflink) {
		err = copyData(c.ctx, in, out, int64(st.Size), c.prog)
	}
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}

	return settle(xattrsOf(in), to, toName, st)
}

// statEntry returns the attributes of an entry. It does not follow a link. If the entry is a mount
// point, it returns an error.
func statEntry(dir int, name string) (*unix.Statx_t, error) {
	var st unix.Statx_t
	err := unix.Statx(dir, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_BASIC_STATS, &st)
	if err == nil && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		err = named(name, errMountInside)
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
	// limit in bytes; a longer path loses its start, which is less informative than its end
	const most = 256
	path := p.path
	if len(path) > most {
		path = "…" + strings.ToValidUTF8(path[len(path)-most:], "")
	}
	return fmt.Sprintf("%q: %v", path, p.err)
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
