package treecopy

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// cloneBlock is the number of bytes that canReflink tries to clone. Every filesystem that can clone
// files can clone this number of bytes.
const cloneBlock = 4096

// SpaceError means that a copy does not fit on a filesystem.
type SpaceError struct {
	Needed, Free int64
	// Files is true if the numbers count files, because the filesystem has a limit for them. Otherwise
	// the numbers count bytes.
	Files bool
}

func (e *SpaceError) Error() string {
	unit := "bytes"
	if e.Files {
		unit = "files"
	}
	return fmt.Sprintf("the copy needs %d %s, and %d are free", e.Needed, unit, e.Free)
}

// Size is the size of a tree.
type Size struct {
	Bytes int64 // the bytes on the disk; holes do not count
	Files int64 // the number of files and directories, without the root
}

// Measure returns the size of everything in an open directory, except the names for which skip
// returns true. It counts the data of a file with several names once, but each name as a file.
func Measure(ctx context.Context, dir *os.File, skip func(name string) bool) (Size, error) {
	in, err := openDir(int(dir.Fd()), ".")
	if err != nil {
		return Size{}, err
	}

	var all Size
	err = eachName(in, func(name string) error {
		if skip(name) {
			return nil
		}
		one, err := measure(ctx, int(in.Fd()), name, 1)
		all.add(one)
		return err
	})
	return all, errors.Join(err, in.Close())
}

func (s *Size) add(more Size) { s.Bytes, s.Files = s.Bytes+more.Bytes, s.Files+more.Files }

// roomForTree measures the tree, and returns an error if the copy cannot fit on the disk. If the
// filesystem can share data, the data of the copy needs no space.
func roomForTree(ctx context.Context, from *os.File, name string, to *os.File, p *Progress) error {
	if canReflink(to) {
		return nil
	}
	size, err := measure(ctx, int(from.Fd()), name, 0)
	if err != nil {
		return err
	}
	p.Total.Add(size.Bytes)
	return Room(to, size.Bytes)
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

// measure returns the size of an entry of an open directory, with everything below it.
func measure(ctx context.Context, from int, name string, depth int) (Size, error) {
	if err := ctx.Err(); err != nil {
		return Size{}, err
	}

	st, err := statEntry(from, name)
	if err != nil || depth > maxDepth {
		return Size{}, ignoreGone(err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return Size{Bytes: int64(st.Blocks) * 512 / int64(max(1, st.Nlink)), Files: 1}, nil
	}

	dir, err := openDir(from, name)
	if err != nil {
		return Size{}, ignoreGone(err)
	}

	all := Size{Files: 1}
	err = eachName(dir, func(n string) error {
		one, err := measure(ctx, int(dir.Fd()), n, depth+1)
		all.add(one)
		return err
	})

	return all, errors.Join(err, dir.Close())
}

// Room returns a SpaceError if the filesystem of an open file has fewer free bytes.
func Room(f *os.File, bytes int64) error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		return err
	}
	if free := int64(fs.Bavail) * fs.Frsize; free < bytes {
		return &SpaceError{Needed: bytes, Free: free}
	}
	return nil
}

// RoomForFiles returns a SpaceError if the filesystem of an open file has a limit for the number of
// files, and fewer than n are free.
func RoomForFiles(f *os.File, n int64) error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		return err
	}
	if fs.Files > 0 && int64(fs.Ffree) < n {
		return &SpaceError{Needed: n, Free: int64(fs.Ffree), Files: true}
	}
	return nil
}
