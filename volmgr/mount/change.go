package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/volagent/volagent/volmgr/proc"

	"golang.org/x/sys/unix"
)

// How is a way to unmount.
type How int

// The ways to unmount are listed in the order in which the agent tries them.
const (
	// Plain fails with EBUSY while any process uses the mount.
	Plain How = iota

	// Force makes a FUSE or network file system abort its pending requests, and then acts like
	// Plain.
	Force

	// Lazy removes the mount from the mount table at once. The file system stays active until its
	// last user ends. Success therefore does not prove that the file system is unused.
	Lazy
)

// openNoLink opens path with O_PATH and refuses a symbolic link.
func (h *Host) openNoLink(path string) (int, error) {
	fd, err := open(path, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return -1, err
	}

	st, err := statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE)
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
		err = errors.New("it is a symbolic link")
	}
	if err != nil {
		closeFD(fd)
		return -1, err
	}

	return fd, nil
}

// Unmount unmounts the uppermost mount at path. It succeeds if there is no mount or no such path.
// If the mount is busy, it fails with EBUSY, and Holders names the processes that use the mount.
// After the time limit it fails with *HungError, and the kernel may still unmount later.
func (h *Host) Unmount(ctx context.Context, path string, how How) error {
	path = filepath.Clean(path)
	k, flags := kindUnmount, unix.UMOUNT_NOFOLLOW
	switch how {
	case Force:
		k, flags = kindForce, flags|unix.MNT_FORCE
	case Lazy:
		k, flags = kindLazy, flags|unix.MNT_DETACH
	}

	_, err := bounded(ctx, h, k, path, h.bound, func() (struct{}, error) { return struct{}{}, h.unmount(path, flags) })
	if err != nil {
		return fmt.Errorf("cannot unmount %q: %w", path, err)
	}
	return nil
}

func (h *Host) unmount(path string, flags int) error {
	err := retry(func() error { return unix.Unmount(path, flags) })
	switch {
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR):
		return nil
	case errors.Is(err, unix.EINVAL):
		// EINVAL means that the path is not a mount point, or that the kernel refuses to unmount it.
		if mounted, merr := h.mountedAt(path); merr == nil && !mounted {
			return nil
		}
	}

	return err
}

// mountedAt reports whether path is a mount point. A mount that does not work counts too.
func (h *Host) mountedAt(path string) (bool, error) {
	_, p, err := h.find(path, 0)
	if p != nil {
		return true, nil
	}
	return false, err
}

// MakeReadOnly makes the mount at path read-only and checks the result. It changes neither the
// mounts below nor other mounts of the same file system. It fails with EBUSY while a process has a
// file open for writing through the mount.
func (h *Host) MakeReadOnly(ctx context.Context, path string) error {
	path = filepath.Clean(path)
	_, err := bounded(ctx, h, kindChange, path, h.bound, func() (struct{}, error) { return struct{}{}, h.makeReadOnly(path) })
	if err != nil {
		return fmt.Errorf("cannot make %q read-only: %w", path, err)
	}
	return nil
}

func (h *Host) makeReadOnly(path string) error {
	fd, err := h.openNoLink(path)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	err = unix.ENOSYS
	if !h.noSetattr {
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
		err = retry(func() error { return unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr) })
	}
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		err = h.remount(fd, Like{ReadOnly: true})
	}
	if errors.Is(err, unix.EINVAL) {
		return errors.New("it is not a mount point")
	}
	if err != nil {
		return err
	}

	p, err := h.openPoint(fd)
	if err != nil {
		return err
	}
	if !p.readOnly {
		return errors.New("the kernel reports success, but the mount is still writable")
	}
	return nil
}

// Restrict adds options such as nosuid to the uppermost mount at path and to all mounts below it,
// and checks the result. The mounts keep their other options.
func (h *Host) Restrict(ctx context.Context, path string, flags []string) error {
	path = filepath.Clean(path)
	_, err := bounded(ctx, h, kindChange, path, h.bound, func() (struct{}, error) { return struct{}{}, h.restrict(path, Like{Flags: flags}) })
	if err != nil {
		return fmt.Errorf("cannot set the options %s of the mount at %q: %w", strings.Join(flags, ","), path, err)
	}
	return nil
}

