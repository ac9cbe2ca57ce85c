package csitest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// device returns a loop device on the file of a block volume. The read-only setting applies to the
// device and therefore to all its users.
func (s *store) device(id string, readOnly bool) (string, error) {
	image, err := s.block(id)
	if err != nil {
		return "", err
	}

	path := loopOf(image)
	if path == "" {
		if path, err = attachLoop(image); err != nil {
			return "", err
		}
	}

	dev, err := os.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return "", err
	}

	state := 0
	if readOnly {
		state = 1
	}

	err = unix.IoctlSetPointerInt(int(dev.Fd()), unix.BLKROSET, state)
	return path, errors.Join(err, dev.Close())
}

// release detaches the loop device of a volume. It succeeds if the volume has no loop device.
func (s *store) release(id string) error {
	path := loopOf(s.path(id, "block.img"))
	if path == "" {
		return nil
	}

	dev, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if err = unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_CLR_FD, 0); errors.Is(err, unix.ENXIO) {
		err = nil
	}

	return errors.Join(err, dev.Close())
}

// loopOf returns the loop device on a file, or an empty string if the file has no loop device.
func loopOf(image string) string {
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file") // Glob fails only for an invalid pattern
	for _, file := range files {
		if raw, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(raw)) == image {
			return "/dev/" + strings.Split(file, "/")[3]
		}
	}
	return ""
}

// resizeLoop changes the size of the loop device on a file to the size of the file. If the file has
// no loop device, resizeLoop does nothing.
func resizeLoop(image string) error {
	path := loopOf(image)
	if path == "" {
		return nil
	}

	dev, err := os.OpenFile(path, os.O_RDONLY, 0) // opened for reading, because the device may be read-only
	if err != nil {
		return err
	}

	return errors.Join(unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_SET_CAPACITY, 0), dev.Close())
}

// attachLoop attaches a file to a free loop device. If another process takes the same device first,
// attachLoop tries again.
func attachLoop(image string) (string, error) {
	file, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer file.Close() //nolint:errcheck // the device keeps the file open
	ctl, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return "", fmt.Errorf("cannot get a loop device: %w", err)
	}
	defer ctl.Close() //nolint:errcheck // the control device has no data to lose
	for range 50 {
		n, err := unix.IoctlRetInt(int(ctl.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return "", fmt.Errorf("cannot get a loop device: %w", err)
		}

		path := fmt.Sprintf("/dev/loop%d", n)
		dev, err := os.OpenFile(path, os.O_RDWR, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the kernel has not created the device node yet
		}
		if err != nil {
			return "", err
		}

		err = errors.Join(unix.IoctlLoopConfigure(int(dev.Fd()), &unix.LoopConfig{Fd: uint32(file.Fd())}), dev.Close())
		if err == nil {
			return path, nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return "", fmt.Errorf("cannot set up %s: %w", path, err)
		}
	}

	return "", errors.New("cannot get a loop device: other processes took all free devices")
}
