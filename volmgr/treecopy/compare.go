package treecopy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// maxDifferences limits the number of differences that a comparison collects before it ends.
const maxDifferences = 20

// timeTolerance is the largest difference, in seconds, between the modification times of a file and
// its copy. Some filesystems store times with this precision.
const timeTolerance = 2

// errEnough ends a comparison that has found maxDifferences differences.
var errEnough = errors.New("enough differences")

// Comparison is the result of a comparison of two trees.
type Comparison struct {
	Files int64 // the number of files and directories, without the root
	Bytes int64 // the sum of the sizes of the regular files
	// Differences describes the first differences, at most 20. It is empty if the trees are equal.
	Differences []string
}

// Compare compares everything in To with From: names, types, owners, modes, modification times,
// extended attributes, content, targets of links, and device numbers. It also compares which names
// lead to the same file. It reads the content of both files, so a hash would prove less.
// It also reports files of From that change while it reads them.
func (c Content) Compare(ctx context.Context) (Comparison, error) {
	cmp := comparer{ctx: ctx, prog: c.Progress, copies: map[inode]inode{}, sources: map[inode]inode{}}
	err := cmp.dir(c.From, c.To, "", c.Skip, 0)
	if errors.Is(err, errEnough) {
		err = nil
	}
	return cmp.found, err
}

// inode identifies a file of one of the trees.
type inode struct {
	major, minor uint32
	number       uint64
}

func inodeOf(st *unix.Statx_t) inode { return inode{st.Dev_major, st.Dev_minor, st.Ino} }

type comparer struct {
	ctx   context.Context
	prog  *Progress
	found Comparison
	// copies and sources map files with several names to their copies, and back.
	copies, sources map[inode]inode
}

// differs records a difference.
func (c *comparer) differs(path, format string, args ...any) error {
	if path == "" {
		path = "."
	}
	c.found.Differences = append(c.found.Differences, fmt.Sprintf("%q %s", shortened(path), fmt.Sprintf(format, args...)))
	if len(c.found.Differences) == maxDifferences {
		return errEnough
	}
	return nil
}

// dir compares two open directories with everything below them.
func (c *comparer) dir(from, to *os.File, path string, skip func(string) bool, depth int) error {
	if depth > maxDepth {
		return ErrTooDeep
	}
	if err := c.ctx.Err(); err != nil {
		return err
	}

	a, err := openDir(int(from.Fd()), ".")
	if err != nil {
		return err
	}
	defer func() { _ = a.Close() }() // closing cannot lose data, because the directory was only read

	b, err := openDir(int(to.Fd()), ".")
	if err != nil {
		return err
	}
	defer func() { _ = b.Close() }() // closing cannot lose data, because the directory was only read

	if err := c.attributes(a, b, path); err != nil {
		return err
	}

	names, err := sortedNames(a, skip)
	if err != nil {
		return err
	}
	copies, err := sortedNames(b, skip)
	if err != nil {
		return err
	}

	for _, name := range copies {
		if _, ok := slices.BinarySearch(names, name); !ok {
			if err := c.differs(join(path, name), "exists only in the copy"); err != nil {
				return err
			}
		}
	}

	for _, name := range names {
		if _, ok := slices.BinarySearch(copies, name); !ok {
			if err := c.differs(join(path, name), "is missing in the copy"); err != nil {
				return err
			}
			continue
		}
		if err := c.entry(a, b, name, join(path, name), depth+1); err != nil {
			return err
		}
	}

	return nil
}

// entry compares an entry of two open directories.
func (c *comparer) entry(from, to *os.File, name, path string, depth int) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}

	a, err := openBeneath(int(from.Fd()), name, unix.O_PATH)
	if errors.Is(err, unix.ENOENT) {
		return c.differs(path, "was removed while it was compared")
	}
	if err != nil {
		return named(path, err)
	}
	defer func() { _ = a.Close() }() // closing cannot lose data, because the file was only read

	b, err := openBeneath(int(to.Fd()), name, unix.O_PATH)
	if err != nil {
		return named(path, err)
	}
	defer func() { _ = b.Close() }() // closing cannot lose data, because the file was only read

	c.found.Files++
	st, err := StatOpen(a)
	if err != nil {
		return named(path, err)
	}
	copied, err := StatOpen(b)
	if err != nil {
		return named(path, err)
	}

	if st.Mode&unix.S_IFMT != copied.Mode&unix.S_IFMT {
		return c.differs(path, "has another file type in the copy")
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return c.dir(a, b, path, func(string) bool { return false }, depth)
	}
	if err := c.names(st, copied, path); err != nil {
		return err
	}
	if err := c.attributes(a, b, path); err != nil {
		return err
	}

	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return c.content(a, b, st, copied, path)
	case unix.S_IFLNK:
		return c.link(a, b, path)
	case unix.S_IFCHR, unix.S_IFBLK:
		if st.Rdev_major != copied.Rdev_major || st.Rdev_minor != copied.Rdev_minor {
			return c.differs(path, "is device %d:%d, and %d:%d in the copy", st.Rdev_major, st.Rdev_minor, copied.Rdev_major, copied.Rdev_minor)
		}
	}

	return nil
}

// names checks that the names of one file are names of one copy, and of no other.
func (c *comparer) names(st, copied *unix.Statx_t, path string) error {
	if st.Nlink < 2 && copied.Nlink < 2 {
		return nil
	}

	a, b := inodeOf(st), inodeOf(copied)
	to, known := c.copies[a]
	from, taken := c.sources[b]
	c.copies[a], c.sources[b] = b, a
	if known && to != b || taken && from != a {
		return c.differs(path, "has other names in the copy")
	}

	return nil
}

