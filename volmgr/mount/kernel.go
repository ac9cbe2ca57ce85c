package mount

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/proc"
	"github.com/volagent/volagent/volmgr/volume"
)

// reader describes mounts. Its methods have no time limit, so a Host calls them through its gate if
// they can wait for storage.
type reader struct {
	procfs
	sysfs

	namespace uint64
	boot      string

	// Tests set these fields to simulate an older kernel.
	noStatmount bool // a kernel before 6.8, or a filter that refuses statmount
	noMountRoot bool // a kernel before 5.8
}

// changer changes mounts and guards. Its methods have no time limit either.
type changer struct {
	reader

	// Tests set these fields to simulate an older kernel.
	noSetattr bool // a kernel before 5.12
	noHandles bool // a system call filter refuses name_to_handle_at
}

// Namespace returns the inode number of the mount namespace.
func (r *reader) Namespace() uint64 { return r.namespace }

// Boot returns the id that the kernel gave to this boot.
func (r *reader) Boot() string { return r.boot }

// ownSpace returns the name of the agent's own mount namespace, as in the links in /proc.
func (r *reader) ownSpace() string { return fmt.Sprintf("mnt:[%d]", r.namespace) }

// Gone reports whether a mount no longer exists in this mount namespace, neither at its old mount
// point path nor anywhere else. It asks only the kernel and does not wait for storage. If the
// answer is unknown, it returns false. A kernel before Linux 6.8 reuses mount ids, so on such a
// kernel Gone compares the path, the file system and its root instead.
func (r *reader) Gone(m volume.MountIdentity, path string) bool {
	switch {
	case m.Boot != r.boot:
		return true
	case m.Namespace != r.namespace:
		return false
	case m.ID != 0 && !r.noStatmount:
		var room [usualStat]byte
		_, err := statmount(m.ID, statmountMntBasic, &room)
		if !errors.Is(err, errNoStatmount) {
			return errors.Is(err, unix.ENOENT)
		}
	}

	found := false
	_, err := r.table(func(i *proc.Mount) (bool, bool) {
		p := r.fromInfo(i)
		p.id.ID = m.ID
		found = found || p.id == m && p.at == path
		return true, found
	})

	return err == nil && !found
}

// point is one mount as the kernel describes it.
type point struct {
	id       volume.MountIdentity
	at       string // the mount point
	source   string
	readOnly bool   // the mount or the whole file system is read-only
	attr     uint64 // the attributes in the form of mount_setattr(2)
	deleted  bool   // the mounted directory or file was deleted
	shared   bool   // new mounts below this mount propagate to other namespaces
}

// fromStatmount returns the point that a reply describes. The point does not refer to the memory of
// the reply.
func (r *reader) fromStatmount(from statmountReply) point {
	p := point{id: volume.MountIdentity{Namespace: r.namespace, Boot: r.boot, ID: from.u64(atMntID)}}
	// The three strings are parts of one string, so that they need only one allocation.
	var room [128]byte
	all := appendDevice(room[:0], from.u32(atDevMajor), from.u32(atDevMinor))
	dev := len(all)
	all = append(all, from.str(atFSType)...)
	fs := len(all)
	all = append(all, from.str(atMntRoot)...)
	s := string(all)
	p.id.Device, p.id.FSType = s[:dev], s[dev:fs]
	p.id.Root, p.deleted = rootPath(s[fs:])
	if from.u64(atMask)&statmountMntPoint != 0 {
		p.at = string(from.str(atMntPoint))
	}
	if from.u64(atMask)&statmountSBSource != 0 {
		p.source = string(from.str(atSBSource))
	}
	p.shared = from.u64(atMntShare)&unix.MS_SHARED != 0
	p.attr = from.u64(atMntAttr)
	p.readOnly = p.attr&unix.MOUNT_ATTR_RDONLY != 0 || from.u32(atSBFlags)&unix.MS_RDONLY != 0

	return p
}

// fromInfo returns the point that a line of the mount table describes. The point has no unique
// mount id, because the table does not contain it.
func (r *reader) fromInfo(m *proc.Mount) point {
	p := point{
		id: volume.MountIdentity{
			Namespace: r.namespace, Boot: r.boot,
			Device: device(uint32(m.Major), uint32(m.Minor)),
		},
		at: m.Mountpoint, source: m.Source, shared: strings.HasPrefix(m.Optional, "shared:"),
		readOnly: hasOption(m.Options, "ro") || hasOption(m.VFSOptions, "ro"),
	}

	p.id.Root, p.deleted = rootPath(m.Root)
	// In a type such as "fuse.sshfs", the part before the dot is the kernel's type. The part after
	// the dot is a name that the daemon chose.
	p.id.FSType, _, _ = strings.Cut(m.FSType, ".")
	return p
}

// rootPath removes the suffix that the kernel appends to the path of a deleted file. The mount is
// the same with and without the suffix. No other path contains two slashes in a row.
func rootPath(s string) (root string, deleted bool) {
	return strings.CutSuffix(s, "//deleted")
}

// uniqueID returns the unique id of the mount with the given id in the mount table, or 0 if the
// kernel does not provide unique ids. The search is slow, so uniqueID is only for mounts on which
// statx fails.
func (r *reader) uniqueID(old int) uint64 {
	if r.noStatmount || r.noMountRoot {
		return 0
	}
	return searchUniqueID(old)
}
