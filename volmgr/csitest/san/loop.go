package san

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// loopFile returns the path of the file below a loop device of a volume. The SAN serves the file
// under any name, so the name identifies the device, also if the SAN no longer answers. All hosts of
// a test share the loop devices of the machine. A volume may have two devices on a host, because a
// read-only mount of a device does not prevent writes.
func (s *nodeServer) loopFile(volume string, readOnly bool) string {
	sum := sha256.Sum256([]byte(s.cfg.Socket + "\x00" + s.cfg.Node + "\x00" + volume))
	name := "/san-" + hex.EncodeToString(sum[:])
	if readOnly {
		name += "-ro"
	}
	return name
}

// device returns the loop device of a block volume. If there is none, the SAN serves a file in a
// FUSE file system that is mounted at no path, and device sets up a loop device on the file. The
// file system ends when the loop device is detached.
func (s *nodeServer) device(ctx context.Context, v volume) (string, error) {
	name := s.loopFile(v.id, v.readOnly)
	if path := findLoop(name); path != "" {
		return path, nil
	}

	dev, err := openFuse()
	if err != nil {
		return "", err
	}
	defer dev.Close() //nolint:errcheck // the SAN has a descriptor of its own

	root, err := detachedFuse(v.source(), dev)
	if err != nil {
		return "", err
	}
	defer unix.Close(root) //nolint:errcheck // ends the file system unless the loop device uses it
	if err := s.serve(ctx, v, "", dev); err != nil {
		return "", err
	}

	flags, loopFlags := unix.O_RDWR, uint32(0)
	if v.readOnly {
		flags, loopFlags = unix.O_RDONLY, unix.LO_FLAGS_READ_ONLY
	}
	file, err := unix.Openat(root, filepath.Base(name), flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("cannot open the data of %s: %w", v.id, err)
	}
	defer unix.Close(file) //nolint:errcheck // the loop device keeps the file open

	return attachLoop(file, loopFlags)
}

// detachedFuse makes a FUSE file system and returns a descriptor of its mount, which has no path.
func detachedFuse(source string, dev *os.File) (int, error) {
	fail := func(err error) (int, error) { return -1, fmt.Errorf("cannot mount FUSE: %w", err) }
	fsfd, err := unix.Fsopen("fuse", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(fsfd) //nolint:errcheck // the mount keeps the file system

	for _, option := range []struct{ key, value string }{
		{"source", source}, {"subtype", "san"}, {"fd", fmt.Sprint(dev.Fd())}, {"rootmode", "40000"}, {"user_id", "0"}, {"group_id", "0"},
	} {
		if err := unix.FsconfigSetString(fsfd, option.key, option.value); err != nil {
			return fail(fmt.Errorf("option %s: %w", option.key, err))
		}
	}
	if err := unix.FsconfigCreate(fsfd); err != nil {
		return fail(err)
	}

	root, err := unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return fail(err)
	}

	return root, nil
}

// attachLoop sets up a free loop device on a file. If another process takes the same device first,
// attachLoop tries again.
func attachLoop(file int, flags uint32) (string, error) {
	ctl, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return "", fmt.Errorf("cannot get a loop device: %w", err)
	}
	defer ctl.Close() //nolint:errcheck // the control device has no data to lose

	config := unix.LoopConfig{Fd: uint32(file), Info: unix.LoopInfo64{Flags: flags}}
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

		err = errors.Join(unix.IoctlLoopConfigure(int(dev.Fd()), &config), dev.Close())
		if err == nil {
			return path, nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return "", fmt.Errorf("cannot set up %s: %w", path, err)
		}
	}

	return "", errors.New("cannot get a loop device: other processes took all free devices")
}

// findLoop returns the loop device on a file, or an empty string.
func findLoop(name string) string {
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file") // Glob fails only for an invalid pattern
	for _, file := range files {
		if raw, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(raw)) == name {
			return "/dev/" + strings.Split(file, "/")[3]
		}
	}
	return ""
}

// loops returns the loop devices of a volume on this host.
func (s *nodeServer) loops(volume string) (paths []string) {
	for _, readOnly := range []bool{false, true} {
		if path := findLoop(s.loopFile(volume, readOnly)); path != "" {
			paths = append(paths, path)
		}
	}
	return paths
}

// withLoop performs a request of a loop device.
func withLoop(path string, do func(fd int) error) error {
	dev, err := os.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	if err = do(int(dev.Fd())); errors.Is(err, unix.ENXIO) {
		err = nil // another process has detached the device
	}

	return errors.Join(err, dev.Close())
}

// releaseLoops detaches the loop devices of a volume, unless they are published at another target.
func (s *nodeServer) releaseLoops(volume string) (err error) {
	for _, path := range s.loops(volume) {
		if !isBound(filepath.Base(path)) {
			err = errors.Join(err, withLoop(path, func(fd int) error { return unix.IoctlSetInt(fd, unix.LOOP_CLR_FD, 0) }))
		}
	}
	return err
}

func (s *nodeServer) resizeLoops(volume string) (err error) {
	for _, path := range s.loops(volume) {
		err = errors.Join(err, withLoop(path, func(fd int) error { return unix.IoctlSetInt(fd, unix.LOOP_SET_CAPACITY, 0) }))
	}
	return err
}

// deviceSize returns the size of a block device in bytes.
func deviceSize(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	size, err := f.Seek(0, 2)
	return size, errors.Join(err, f.Close())
}
