package mount

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/proc"
	"github.com/volagent/volagent/volmgr/volume"
)

// Guard is the state of the immutable flag (ioctl_iflags(2)) of a directory on which volumes are
// mounted. While no volume is mounted there, the flag stops all processes, even those of root, from
// writing to the directory. A mount can still be made on the directory.
type Guard string

const (
	// GuardNone means that the place cannot or must not have the flag. This is so if the place is
	// not a directory, is a mount point, is not empty, or is in a file system without this flag.
	GuardNone Guard = ""

	// GuardOff means that the directory can have the flag, but does not have it.
	GuardOff Guard = "off"

	// GuardOn means that the directory has the flag.
	GuardOn Guard = "on"
)

// immutable is FS_IMMUTABLE_FL of linux/fs.h, which the package x/sys does not define.
const immutable = 0x10

// Guard reads the immutable flag of a place. After the time limit it fails with *HungError.
func (p *Place) Guard(ctx context.Context) (Guard, error) {
	return p.guarded(ctx, func(fd int, flags uint32) (Guard, error) {
		if flags&immutable != 0 {
			return GuardOn, nil
		}
		return GuardOff, nil
	})
}

// SetGuard sets the immutable flag of a place. If the place cannot have the flag, or a process has
// just written to the directory, SetGuard does nothing and returns nil.
func (p *Place) SetGuard(ctx context.Context) error {
	_, err := p.guarded(ctx, func(fd int, flags uint32) (Guard, error) {
		if flags&immutable != 0 {
			return GuardOn, nil
		}
		if err := setFlags(fd, flags|immutable); err != nil {
			return GuardNone, err
		}
		// Now that the flag is set, no process can create a file in the directory. The result of
		// this check is therefore final.
		if empty, err := emptyDir(fd); !empty || err != nil {
			return GuardNone, errors.Join(err, setFlags(fd, flags))
		}
		return GuardOn, nil
	})

	if errors.Is(err, unix.EROFS) || errors.Is(err, unix.EPERM) || unsupported(err) {
		return nil // the place is read-only, the agent may not set the flag, or the file system has no such flag
	}
	if err != nil {
		return fmt.Errorf("cannot make %s refuse writes while nothing is mounted there: %w", p.path, err)
	}
	return nil
}

