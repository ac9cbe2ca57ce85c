package mount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// CanaryName is the name of the directory on which Sharing mounts a canary. A canary is a small
// mount that shows whether mounts reach another namespace. The canary's directory is in the
// directory that Sharing tests. Its name cannot collide with a volume, because no path component of
// a volume begins with a dot.
const CanaryName = ".canary"

// canarySource and canaryType are the source and the type of a canary in the mount table.
const (
	canarySource = "volagent-canary"
	canaryType   = "tmpfs"
)

// IsCanary reports whether a mount is a canary. A canary remains if the agent is killed during
// Sharing.
func IsCanary(e Entry) bool {
	return filepath.Base(e.Path) == CanaryName && e.Source == canarySource && e.Identity.FSType == canaryType && e.Identity.Root == "/"
}

// mountCanary mounts an empty read-only file system of at most one page, and returns its device
// number. No other file system has this number while the canary is mounted.
func mountCanary(path string) (dev string, err error) {
	err = retry(func() error {
		return unix.Mount(canarySource, path, canaryType, unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=4k,nr_inodes=2,mode=0")
	})
	if err != nil {
		return "", fmt.Errorf("cannot mount a canary: %w", err)
	}
	if dev, err = deviceAt(unix.AT_FDCWD, path); err != nil {
		return "", errors.Join(err, unmountCanary(path))
	}
	return dev, nil
}

// deviceAt returns the number of the device that contains the file at a path, or an empty string if
// the path does not exist.
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

// unmountCanary unmounts a canary. The unmount is lazy, because a process that happens to use the
// canary must not keep it mounted. No data can be lost, because the canary is empty.
func unmountCanary(path string) error {
	err := retry(func() error { return unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) })
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) { // EINVAL: the kernel already unmounted this canary together with a copy in another namespace
		return fmt.Errorf("cannot unmount a canary: %w", err)
	}
	return nil
}
