// Package mounts makes mounts and reads mount tables. When it makes a mount, the mount appears at
// its path with all its properties at once.
package mounts

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/localdriver/csierr"
)

// These functions use the newer mount system calls. They prepare a mount while it is detached and
// attach it in one step. So other processes never see the mount without the requested properties;
// for example, a read-only target is never writable.

// Bind bind-mounts the directory or file source at target, without the mounts below it.
func Bind(source, target string, flags MountFlags) error {
	fail := func(err error) error {
		return fmt.Errorf("cannot bind %q to %q: %w", source, target, mountHint(err))
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return fail(err)
	}
	// closing the descriptor removes a mount that was not attached
	defer func() { _ = unix.Close(fd) }()

	if flags.Set|flags.clear != 0 {
		attr := &unix.MountAttr{Attr_set: flags.Set, Attr_clr: flags.clear}
		err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, attr)
		if errors.Is(err, unix.EPERM) {
			return csierr.Preconditionf("the mount flags cannot be set on %q: in a user namespace, flags that protect the host's mounts cannot be taken off, nor atime modes changed", target)
		}
		if err != nil {
			return fail(err)
		}
	}

	if err := attach(fd, target); err != nil {
		return fail(err)
	}

	return nil
}

// MountDevice mounts the filesystem on a device at target.
func MountDevice(device, target, fsType string, flags MountFlags) error {
	fd, err := newMount(device, fsType, flags)
	if err == nil {
		// closing the descriptor removes a mount that was not attached
		defer func() { _ = unix.Close(fd) }()
		err = attach(fd, target)
	}
	if err != nil {
		return fmt.Errorf("cannot mount %s (%s) at %q: %w", device, fsType, target, mountHint(err))
	}
	return nil
}

// newMount mounts the filesystem on a device without attaching the mount to a path. If the caller
// does not attach the mount, closing the returned descriptor removes it.
func newMount(device, fsType string, flags MountFlags) (int, error) {
	ctx, err := unix.Fsopen(fsType, unix.FSOPEN_CLOEXEC)
	if errors.Is(err, unix.ENODEV) {
		return -1, csierr.Preconditionf("this kernel has no %s", fsType)
	}
	if err != nil {
		return -1, err
	}
	// closing cannot lose data, because the descriptor is only a configuration
	defer func() { _ = unix.Close(ctx) }()

	if err := unix.FsconfigSetString(ctx, "source", device); err != nil {
		return -1, err
	}
	if err := SetOptions(ctx, fsType, flags.Fs); err != nil {
		return -1, err
	}

	if flags.ReadOnly() {
		if err := unix.FsconfigSetFlag(ctx, "ro"); err != nil {
			return -1, err
		}
	}

	if err := unix.FsconfigCreate(ctx); err != nil {
		return -1, fmt.Errorf("%w%s", err, kernelWords(ctx))
	}

	return unix.Fsmount(ctx, unix.FSMOUNT_CLOEXEC, int(flags.Set))
}

// SetOptions passes mount options to a filesystem context (fsopen(2)).
func SetOptions(ctx int, fsType string, options []string) error {
	for _, o := range options {
		if err := setOption(ctx, o); err != nil {
			return csierr.Invalidf("mount flag %q is refused by %s: %v%s", o, fsType, err, kernelWords(ctx))
		}
	}
	return nil
}

func setOption(ctx int, option string) error {
	if k, v, ok := strings.Cut(option, "="); ok {
		return unix.FsconfigSetString(ctx, k, v)
	}
	return unix.FsconfigSetFlag(ctx, option)
}

// kernelWords reads the kernel's messages from a filesystem context (fsopen(2)). The messages
// explain why a call failed.
func kernelWords(ctx int) string {
	var words []string
	buf := make([]byte, 1024)
	for {
		n, err := unix.Read(ctx, buf)
		if err != nil || n <= 0 {
			break
		}
		line := bytes.TrimSpace(buf[:n])
		if len(line) > 2 && line[1] == ' ' {
			line = line[2:] // each message begins with a letter for its level
		}
		words = append(words, string(line))
	}

	if len(words) == 0 {
		return ""
	}

	return " (" + strings.Join(words, "; ") + ")"
}

func attach(fd int, target string) error {
	return unix.MoveMount(fd, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// Isolate makes a mount private. If a mount is shared, the kernel copies each mount that is made
// inside it to all its bind mounts.
func Isolate(path string) error {
	attr := &unix.MountAttr{Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, attr); err != nil {
		return fmt.Errorf("cannot make the mount at %q private: %w", path, err)
	}
	return nil
}

// Unmount removes the topmost mount at path. It never makes a lazy unmount, so a busy mount causes
// an error.
func Unmount(path string) error {
	err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("cannot unmount %q: a process uses it or something is mounted inside: %w", path, err)
	}
	if err != nil {
		return fmt.Errorf("cannot unmount %q: %w", path, mountHint(err))
	}
	return nil
}

// StatfsReadOnly is the flag ST_RDONLY of statfs(2), which means that the mount or its filesystem
// is read-only.
const StatfsReadOnly = 1

// IsReadOnly reports whether writes through the mount at path are refused.
func IsReadOnly(path string) (bool, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return false, fmt.Errorf("cannot look at the mount %q: %w", path, err)
	}
	return fs.Flags&StatfsReadOnly != 0, nil
}

// mountHint extends those errors that may be caused by the driver's environment with an
// explanation.
func mountHint(err error) error {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w (mounting needs root, or a user namespace with its own mount namespace)", err)
	case errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("%w (Linux 5.12 or newer is needed)", err)
	}
	return err
}
