package mount

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/proc"
	"github.com/volagent/volagent/volmgr/volume"
)

// Entry is one mount in the mount table.
type Entry struct {
	// Path is the mount point. It begins with the root in the form that the caller passed to Under.
	Path string

	// ID is the mount id in the table. The kernel reuses it after the unmount.
	ID int

	// Identity has no unique mount id, because the table does not contain it.
	Identity volume.MountIdentity
	Source   string
	ReadOnly bool // the mount or the whole file system is read-only

	// Covered is set if another mount with the same mount point hides this mount. The path then
	// leads to the other mount.
	Covered bool
}

// Under returns the mounts at and below root from one read of the mount table. They have the order
// of the mount table, in which older mounts usually come first.
func (h *Host) Under(root string) ([]Entry, error) {
	root = filepath.Clean(root)
	actual, err := bounded(context.Background(), &h.gate, kindLook, root, func() (string, error) { return h.canonical(root) })
	if err != nil {
		return nil, fmt.Errorf("cannot find mounts under %q: %w", root, err)
	}

	table, err := h.table(func(m *proc.Mount) (bool, bool) { return !within(m.Mountpoint, actual), false })
	if err != nil {
		return nil, fmt.Errorf("cannot find mounts under %q: %w", root, err)
	}

	hidden := covered(table)
	out := make([]Entry, 0, len(table))
	for _, m := range table {
		p := h.fromInfo(m)
		rel, _ := strings.CutPrefix(p.at, actual)
		out = append(out, Entry{
			Path: filepath.Join(root, rel), ID: m.ID, Identity: p.id, Source: p.source,
			ReadOnly: p.readOnly, Covered: hidden[m.ID],
		})
	}

	return out, nil
}

// canonical resolves the symbolic links in path. It returns path unchanged if it cannot open path,
// because path is missing or a mount in it is dead.
func (p procfs) canonical(path string) (string, error) {
	fd, err := open(path, unix.O_PATH)
	if err != nil {
		return path, nil // the table may still contain mounts below the path
	}
	defer closeFD(fd)
	return p.fdPath(fd)
}

// Shared reports whether dir is in a shared mount (mount_namespaces(7)). New mounts below dir then
// propagate to other mount namespaces. The directory must exist.
func (h *Host) Shared(dir string) (bool, error) {
	dir = filepath.Clean(dir)
	p, err := bounded(context.Background(), &h.gate, kindLook, dir, func() (point, error) {
		fd, err := open(dir, unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			return point{}, err
		}
		defer closeFD(fd)
		return h.openPoint(fd, 0)
	})
	if err != nil {
		return false, fmt.Errorf("cannot tell whether %q is in a shared mount: %w", dir, err)
	}
	return p.shared, nil
}

// InTree reports whether the source of a mount is the directory dir or lies below dir, in the same
// file system. It detects a plugin whose NodePublishVolume bind-mounted the agent's own empty
// directory. A source in another file system that is mounted below dir does not count. If dir does
// not exist, InTree returns false.
func (h *Host) InTree(id volume.MountIdentity, dir string) (bool, error) {
	dir = filepath.Clean(dir)
	// Only one call runs at a time for each key. The key therefore contains the mount id, so that a
	// publish does not wait for all other publishes on the host.
	key := fmt.Sprintf("%s (for mount %d)", dir, id.ID)
	in, err := bounded(context.Background(), &h.gate, kindLook, key, func() (bool, error) { return h.trees.contain(&h.reader, id, dir) })
	if err != nil {
		return false, fmt.Errorf("cannot tell whether a mount's source lies in %q: %w", dir, err)
	}
	return in, nil
}
