package mount

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/volagent/volagent/volmgr/volume"
	"golang.org/x/sys/unix"
)

// InTree reports whether what a mount shows lies in the directory dir itself:
// in the same file system, at dir's path in it or below. A publish that bound
// our own bare directory is found so; one that bound from a mount that lies on
// a directory in dir is not meant. A missing dir holds nothing.
func (h *Host) InTree(id volume.MountIdentity, dir string) (bool, error) {
	dir = filepath.Clean(dir)
	// One outstanding for each mount that is asked about: with one for all, every
	// publish on the host would wait for every other.
	key := fmt.Sprintf("%s (for mount %d)", dir, id.ID)
	in, err := bounded(context.Background(), h, kindLook, key, h.bound, func() (bool, error) { return h.inTree(id, dir) })
	if err != nil {
		return false, fmt.Errorf("cannot tell whether a mount's source lies in %q: %w", dir, err)
	}
	return in, nil
}

func (h *Host) inTree(id volume.MountIdentity, dir string) (bool, error) {
	fd, err := open(dir, unix.O_PATH|unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer closeFD(fd)
	path, err := h.fdPath(fd)
	if err != nil {
		return false, err
	}
	st, err := statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, lookMask)
	if err != nil {
		return false, err
	}
	p, err := h.pointOf(st, fd, "", statmountMntPoint)
	if err != nil {
		return false, err
	}
	if !within(path, p.at) {
		return false, fmt.Errorf("its path %q is not under its mount point %q", path, p.at)
	}
	// Where dir is within its file system: the mount may show only a part of
	// it (a bind, a btrfs subvolume).
	inner := filepath.Join(p.id.Root, strings.TrimPrefix(path, p.at))
	return p.id.Device == id.Device && within(id.Root, inner), nil
}
