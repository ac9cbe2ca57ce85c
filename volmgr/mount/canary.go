package mount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// CanaryName is the directory, in one that mounts are to be shared below, where
// a canary is mounted while that is tried. No volume's path component begins with a dot.
const CanaryName = ".canary"

// canarySource and canaryType are what a canary looks like in a mount table.
const (
	canarySource = "volagent-canary"
	canaryType   = "tmpfs"
)

// IsCanary reports whether a mount is one that Sharing made, and that an agent
// which was killed could not take off.
func IsCanary(e Entry) bool {
	return filepath.Base(e.Path) == CanaryName && e.Source == canarySource && e.Identity.FSType == canaryType && e.Identity.Root == "/"
}

// mountCanary mounts an empty file system of at most a page, which nobody can
// write to, and returns its device: no other file system has that number now.
func mountCanary(path string) (dev string, err error) {
	err = retry(func() error {
		return unix.Mount(canarySource, path, canaryType, unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=4k,nr_inodes=2,mode=0")
	})
	if err != nil {
		return "", fmt.Errorf("cannot mount a canary: %w", err)
	}
	if dev, err = deviceAt(unix.AT_FDCWD, path); err != nil {
		return "", errors.Join(err, takeOff(path))
	}
	return dev, nil
}

// deviceAt is the device of what is at a path, empty if nothing is.
func deviceAt(dir int, path string) (string, error) {
	st, err := statx(dir, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_STATX_DONT_SYNC, 0)
	if errors.Is(err, unix.ENOENT) {
		return "", nil
	}
	if err != nil {
		return "", &os.PathError{Op: "statx", Path: path, Err: err}
	}
	return device(st.Dev_major, st.Dev_minor), nil
}

// takeOff unmounts a canary. Lazily, for it is empty: whoever looks at it just
// now must not keep it there.
func takeOff(path string) error {
	err := retry(func() error { return unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) })
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) { // it went with its peer
		return fmt.Errorf("cannot unmount a canary: %w", err)
	}
	return nil
}

// clearCanary takes off what is left of canaries below dir, and their directory.
// What is no canary stays, and is an error. The removal of the directory also
// takes off what is mounted on it in other namespaces: that is how one goes
// which a killed agent left in a process's own namespace.
func (h *Host) clearCanary(dir string) error {
	at := filepath.Join(dir, CanaryName)
	mounted, err := h.mountedAt(at)
	if err != nil {
		return err
	}
	if mounted {
		entries, err := h.Under(at)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if !IsCanary(e) {
				return fmt.Errorf("something is mounted at %q: %s (%s)", e.Path, e.Source, e.Identity.FSType)
			}
		}
		for range entries {
			if err := takeOff(at); err != nil {
				return err
			}
		}
	}
	if err := retry(func() error { return unix.Rmdir(at) }); err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "rmdir", Path: at, Err: err}
	}
	return nil
}
