package mount

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/volagent/volagent/volmgr/proc"

	"github.com/volagent/volagent/volmgr/volume"
	"golang.org/x/sys/unix"
)

// Guard is what is to be known of an empty directory that volumes are mounted at: with
// the immutable flag (ioctl_iflags(2)) nobody, root included, writes to it while
// nothing is mounted there. To mount there is no change of it.
type Guard string

// What can be known.
const (
	// GuardNone: it cannot have the flag, or shall not: it is no directory, it is a
	// mount point, it is not empty, or its file system has no such flag.
	GuardNone Guard = ""
	// GuardOff: it could have the flag, and has it not.
	GuardOff Guard = "off"
	// GuardOn: it has the flag.
	GuardOn Guard = "on"
)

// immutable is FS_IMMUTABLE_FL of linux/fs.h, which x/sys does not have.
const immutable = 0x10

// Guard looks whether a place has the flag. It is bounded; *HungError.
func (p *Place) Guard(ctx context.Context) (Guard, error) {
	return p.guarded(ctx, func(fd int, flags uint32) (Guard, error) {
		if flags&immutable != 0 {
			return GuardOn, nil
		}
		return GuardOff, nil
	})
}

// SetGuard gives a place the flag where it can have it. That it cannot is no error. What
// somebody wrote there just before stays his to write to.
func (p *Place) SetGuard(ctx context.Context) error {
	_, err := p.guarded(ctx, func(fd int, flags uint32) (Guard, error) {
		if flags&immutable != 0 {
			return GuardOn, nil
		}
		if err := setFlags(fd, flags|immutable); err != nil {
			return GuardNone, err
		}
		// Nothing can be made there any more: what it shows now it will show.
		if empty, err := emptyDir(fd); !empty || err != nil {
			return GuardNone, errors.Join(err, setFlags(fd, flags))
		}
		return GuardOn, nil
	})
	if errors.Is(err, unix.EROFS) || errors.Is(err, unix.EPERM) || unsupported(err) {
		return nil // it cannot be written to, or not by us, or has not this flag
	}
	if err != nil {
		return fmt.Errorf("cannot make %s refuse writes while nothing is mounted there: %w", p.path, err)
	}
	return nil
}

// guarded runs fn on a place that may have the flag.
func (p *Place) guarded(ctx context.Context, fn func(fd int, flags uint32) (Guard, error)) (Guard, error) {
	own, err := p.Again() // the call may outlive the caller
	if err != nil {
		return GuardNone, err
	}
	return bounded(ctx, p.h, kindChange, p.path, p.h.bound, func() (Guard, error) {
		defer own.Close()
		if own.path == "/" || !own.Dir() {
			return GuardNone, nil
		}
		if root, err := p.h.mountRoot(own.fd()); root || err != nil {
			return GuardNone, err
		}
		fd, flags, err := ownFlags(own.fd())
		if unsupported(err) {
			return GuardNone, nil
		}
		if err != nil {
			return GuardNone, err
		}
		defer closeFD(fd)
		if empty, err := emptyDir(fd); !empty || err != nil {
			return GuardNone, err
		}
		return fn(fd, flags)
	})
}

// mountRoot reports whether what is open is the root of a mount.
func (h *Host) mountRoot(fd int) (bool, error) {
	st, err := statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, lookMask)
	if err != nil {
		return false, err
	}
	if st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0 && !h.noMountRoot {
		return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
	}
	path, err := h.fdPath(fd)
	if err != nil {
		return false, err
	}
	return h.mountedAt(path)
}

// ownFlags opens a directory, by a descriptor for reference alone, and reads its flags.
func ownFlags(place int) (fd int, flags uint32, err error) {
	if fd, err = openat(place, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW); err != nil {
		return -1, 0, err
	}
	if flags, err = unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS); err != nil {
		closeFD(fd)
		return -1, 0, err
	}
	return fd, flags, nil
}

func setFlags(fd int, flags uint32) error {
	return retry(func() error { return unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(flags)) })
}

// unsupported reports whether a file system has no flags.
func unsupported(err error) bool {
	return errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS)
}

// emptyDir reports whether an open directory has no entries.
func emptyDir(fd int) (bool, error) {
	if _, err := unix.Seek(fd, 0, io.SeekStart); err != nil {
		return false, err
	}
	var room [1024]byte
	for {
		n := 0
		err := retry(func() (err error) { n, err = unix.ReadDirent(fd, room[:]); return err })
		if n <= 0 || err != nil {
			return err == nil, err
		}
		if _, _, names := unix.ParseDirent(room[:n], 1, nil); len(names) > 0 { // less "." and ".."
			return false, nil
		}
	}
}

// Directory says which directory a place is, so that it is found again under another name.
// It is bounded; *HungError.
func (p *Place) Directory(ctx context.Context) (volume.GuardedDir, error) {
	own, err := p.Again() // the call may outlive the caller
	if err != nil {
		return volume.GuardedDir{Path: p.path}, err
	}
	return bounded(ctx, p.h, kindChange, p.path, p.h.bound, func() (volume.GuardedDir, error) {
		defer own.Close()
		return p.h.directory(own.fd(), p.path)
	})
}

