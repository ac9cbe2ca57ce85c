// Package loopdev attaches images to loop devices, finds the devices of an image, and keeps them
// attached while they are in use.
package loopdev

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// GrowLoop makes a device show the full size of its image, if the device shows fewer than size
// bytes.
func GrowLoop(l LoopDevice, size int64) error {
	have, err := BlockSize(l.Path())
	if err != nil || have >= size || !l.Usable() {
		return err
	}
	err = WithDevice(l.Path(), func(fd int) error { return unix.IoctlSetInt(fd, unix.LOOP_SET_CAPACITY, 0) })
	if err != nil {
		return fmt.Errorf("cannot let %s show all of its image: %w", l.Path(), err)
	}
	return nil
}

// BlockSize returns the size in bytes of the block device at path.
func BlockSize(path string) (int64, error) {
	var size uint64
	err := WithDevice(path, func(fd int) error {
		// The package x/sys has no wrapper for BLKGETSIZE64.
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.BLKGETSIZE64, uintptr(unsafe.Pointer(&size)))
		if errno != 0 {
			return errno
		}
		return nil
	})

	return int64(size), err
}

// BlockReadOnly reports whether the block device at path refuses writes.
func BlockReadOnly(path string) (ro bool, err error) {
	err = WithDevice(path, func(fd int) error {
		n, err := unix.IoctlGetUint32(fd, unix.BLKROGET)
		ro = n != 0
		return err
	})
	return ro, err
}

// WithDevice opens the block device at path and calls ask with the descriptor.
func WithDevice(path string, ask func(fd int) error) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot open the block device at %q: %w", path, err)
	}
	if err := errors.Join(ask(fd), unix.Close(fd)); err != nil {
		return fmt.Errorf("cannot ask the block device at %q: %w", path, err)
	}
	return nil
}
