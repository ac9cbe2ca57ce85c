package mounts

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// OpenWritable opens the root of the filesystem at path through a private, writable mount. The
// kernel would refuse changes through a read-only mount.
func OpenWritable(path string) (int, error) {
	tree, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(tree) }() // the mount lasts as long as an open file in it
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return -1, err
	}
	return unix.Openat(tree, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}

// Ioctl makes a request to the kernel on an open file.
func Ioctl(fd int, request uint, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// WithPrivateMount calls do with the root of the filesystem on a device. The mount has no path.
func WithPrivateMount(device, fsType string, options []string, do func(root *os.File) error) error {
	fd, err := newMount(device, fsType, MountFlags{Fs: options})
	if err != nil {
		return fmt.Errorf("cannot mount %s (%s): %w", device, fsType, mountHint(err))
	}

	root, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return errors.Join(err, unix.Close(fd))
	}

	f := os.NewFile(uintptr(root), device)
	return errors.Join(do(f), f.Close(), unix.Close(fd))
}