// directory describes an open directory.
func (h *Host) directory(fd int, path string) (volume.GuardedDir, error) {
	d := volume.GuardedDir{Path: path}
	st, err := statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_INO|lookMask)
	if err != nil {
		return d, err
	}
	at, err := h.pointOf(st, fd, "", 0)
	if err != nil {
		return d, err
	}
	d.Device, d.Inode, d.FSType = device(st.Dev_major, st.Dev_minor), st.Ino, at.id.FSType
	if d.FSID, err = fsid(fd); err != nil {
		return d, err
	}
	if handle, _, err := unix.NameToHandleAt(fd, "", unix.AT_EMPTY_PATH); err == nil && !h.noHandles {
		d.Handle, d.HandleType = handle.Bytes(), handle.Type()
	}
	return d, nil
}

// fsid is what statfs(2) calls the id of a file system.
func fsid(fd int) (string, error) {
	var fs unix.Statfs_t
	if err := retry(func() error { return unix.Fstatfs(fd, &fs) }); err != nil {
		return "", err
	}
	return fmt.Sprintf("%08x%08x", uint32(fs.Fsid.Val[0]), uint32(fs.Fsid.Val[1])), nil //nolint:gosec // the bits, not a number
}

// Unguard takes the flag from a directory. One that is gone, or has no flag, is success. One
// that was renamed is found by its handle. It fails while something is mounted at the path,
// because that hides the directory, and where the directory cannot be found.
func (h *Host) Unguard(ctx context.Context, dir volume.GuardedDir) error {
	dir.Path = filepath.Clean(dir.Path)
	_, err := bounded(ctx, h, kindChange, dir.Path, h.bound, func() (struct{}, error) { return struct{}{}, h.unguard(dir) })
	if err != nil {
		return fmt.Errorf("cannot make %s writable again: %w", dir.Path, err)
	}
	return nil
}

func (h *Host) unguard(dir volume.GuardedDir) error {
	place, err := h.walk(dir.Path)
	switch {
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR):
		return h.unguardMoved(dir)
	case err != nil:
		return err
	}
	defer closeFD(place)
	switch root, err := h.mountRoot(place); {
	case err != nil:
		return err
	case root:
		return errors.New("something is mounted there")
	}
	is, err := h.directory(place, dir.Path)
	if err != nil {
		return err
	}
	if !is.Same(dir) {
		return h.unguardMoved(dir)
	}
	fd, flags, err := ownFlags(place)
	if unsupported(err) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	defer closeFD(fd)
	return unguardOpen(fd, flags)
}

func unguardOpen(fd int, flags uint32) error {
	if flags&immutable == 0 {
		return nil
	}
	return setFlags(fd, flags&^immutable)
}

// unguardMoved looks for a directory that is not at its path any more. Of one that is known
// by its path alone nothing can be told.
func (h *Host) unguardMoved(dir volume.GuardedDir) error {
	if dir.Inode == 0 {
		return nil
	}
	fd, err := h.openHandle(dir)
	if errors.Is(err, unix.ESTALE) {
		return nil // it was removed
	}
	if err != nil {
		return fmt.Errorf("it was renamed, and cannot be found again: inode %d of device %s (%s): %w", dir.Inode, dir.Device, dir.FSType, err)
	}
	defer closeFD(fd)
	flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	if err != nil {
		return err
	}
	return unguardOpen(fd, flags)
}

// openHandle opens a directory by its handle, through any mount of its file system.
func (h *Host) openHandle(dir volume.GuardedDir) (int, error) {
	if len(dir.Handle) == 0 || h.noHandles {
		return -1, errors.New("its file system, or this kernel, has no handles of files")
	}
	table, err := h.table(func(m *proc.Mount) (bool, bool) { return m.FSType != dir.FSType, false })
	if err != nil {
		return -1, err
	}
	handle := unix.NewFileHandle(dir.HandleType, dir.Handle)
	for _, m := range table {
		fd, err := h.openHandleAt(m.Mountpoint, dir.FSID, handle)
		if errors.Is(err, errOtherFS) {
			continue
		}
		return fd, err
	}
	return -1, errors.New("its file system is mounted nowhere")
}

// errOtherFS says that something else than a certain file system is at a mount point.
var errOtherFS = errors.New("it is another file system")

func (h *Host) openHandleAt(mountPoint, id string, handle unix.FileHandle) (int, error) {
	root, err := open(mountPoint, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW)
	if err != nil {
		return -1, errOtherFS // what is hidden, or gone, cannot be asked
	}
	defer closeFD(root)
	if has, err := fsid(root); err != nil || has != id {
		return -1, errOtherFS
	}
	fd := -1
	err = retry(func() (err error) {
		fd, err = unix.OpenByHandleAt(root, handle, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC)
		return err
	})
	return fd, err
}
