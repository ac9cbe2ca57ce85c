package mount

import (
	"context"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Shared reports whether mounts below dir propagate to other mount namespaces, because dir lies in
// a shared mount (mount_namespaces(7)). The directory must exist.
func (h *Host) Shared(dir string) (bool, error) {
	dir = filepath.Clean(dir)
	p, err := bounded(context.Background(), h, kindLook, dir, h.bound, func() (point, error) { return h.containing(dir) })
	if err != nil {
		return false, fmt.Errorf("cannot tell whether %q is in a shared mount: %w", dir, err)
	}
	return p.shared, nil
}

// containing describes the mount that contains a directory.
func (h *Host) containing(dir string) (point, error) {
	fd, err := open(dir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return point{}, err
	}
	defer closeFD(fd)
	st, err := statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, lookMask)
	if err != nil {
		return point{}, err
	}
	return h.pointOf(st, fd, "", 0)
}
