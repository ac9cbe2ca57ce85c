package mount

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/proc"
	"github.com/volagent/volagent/volmgr/volume"
)

// Entry is one mount in the mount table.
type Entry struct {
	// Path is the mount point. It begins with the root in the spelling that the caller used.
	Path string

	// ID is the mount's id in the table. The kernel reuses it after the unmount.
	ID int

	// Identity lacks the unique mount id, because the table does not contain it.
	Identity volume.MountIdentity
	Source   string
	ReadOnly bool // the mount or its file system is read-only

	// Covered is set if another mount at the same path hides this one. The path then leads to the
	// other mount.
	Covered bool
}

// Under returns the mounts at and below root from one read of the mount table. The order is that in
// which they were made, as far as the kernel keeps it.
func (h *Host) Under(root string) ([]Entry, error) {
	root = filepath.Clean(root)
	actual, err := bounded(context.Background(), h, kindLook, root, h.bound, func() (string, error) { return h.canonical(root) })
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

// canonical resolves the symbolic links in path. It returns path unchanged if it cannot resolve
// them, because the path is missing or a file system in it is dead.
func (h *Host) canonical(path string) (string, error) {
	fd, err := open(path, unix.O_PATH)
	if err != nil {
		return path, nil // the table also contains paths that cannot be opened
	}
	defer closeFD(fd)
	return h.fdPath(fd)
}

// within reports whether path is dir or lies in it.
func within(path, dir string) bool {
	rest, ok := strings.CutPrefix(path, strings.TrimSuffix(dir, "/"))
	return ok && (rest == "" || rest[0] == '/')
}

// covered returns the ids of the mounts that another mount hides. A mount hides its parent if both
// have the same mount point.
func covered(table []*proc.Mount) map[int]bool {
	at := make(map[int]string, len(table))
	for _, m := range table {
		at[m.ID] = m.Mountpoint
	}

	hidden := map[int]bool{}
	for _, m := range table {
		if p, ok := at[m.Parent]; ok && p == m.Mountpoint && m.Parent != m.ID {
			hidden[m.Parent] = true
		}
	}

	return hidden
}

// table reads the mounts of this namespace, except those that filter skips.
func (h *Host) table(filter proc.Filter) ([]*proc.Mount, error) {
	return proc.ReadMounts(h.proc+"/self/mountinfo", nil, filter)
}

// fromInfo converts a line of the mount table into a point without a unique id.
func (h *Host) fromInfo(m *proc.Mount) point {
	p := point{
		id: volume.MountIdentity{
			Namespace: h.namespace, Boot: h.boot,
			Device: device(uint32(m.Major), uint32(m.Minor)),
		},
		at: m.Mountpoint, source: m.Source, shared: strings.HasPrefix(m.Optional, "shared:"),
		readOnly: hasOption(m.Options, "ro") || hasOption(m.VFSOptions, "ro"),
	}

	p.id.Root, p.deleted = rootPath(m.Root)
	// In a type such as "fuse.sshfs", the kernel's type comes before the dot, and the daemon chose
	// the name after it.
	p.id.FSType, _, _ = strings.Cut(m.FSType, ".")
	return p
}

// attrOf reads the attributes of a mount from its line in the table.
func attrOf(m *proc.Mount) (attr uint64) {
	for name, bit := range attrs {
		if hasOption(m.Options, name) {
			attr |= bit
		}
	}

	if hasOption(m.Options, "ro") {
		attr |= unix.MOUNT_ATTR_RDONLY
	}
	if attr&unix.MOUNT_ATTR__ATIME == 0 && !hasOption(m.Options, "relatime") {
		attr |= unix.MOUNT_ATTR_STRICTATIME // the table shows strictatime by the absence of the other three
	}
	return attr
}

func hasOption(options, name string) bool {
	return slices.Contains(strings.Split(options, ","), name)
}

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