func (h *Host) restrict(path string, like Like) error {
	attr, err := like.attr()
	if err != nil {
		return err
	}

	fd, err := h.openNoLink(path)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	err = unix.ENOSYS
	if !h.noSetattr {
		err = retry(func() error { return unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr) })
	}
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		err = h.remount(fd, like)
	}
	if errors.Is(err, unix.EINVAL) {
		return errors.New("it is not a mount point")
	}
	if err != nil {
		return err
	}

	p, err := h.openPoint(fd)
	if err == nil && !like.has(p.attr) {
		err = errors.New("the kernel reports success, but the mount does not have these options")
	}
	return err
}

// openPoint describes the mount of an open file.
func (h *Host) openPoint(fd int) (point, error) {
	st, err := statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, lookMask)
	if err != nil {
		return point{}, err
	}
	return h.pointOf(st, fd, "", 0)
}

// mountOptions maps the options that belong to one mount to the flags of mount(2).
var mountOptions = map[string]uintptr{
	"nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV, "noexec": unix.MS_NOEXEC,
	"noatime": unix.MS_NOATIME, "nodiratime": unix.MS_NODIRATIME, "relatime": unix.MS_RELATIME,
	"nosymfollow": unix.MS_NOSYMFOLLOW, "strictatime": unix.MS_STRICTATIME,
}

// remount sets options on kernels without mount_setattr. It must repeat every option that the mount
// already has, because mount(2) clears an omitted option.
func (h *Host) remount(fd int, like Like) error {
	id, err := h.fdMountID("self", strings.TrimPrefix(h.fdLink(fd), h.proc+"/self/fd/"))
	if err != nil {
		return err
	}

	table, err := h.table(func(m *proc.Mount) (bool, bool) { return m.ID != id, m.ID == id })
	if err != nil {
		return err
	}
	if len(table) == 0 {
		return errVanished
	}

	const times = unix.MS_NOATIME | unix.MS_RELATIME | unix.MS_STRICTATIME
	var have, want uintptr
	for name, flag := range mountOptions {
		if hasOption(table[0].Options, name) {
			have |= flag
		}
	}

	for _, name := range like.Flags {
		want |= mountOptions[name]
	}

	if want&times != 0 {
		have &^= times
	}
	flags := unix.MS_REMOUNT | unix.MS_BIND | have | want
	if like.ReadOnly || hasOption(table[0].Options, "ro") {
		flags |= unix.MS_RDONLY
	}
	if flags&times == 0 {
		flags |= unix.MS_STRICTATIME
	}
	return retry(func() error { return unix.Mount("", h.fdLink(fd), "", flags, "") })
}

// SetMode changes the permissions of a directory if they differ from mode. It refuses a symbolic
// link and a mount point. A mount would hide the directory that the caller means.
func (h *Host) SetMode(ctx context.Context, dir string, mode os.FileMode) error {
	dir = filepath.Clean(dir)
	_, err := bounded(ctx, h, kindChange, dir, h.bound, func() (struct{}, error) { return struct{}{}, h.setMode(dir, uint32(mode.Perm())) })
	if err != nil {
		return fmt.Errorf("cannot set the mode of %q to %04o: %w", dir, mode, err)
	}
	return nil
}

func (h *Host) setMode(dir string, mode uint32) error {
	fd, err := h.openNoLink(dir)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	var st unix.Stat_t
	switch root, err := h.mountRoot(fd); {
	case err != nil:
		return err
	case root:
		return errors.New("something is mounted there")
	}

	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}

	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return unix.ENOTDIR
	case st.Mode&0o7777 == mode:
		return nil
	}

	return retry(func() error { return unix.Chmod(h.fdLink(fd), mode) })
}