// attributes compares the attributes that all types of files have.
func (c *comparer) attributes(from, to *os.File, path string) error {
	st, err := StatOpen(from)
	if err != nil {
		return named(path, err)
	}
	copied, err := StatOpen(to)
	if err != nil {
		return named(path, err)
	}

	apart := st.Mtime.Sec - copied.Mtime.Sec
	switch {
	case st.Uid != copied.Uid || st.Gid != copied.Gid:
		err = c.differs(path, "has the owner %d:%d, and %d:%d in the copy", st.Uid, st.Gid, copied.Uid, copied.Gid)
	case st.Mode&unix.S_IFMT != unix.S_IFLNK && st.Mode != copied.Mode:
		err = c.differs(path, "has the mode %04o, and %04o in the copy", st.Mode&0o7777, copied.Mode&0o7777)
	case max(apart, -apart) > timeTolerance:
		err = c.differs(path, "has another modification time in the copy")
	}
	if err != nil {
		return err
	}

	a, err := xattrsOfPath(from).read()
	if err != nil {
		return named(path, err)
	}
	b, err := xattrsOfPath(to).read()
	if err != nil {
		return named(path, err)
	}

	return c.xattrs(a, b, path)
}

// xattrs compares the extended attributes of a file and of its copy.
func (c *comparer) xattrs(from, to []xattr, path string) error {
	values := map[string][]byte{}
	for _, one := range to {
		values[one.name] = one.value
	}

	for _, one := range from {
		value, ok := values[one.name]
		delete(values, one.name)
		if one.name != labelName && (!ok || !bytes.Equal(value, one.value)) {
			return c.differs(path, "has another extended attribute %q in the copy", one.name)
		}
	}

	for name := range values {
		if name != labelName {
			return c.differs(path, "has the extended attribute %q only in the copy", name)
		}
	}

	return nil
}

// content compares the content of two regular files.
func (c *comparer) content(from, to *os.File, st, copied *unix.Statx_t, path string) error {
	c.found.Bytes += int64(st.Size)
	if st.Size != copied.Size {
		return c.differs(path, "has %d bytes, and %d in the copy", st.Size, copied.Size)
	}

	a, err := reopen(from)
	if err != nil {
		return named(path, err)
	}
	defer func() { _ = a.Close() }() // closing cannot lose data, because the file was only read

	b, err := reopen(to)
	if err != nil {
		return named(path, err)
	}
	defer func() { _ = b.Close() }() // closing cannot lose data, because the file was only read

	same, err := sameData(c.ctx, a, b, int64(st.Size), c.prog)
	if err != nil {
		return named(path, err)
	}
	if !same {
		return c.differs(path, "has another content in the copy")
	}

	now, err := StatOpen(a)
	if err != nil {
		return named(path, err)
	}
	if now.Mtime != st.Mtime || now.Ctime != st.Ctime {
		return c.differs(path, "was changed while it was compared")
	}

	return nil
}

// link compares the targets of two symbolic links.
func (c *comparer) link(from, to *os.File, path string) error {
	a, err := readLink(from)
	if err != nil {
		return named(path, err)
	}
	b, err := readLink(to)
	if err != nil {
		return named(path, err)
	}
	if a != b {
		return c.differs(path, "leads elsewhere in the copy")
	}
	return nil
}

// sameData compares the first size bytes of two files. It skips the ranges that are holes in both files.
func sameData(ctx context.Context, a, b *os.File, size int64, p *Progress) (bool, error) {
	// The copy must be read from the disk, and not from memory. The kernel ignores this advice for
	// pages that it cannot drop, and filesystems without a page cache refuse it.
	_ = unix.Fadvise(int(b.Fd()), 0, 0, unix.FADV_DONTNEED)

	one, two := make([]byte, readChunk), make([]byte, readChunk)
	for at := int64(0); at < size; {
		if err := ctx.Err(); err != nil {
			return false, err
		}

		next, err := nextData(a, b, at, size)
		if err != nil || next >= size {
			return err == nil, err
		}

		n := int(min(readChunk, size-next))
		x, err := readFull(a, one[:n], next)
		if err != nil {
			return false, err
		}
		y, err := readFull(b, two[:n], next)
		if err != nil {
			return false, err
		}
		if x != n || y != n || !bytes.Equal(one[:n], two[:n]) {
			return false, nil
		}

		at = next + int64(n)
		p.Done.Add(int64(n))
	}

	return true, nil
}

// nextData returns the position of the next data of either file, or size if both end with a hole.
func nextData(a, b *os.File, at, size int64) (int64, error) {
	next := size
	for _, f := range []*os.File{a, b} {
		data, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			continue
		}
		if err != nil {
			return 0, err
		}
		next = min(next, data)
	}
	return next, nil
}

// readFull reads at a position until the buffer is full or the file ends.
func readFull(f *os.File, buf []byte, at int64) (int, error) {
	n, err := f.ReadAt(buf, at)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// sortedNames returns the sorted names in a directory, without those for which skip returns true.
func sortedNames(dir *os.File, skip func(string) bool) (names []string, err error) {
	err = eachName(dir, func(name string) error {
		if !skip(name) {
			names = append(names, name)
		}
		return nil
	})
	slices.Sort(names)
	return names, err
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "/" + name
}
