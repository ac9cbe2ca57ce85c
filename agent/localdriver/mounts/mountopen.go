package mounts

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// OpenWritable opens the root of the filesystem that is mounted at path. It does so through a
// private, writable mount, because the kernel refuses changes through a read-only mount.
func OpenWritable(path string) (int, error) {
	tree, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(tree) }() // the mount exists as long as a file in it is open
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

// WithPrivateMount mounts the filesystem on a device without a path, and calls the function do with
// the root directory.
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
