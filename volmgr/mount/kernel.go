package mount

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/proc"
	"github.com/volagent/volagent/volmgr/volume"
)

// reader reads mounts from the kernel. Its calls have no time limit, so a Host bounds those that
// can wait for storage.
type reader struct {
	procfs
	sysfs

	namespace uint64
	boot      string

	// Tests set these fields to simulate an older kernel.
	noStatmount bool // a kernel before 6.8, or a filter that refuses statmount
	noMountRoot bool // a kernel before 5.8
}

// changer changes mounts and guards. Like those of reader, its calls have no time limit.
type changer struct {
	reader

	// Tests set these fields to simulate an older kernel.
	noSetattr bool // a kernel before 5.12
	noHandles bool // a filter refuses name_to_handle_at
}

// Namespace returns the inode number of the mount namespace.
func (r *reader) Namespace() uint64 { return r.namespace }

// Boot returns the id that the kernel gave to this boot.
func (r *reader) Boot() string { return r.boot }

// ownSpace returns the agent's own mount namespace in the form of the links in /proc.
func (r *reader) ownSpace() string { return fmt.Sprintf("mnt:[%d]", r.namespace) }

// Gone reports whether a mount that was once at the path at is no longer mounted anywhere in this
// mount namespace. It asks only the kernel and does not wait for storage. If the answer is unknown,
// it returns false. Before Linux 6.8 the kernel reuses mount ids. There Gone compares the path, the
// file system and its root instead.
func (r *reader) Gone(m volume.MountIdentity, at string) bool {
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
		found = found || p.id == m && p.at == at
		return true, found
	})

	return err == nil && !found
}

// point is one mount as the kernel describes it.
type point struct {
	id       volume.MountIdentity
	at       string // the mount point
	source   string
	readOnly bool   // the mount or its file system is read-only
	attr     uint64 // the attributes of the mount, as in mount_setattr(2)
	deleted  bool   // the mounted directory or file was deleted
	shared   bool   // mounts below it propagate to other namespaces
}

// fromStatmount converts a reply into a point. The point does not reference the reply.
func (r *reader) fromStatmount(from statmountReply) point {
	p := point{id: volume.MountIdentity{Namespace: r.namespace, Boot: r.boot, ID: from.u64(atMntID)}}
	// One allocation holds the three strings, because they have the same lifetime.
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

// fromInfo converts a line of the mount table into a point without a unique id.
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
	// In a type such as "fuse.sshfs", the kernel's type comes before the dot, and the daemon chose
	// the name after it.
	p.id.FSType, _, _ = strings.Cut(m.FSType, ".")
	return p
}

// rootPath removes the suffix that the kernel appends to the path of a deleted file, because the
// mount is still the same. No other path contains two slashes.
func rootPath(s string) (root string, deleted bool) {
	return strings.CutSuffix(s, "//deleted")
}

// uniqueID finds the unique id of a mount by its id in mountinfo. It returns 0 if the kernel does
// not provide unique ids. The search is slow, so it is only for mounts on which statx fails.
func (r *reader) uniqueID(old int) uint64 {
	if r.noStatmount || r.noMountRoot {
		return 0
	}
	return listmountFind(old)
}
