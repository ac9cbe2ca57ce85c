package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// How is a way to unmount.
type How int

// The agent tries the ways to unmount in this order.
const (
	// Plain fails with EBUSY while any process uses the mount.
	Plain How = iota

	// Force makes a FUSE or network file system abort its pending requests, and then unmounts it
	// like Plain.
	Force

	// Lazy removes the mount from the mount table at once. The file system stays active until its
	// last user ends. Therefore a successful lazy unmount does not prove that the file system is
	// unused.
	Lazy
)

// Unmount unmounts the uppermost mount at path. It succeeds if there is no mount or no such path.
// If the mount is busy, Unmount fails with EBUSY, and Holders names the processes that use the
// mount. After the time limit Unmount fails with *HungError, and the kernel may still unmount
// later.
func (h *Host) Unmount(ctx context.Context, path string, how How) error {
	path = filepath.Clean(path)
	k, flags := kindUnmount, unix.UMOUNT_NOFOLLOW
	switch how {
	case Force:
		k, flags = kindForce, flags|unix.MNT_FORCE
	case Lazy:
		k, flags = kindLazy, flags|unix.MNT_DETACH
	}

	err := h.gate.do(ctx, k, path, func() error { return h.unmount(path, flags) })
	if err != nil {
		return fmt.Errorf("cannot unmount %q: %w", path, err)
	}
	return nil
}

func (c *changer) unmount(path string, flags int) error {
	err := retry(func() error { return unix.Unmount(path, flags) })
	switch {
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR):
		return nil
	case errors.Is(err, unix.EINVAL):
		// EINVAL means either that path is not a mount point, or that the kernel refuses to unmount
		// it.
		if mounted, merr := c.mountedAt(path); merr == nil && !mounted {
			return nil
		}
	}

	return err
}

// Settled fails with *HungError if an earlier change at path, such as a bind mount, is still
// running after its time limit. The kernel may still make that change. Settled returns nil if no
// change is running.
func (h *Host) Settled(ctx context.Context, path string) error {
	return h.gate.do(ctx, kindChange, filepath.Clean(path), func() error { return nil })
}

// MakeReadOnly makes the mount at path read-only and checks the result. It does not change the
// mounts below path, or other mounts of the same file system. It fails with EBUSY while a process
// has a file of the mount open for writing.
func (h *Host) MakeReadOnly(ctx context.Context, path string) error {
	path = filepath.Clean(path)
	err := h.gate.do(ctx, kindChange, path, func() error { return h.addOptions(path, Options{ReadOnly: true}, 0) })
	if err != nil {
		return fmt.Errorf("cannot make %q read-only: %w", path, err)
	}
	return nil
}

// Restrict adds options such as nosuid to the uppermost mount at path and to all mounts below path,
// and checks the result. The mounts keep their other options.
func (h *Host) Restrict(ctx context.Context, path string, flags []string) error {
	path = filepath.Clean(path)
	err := h.gate.do(ctx, kindChange, path, func() error { return h.addOptions(path, Options{Flags: flags}, unix.AT_RECURSIVE) })
	if err != nil {
		return fmt.Errorf("cannot set the options %s of the mount at %q: %w", strings.Join(flags, ","), path, err)
	}
	return nil
}

// addOptions adds options to the mount at path and checks the result. If flags contains
// AT_RECURSIVE, addOptions also adds them to all mounts below path. It never removes an option.
func (c *changer) addOptions(path string, opts Options, flags uint) error {
	attr, err := opts.attr()
	if err != nil {
		return err
	}

	fd, err := openNoLink(path)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	err = unix.ENOSYS
	if !c.noSetattr {
		err = retry(func() error { return unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|flags, &attr) })
	}
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		err = c.remount(fd, opts)
	}
	if errors.Is(err, unix.EINVAL) {
		return errors.New("it is not a mount point")
	}
	if err != nil {
		return err
	}

	p, err := c.openPoint(fd, 0)
	switch {
	case err != nil:
		return err
	case opts.ReadOnly && !p.readOnly:
		return errors.New("the kernel reports success, but the mount is still writable")
	case !opts.ReadOnly && !opts.has(p.attr):
		return errors.New("the kernel reports success, but the mount does not have these options")
	}
	return nil
}

// remount sets options on kernels without mount_setattr.
func (c *changer) remount(fd int, opts Options) error {
	id, err := c.fdMountID("self", fd)
	if err != nil {
		return err
	}

	m, err := c.mountByID(id)
	if err != nil {
		return err
	}
	return retry(func() error { return unix.Mount("", c.fdLink(fd), "", opts.remountFlags(m.Options), "") })
}

// SetMode changes the permissions of a directory if they differ from mode. It refuses a symbolic
// link. It also refuses a mount point, because the mount hides the directory that the caller means.
func (h *Host) SetMode(ctx context.Context, dir string, mode os.FileMode) error {
	dir = filepath.Clean(dir)
	err := h.gate.do(ctx, kindChange, dir, func() error { return h.setMode(dir, uint32(mode.Perm())) })
	if err != nil {
		return fmt.Errorf("cannot set the mode of %q to %04o: %w", dir, mode, err)
	}
	return nil
}

func (c *changer) setMode(dir string, mode uint32) error {
	fd, err := openNoLink(dir)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	if err := c.refuseMount(fd); err != nil {
		return err
	}

	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}

	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return unix.ENOTDIR
	case st.Mode&0o7777 == mode:
		return nil
	}

	return retry(func() error { return unix.Chmod(c.fdLink(fd), mode) })
}
