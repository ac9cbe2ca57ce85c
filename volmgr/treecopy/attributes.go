package treecopy

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// settleEntry gives the attributes of a file to its copy, which is an entry of an open directory.
func settleEntry(from xattrs, to int, toName string, st *unix.Statx_t) error {
	// The descriptor leads to the copy even if another process replaces the entry with a link.
	out, err := openBeneath(to, toName, unix.O_PATH)
	if err != nil {
		return err
	}
	return errors.Join(settle(from, out, st), out.Close())
}

// settle gives the attributes of a file to its open copy. It sets the owner first, because a change
// of the owner clears set-ID bits and capabilities.
func settle(from xattrs, to *os.File, st *unix.Statx_t) error {
	if err := unix.Fchownat(int(to.Fd()), "", int(st.Uid), int(st.Gid), unix.AT_EMPTY_PATH); err != nil {
		return fmt.Errorf("cannot set the owner %d:%d: %w", st.Uid, st.Gid, err)
	}

	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Chmod(openPath(to), uint32(st.Mode&0o7777)); err != nil {
			return fmt.Errorf("cannot set the mode: %w", err)
		}
	}

	if err := from.copyTo(openPath(to)); err != nil {
		return err
	}

	times := []unix.Timespec{
		{Sec: st.Atime.Sec, Nsec: int64(st.Atime.Nsec)},
		{Sec: st.Mtime.Sec, Nsec: int64(st.Mtime.Nsec)},
	}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, openPath(to), times, 0); err != nil {
		return fmt.Errorf("cannot set the times: %w", err)
	}

	return nil
}

// StatOpen returns the attributes of an open file.
func StatOpen(f *os.File) (*unix.Statx_t, error) {
	var st unix.Statx_t
	err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID|unix.STATX_BTIME, &st)
	return &st, err
}

// xattrs reads the extended attributes of one file.
type xattrs struct {
	list func(buf []byte) (int, error)
	get  func(name string, buf []byte) (int, error)
}

// xattrsOf returns the xattrs of a file that is open for reading or writing.
func xattrsOf(f *os.File) xattrs {
	return xattrs{
		func(buf []byte) (int, error) { return unix.Flistxattr(int(f.Fd()), buf) },
		func(name string, buf []byte) (int, error) { return unix.Fgetxattr(int(f.Fd()), name, buf) },
	}
}

// openPath returns a path to an open file, which works even if the file has been renamed or
// removed. The system call must follow the link at the end of this path.
func openPath(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// xattrsOfPath returns the xattrs of a file that is open only with O_PATH, such as a symbolic link.
func xattrsOfPath(f *os.File) xattrs {
	path := openPath(f)
	return xattrs{
		func(buf []byte) (int, error) { return unix.Listxattr(path, buf) },
		func(name string, buf []byte) (int, error) { return unix.Getxattr(path, name, buf) },
	}
}

// labelName is the attribute with the label that the host's SELinux policy gives to a file. It is not
// data of the volume: many filesystems do not store it, and show the label of the mount.
const labelName = "security.selinux"

// copyTo sets the attributes of the file at a path. The path must lead to the file itself.
func (x xattrs) copyTo(to string) error {
	all, err := x.read()
	if err != nil {
		return err
	}

	for _, one := range all {
		err := unix.Setxattr(to, one.name, one.value, 0)
		if one.name == labelName && errors.Is(err, unix.EOPNOTSUPP) {
			continue
		}
		if err != nil {
			return fmt.Errorf("cannot copy the extended attribute %q: %w", one.name, err)
		}
	}

	return nil
}

// xattr is one extended attribute.
type xattr struct {
	name  string
	value []byte
}

// read returns the attributes of the file. It returns none if the filesystem does not support them.
func (x xattrs) read() (all []xattr, err error) {
	names, err := readAll(x.list)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list the extended attributes: %w", err)
	}

	for raw := range bytes.SplitSeq(bytes.TrimSuffix(names, []byte{0}), []byte{0}) {
		if len(raw) == 0 {
			continue
		}

		name := string(raw)
		value, err := readAll(func(buf []byte) (int, error) { return x.get(name, buf) })
		if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOENT) {
			continue // the attribute was removed in the meantime
		}
		if err != nil {
			return nil, fmt.Errorf("cannot copy the extended attribute %q: %w", name, err)
		}
		all = append(all, xattr{name, value})
	}

	return all, nil
}

// readAll calls get with larger and larger buffers until the result fits into the buffer.
func readAll(get func([]byte) (int, error)) ([]byte, error) {
	for size := 256; ; size *= 4 {
		buf := make([]byte, size)
		n, err := get(buf)
		if errors.Is(err, unix.ERANGE) && size < 1<<20 {
			continue
		}
		if err != nil {
			return nil, err
		}
		return buf[:n], nil
	}
}