// guarded runs fn with an open directory and its flags. If the place cannot or must not have the
// immutable flag, guarded returns GuardNone instead.
func (p *Place) guarded(ctx context.Context, fn func(fd int, flags uint32) (Guard, error)) (Guard, error) {
	own, err := p.Duplicate() // the caller may close p before the call returns
	if err != nil {
		return GuardNone, err
	}
	return bounded(ctx, &p.h.gate, kindChange, p.path, func() (Guard, error) {
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

// ownFlags reopens a directory, given by an O_PATH descriptor, and reads its flags.
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

// unsupported reports whether an error means that a file system does not support inode flags.
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
		if _, _, names := unix.ParseDirent(room[:n], 1, nil); len(names) > 0 { // ParseDirent omits "." and ".."
			return false, nil
		}
	}
}

// Directory returns the identity of the directory at a place. Unguard can use this identity to find
// the directory even after a rename. After the time limit Directory fails with *HungError.
func (p *Place) Directory(ctx context.Context) (volume.GuardedDir, error) {
	own, err := p.Duplicate() // the caller may close p before the call returns
	if err != nil {
		return volume.GuardedDir{Path: p.path}, err
	}
	return bounded(ctx, &p.h.gate, kindChange, p.path, func() (volume.GuardedDir, error) {
		defer own.Close()
		return p.h.directory(own.fd(), p.path)
	})
}

// directory returns the identity of an open directory.
func (c *changer) directory(fd int, path string) (volume.GuardedDir, error) {
	d := volume.GuardedDir{Path: path}
	st, err := statFD(fd, unix.STATX_INO|lookMask)
	if err != nil {
		return d, err
	}

	at, err := c.pointOf(st, fd, "", 0)
	if err != nil {
		return d, err
	}

	d.Device, d.Inode, d.FSType = device(st.Dev_major, st.Dev_minor), st.Ino, at.id.FSType
	if d.FSID, err = fsid(fd); err != nil {
		return d, err
	}
	if handle, _, err := unix.NameToHandleAt(fd, "", unix.AT_EMPTY_PATH); err == nil && !c.noHandles {
		d.Handle, d.HandleType = handle.Bytes(), handle.Type()
	}
	return d, nil
}

// fsid returns the file system id that statfs(2) reports.
func fsid(fd int) (string, error) {
	var fs unix.Statfs_t
	if err := retry(func() error { return unix.Fstatfs(fd, &fs) }); err != nil {
		return "", err
	}
	return fmt.Sprintf("%08x%08x", uint32(fs.Fsid.Val[0]), uint32(fs.Fsid.Val[1])), nil //nolint:gosec // the bits, not a number
}

// Unguard removes the immutable flag from a directory. It finds a renamed directory by its file
// handle. It succeeds if the directory does not have the flag or no longer exists. It fails if a
// mount hides the directory, or if Unguard cannot find the directory.
func (h *Host) Unguard(ctx context.Context, dir volume.GuardedDir) error {
	dir.Path = filepath.Clean(dir.Path)
	err := h.gate.do(ctx, kindChange, dir.Path, func() error { return h.unguard(dir) })
	if err != nil {
		return fmt.Errorf("cannot make %s writable again: %w", dir.Path, err)
	}
	return nil
}

func (c *changer) unguard(dir volume.GuardedDir) error {
	place, err := openNoLinks(dir.Path)
	switch {
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR):
		return c.unguardMoved(dir)
	case err != nil:
		return err
	}

	defer closeFD(place)
	if err := c.refuseMount(place); err != nil {
		return err
	}

	is, err := c.directory(place, dir.Path)
	if err != nil {
		return err
	}
	if !is.Same(dir) {
		return c.unguardMoved(dir)
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

// unguardMoved removes the flag from a directory that is no longer at its path. It does nothing if
// only the path of the directory is known.
func (c *changer) unguardMoved(dir volume.GuardedDir) error {
	if dir.Inode == 0 {
		return nil
	}

	fd, err := c.openHandle(dir)
	if errors.Is(err, unix.ESTALE) {
		return nil // the directory was removed
	}
	if err != nil {
		return fmt.Errorf("it was renamed, and the agent cannot find inode %d of device %s (%s): %w", dir.Inode, dir.Device, dir.FSType, err)
	}
	defer closeFD(fd)
	flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	if err != nil {
		return err
	}
	return unguardOpen(fd, flags)
}

// openHandle opens a directory by its file handle, through any mount of its file system.
func (c *changer) openHandle(dir volume.GuardedDir) (int, error) {
	if len(dir.Handle) == 0 || c.noHandles {
		return -1, errors.New("its file system or this kernel does not support file handles")
	}

	table, err := c.table(func(m *proc.Mount) (bool, bool) { return m.FSType != dir.FSType, false })
	if err != nil {
		return -1, err
	}

	handle := unix.NewFileHandle(dir.HandleType, dir.Handle)
	for _, m := range table {
		fd, err := openHandleAt(m.Mountpoint, dir.FSID, handle)
		if errors.Is(err, errOtherFS) {
			continue
		}
		return fd, err
	}

	return -1, errors.New("its file system is mounted nowhere")
}

// errOtherFS reports that a mount point does not lead to the requested file system.
var errOtherFS = errors.New("the mount shows another file system")

func openHandleAt(mountPoint, id string, handle unix.FileHandle) (int, error) {
	root, err := open(mountPoint, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW)
	if err != nil {
		return -1, errOtherFS // a mount point that is hidden or no longer exists cannot be used to open a handle
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
