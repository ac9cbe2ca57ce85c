package mount

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// lookMask selects the attributes that Look always needs. A file system can return these few
// attributes without access to its storage.
const lookMask = unix.STATX_TYPE | unix.STATX_MNT_ID_UNIQUE

// statx returns the attributes of the file at a path. With AT_EMPTY_PATH and an empty path, it
// returns those of an open file. With AT_STATX_DONT_SYNC, it accepts cached attributes. With
// AT_STATX_FORCE_SYNC, a network or FUSE file system must answer.
func statx(fd int, path string, flags, mask int) (unix.Statx_t, error) {
	var st unix.Statx_t
	err := retry(func() error { return unix.Statx(fd, path, flags|unix.AT_NO_AUTOMOUNT, mask, &st) })
	return st, err
}

// statFD returns the cached attributes of an open file.
func statFD(fd, mask int) (unix.Statx_t, error) {
	return statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, mask)
}

// retry repeats a call that was interrupted by a signal. Go's runtime sends signals, and on any
// signal FUSE and NFS abort a call.
func retry(fn func() error) error {
	for {
		if err := fn(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// open opens a file by its path.
func open(path string, flags int) (int, error) { return openat(unix.AT_FDCWD, path, flags) }

// openat opens a file by its path relative to an open directory.
func openat(dir int, path string, flags int) (fd int, err error) {
	err = retry(func() error {
		fd, err = unix.Openat(dir, path, flags|unix.O_CLOEXEC, 0)
		return err
	})
	return fd, err
}

// openat2 opens a file like openat. The parameter resolve restricts how the kernel follows the path
// (RESOLVE_NO_SYMLINKS and others).
func openat2(dir int, path string, flags, resolve uint64) (fd int, err error) {
	how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: resolve}
	err = retry(func() error {
		fd, err = unix.Openat2(dir, path, &how)
		return err
	})
	return fd, err
}

// openNoLink opens path with O_PATH, unless path is itself a symbolic link.
func openNoLink(path string) (int, error) {
	fd, err := open(path, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return -1, err
	}

	st, err := statFD(fd, unix.STATX_TYPE)
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
		err = errors.New("it is a symbolic link")
	}
	if err != nil {
		closeFD(fd)
		return -1, err
	}

	return fd, nil
}

// openNoLinks opens path with O_PATH, unless any component of path is a symbolic link.
func openNoLinks(path string) (int, error) {
	fd, err := openat2(unix.AT_FDCWD, path, unix.O_PATH, unix.RESOLVE_NO_SYMLINKS)
	unavailable := errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) // a kernel before 5.6, or a filter that refuses openat2
	if !unavailable && !errors.Is(err, unix.ELOOP) {
		return fd, err
	}

	end, err := filepath.EvalSymlinks(path)
	switch {
	case err != nil:
		return -1, err
	case unavailable && end == path:
		return openNoLink(path)
	default:
		return -1, fmt.Errorf("it contains a symbolic link; use the path %s instead", end)
	}
}

// closeFD closes a descriptor that was not opened for writing. It ignores the error, because no
// data can be lost.
func closeFD(fd int) { _ = unix.Close(fd) }

// readAt reads a small file in an open directory of procfs.
func readAt(dir int, name string) (string, error) {
	fd, err := openat(dir, name, unix.O_RDONLY)
	if err != nil {
		return "", err
	}

	f := os.NewFile(uintptr(fd), name)
	defer func() { _ = f.Close() }() // a file opened for reading has no data to lose

	data, err := io.ReadAll(io.LimitReader(f, 1<<16))

	return string(data), err
}

// readlinkat reads a symbolic link in an open directory.
func readlinkat(dir int, name string) (string, error) {
	var room [256]byte
	n, err := unix.Readlinkat(dir, name, room[:])
	if err != nil {
		return "", err
	}
	return string(room[:n]), nil
}

// names returns at most limit entries of a directory, or all entries if limit is negative.
func names(dir string, limit int) ([]string, error) {
	if limit == 0 {
		return nil, nil
	}

	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }() // a directory has no data to lose on close
	list, err := d.Readdirnames(limit)
	if errors.Is(err, io.EOF) {
		err = nil // the directory is empty
	}
	return list, err
}

// sameFile reports whether two descriptors refer to the same file.
func sameFile(a, b int) (bool, error) {
	var st [2]unix.Statx_t
	for i, fd := range []int{a, b} {
		var err error
		if st[i], err = statFD(fd, unix.STATX_INO); err != nil {
			return false, err
		}
	}

	return st[0].Ino == st[1].Ino && st[0].Dev_major == st[1].Dev_major && st[0].Dev_minor == st[1].Dev_minor, nil
}

// device formats a device number as "major:minor".
func device(major, minor uint32) string {
	var room [2*10 + 1]byte
	return string(appendDevice(room[:0], major, minor))
}

func appendDevice(to []byte, major, minor uint32) []byte {
	to = append(strconv.AppendUint(to, uint64(major), 10), ':')
	return strconv.AppendUint(to, uint64(minor), 10)
}
