package mount

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// How is a way to unmount.
type How int

// Ways to unmount, in the order to try them.
const (
	// Plain fails with EBUSY while anyone uses the mount.
	Plain How = iota
	// Force makes a FUSE or network file system give up what waits on it, and
	// then is as Plain.
	Force
	// Lazy takes the mount out of sight. It lives on until its last user goes,
	// so it proves nothing.
	Lazy
)

// openNoLink opens path for reference alone and refuses a symbolic link.
func (h *Host) openNoLink(path string) (int, error) {
	fd, err := open(path, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return -1, err
	}
	st, err := statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE)
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
		err = errors.New("is a symbolic link")
	}
	if err != nil {
		closeFD(fd)
		return -1, err
	}
	return fd, nil
}

// Unmount takes off what is mounted at path, the uppermost if there are
// several. No mount there, or no path, is success. What uses a busy mount
// (EBUSY) is for Holders to tell. The bound may pass with the unmount still to
// come: *HungError.
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
		// No mount point, or one that must not be unmounted.
		if mounted, merr := h.mountedAt(path); merr == nil && !mounted {
			return nil
		}
	}
	return err
}

// mountedAt reports whether path is a mount point, working or not.
func (h *Host) mountedAt(path string) (bool, error) {
	_, p, err := h.find(path, 0)
	if p != nil {
		return true, nil
	}
	return false, err
}

// MakeReadOnly makes the mount at path read-only, this mounting of it and
// none below it, and looks whether it is. It fails with EBUSY while a file is
// open for writing through it.
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
		err = h.remountReadOnly(fd)
	}
	if errors.Is(err, unix.EINVAL) {
		return errors.New("it is no mount point")
	}
	if err != nil {
		return err
	}
	st, err := statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, lookMask)
	if err != nil {
		return err
	}
	p, err := h.pointOf(st, fd, "", 0)
	if err != nil {
		return err
	}
	if !p.readOnly {
		return errors.New("the kernel says it did, but the mount is still writable")
	}
	return nil
}

// remountReadOnly is the way before mount_setattr: every other flag of the
// mount has to be said again, or it is lost.
func (h *Host) remountReadOnly(fd int) error {
	id, err := h.fdMountID("self", strings.TrimPrefix(h.fdLink(fd), h.proc+"/self/fd/"))
	if err != nil {
		return err
	}
	table, err := h.table(func(m *mountinfo.Info) (bool, bool) { return m.ID != id, m.ID == id })
	if err != nil {
		return err
	}
	if len(table) == 0 {
		return errVanished
	}
	flags := uintptr(unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY)
	for name, flag := range map[string]uintptr{
		"nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV, "noexec": unix.MS_NOEXEC,
		"noatime": unix.MS_NOATIME, "nodiratime": unix.MS_NODIRATIME, "relatime": unix.MS_RELATIME,
		"nosymfollow": unix.MS_NOSYMFOLLOW,
	} {
		if hasOption(table[0].Options, name) {
			flags |= flag
		}
	}
	if flags&(unix.MS_NOATIME|unix.MS_RELATIME) == 0 {
		flags |= unix.MS_STRICTATIME
	}
	return retry(func() error { return unix.Mount("", h.fdLink(fd), "", flags, "") })
}
