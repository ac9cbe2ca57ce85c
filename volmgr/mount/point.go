package mount

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/proc"
	"github.com/volagent/volagent/volmgr/volume"
)

// errVanished reports that the mount changed or disappeared while the agent inspected it.
var errVanished = errors.New("the mount changed during the check")

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

// lookMask requests the fields that Look always needs. A small mask lets a file system answer
// without its storage.
const lookMask = unix.STATX_TYPE | unix.STATX_MNT_ID_UNIQUE

// statx returns the attributes of a path, or with AT_EMPTY_PATH and no path those of an open file.
// The caller passes AT_STATX_DONT_SYNC to accept cached attributes, or AT_STATX_FORCE_SYNC to make
// a network or FUSE file system answer.
func statx(fd int, path string, flags, mask int) (unix.Statx_t, error) {
	var st unix.Statx_t
	err := retry(func() error { return unix.Statx(fd, path, flags|unix.AT_NO_AUTOMOUNT, mask, &st) })
	return st, err
}

// retry repeats a call that a signal interrupted. Go's runtime sends signals, and FUSE and NFS
// abort a call on any signal.
func retry(fn func() error) error {
	for {
		if err := fn(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// open calls open(2), and repeats the call if a signal interrupts it.
func open(path string, flags int) (int, error) {
	fd := -1
	err := retry(func() (err error) {
		fd, err = unix.Open(path, flags|unix.O_CLOEXEC, 0)
		return err
	})
	return fd, err
}

// closeFD closes a descriptor that was not opened for writing. It ignores the error, because no
// data can be lost.
func closeFD(fd int) { _ = unix.Close(fd) }

// fdPath returns the current path of an open file according to the kernel.
func (h *Host) fdPath(fd int) (string, error) {
	return os.Readlink(h.fdLink(fd))
}

// fdLink returns a path that leads to an open file, regardless of the file's own path.
func (h *Host) fdLink(fd int) string { return h.proc + "/self/fd/" + strconv.Itoa(fd) }

// pointOf describes the mount to which st belongs. The mask more requests data beyond the identity.
// If fd is negative, pointOf asks the kernel by path instead of by descriptor.
func (h *Host) pointOf(st unix.Statx_t, fd int, path string, more uint64) (point, error) {
	const basic = statmountSBBasic | statmountMntBasic | statmountMntRoot | statmountFSType
	var unique uint64
	if st.Mask&unix.STATX_MNT_ID_UNIQUE != 0 && !h.noMountRoot {
		unique = st.Mnt_id
	}
	if unique != 0 && !h.noStatmount {
		var room [usualStat]byte
		r, err := statmount(unique, basic|more, &room)
		switch {
		case errors.Is(err, unix.ENOENT):
			return point{}, errVanished
		case err == nil:
			return h.fromStatmount(r), nil
		}
	}

	flags := unix.AT_STATX_DONT_SYNC | unix.AT_SYMLINK_NOFOLLOW
	if fd >= 0 {
		flags, path = unix.AT_STATX_DONT_SYNC|unix.AT_EMPTY_PATH, ""
	} else {
		fd = unix.AT_FDCWD
	}

	// An empty mask still returns the short mount id, and even a FUSE mount of another user answers
	// it.
	st, err := statx(fd, path, flags, 0)
	if err != nil {
		return point{}, err
	}
	if st.Mask&unix.STATX_MNT_ID == 0 {
		return point{}, fmt.Errorf("the kernel does not report a mount id")
	}

	table, err := h.table(func(m *proc.Mount) (bool, bool) { is := m.ID == int(st.Mnt_id); return !is, is })
	if err != nil {
		return point{}, err
	}
	if len(table) == 0 {
		return point{}, errVanished
	}

	p := h.fromInfo(table[0])
	p.attr = attrOf(table[0])
	if p.id.ID = unique; unique == 0 {
		p.id.ID = h.uniqueID(table[0].ID)
	}
	return p, nil
}

// slowPoint describes the mount whose root is path, for a path on which statx fails. It returns nil
// if there is no mount. It reads the mount id from an O_PATH descriptor, which needs no answer from
// the file system.
func (h *Host) slowPoint(path string) (*point, error) {
	table, err := h.table(nil)
	if err != nil {
		return nil, err
	}

	at, id := path, -1
	fd, err := open(path, unix.O_PATH|unix.O_NOFOLLOW)
	switch {
	case err == nil:
		defer closeFD(fd)
		if at, err = h.fdPath(fd); err != nil {
			return nil, err
		}
		if id, err = h.fdMountID("self", strconv.Itoa(fd)); err != nil {
			return nil, err
		}
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR):
		return nil, nil
	}

	hidden := covered(table)
	for _, m := range table {
		p := h.fromInfo(m)
		here := p.at == at || (p.deleted && p.at+" (deleted)" == at)
		if !here || (id >= 0 && m.ID != id) || (id < 0 && hidden[m.ID]) {
			continue
		}

		p.id.ID = h.uniqueID(m.ID)
		return &p, nil
	}

	return nil, nil
}

// fdMountID reads the mount id of an open descriptor of a process ("self" or a pid). The kernel
// answers without the file system.
func (h *Host) fdMountID(pid, fd string) (int, error) {
	data, err := os.ReadFile(filepath.Join(h.proc, pid, "fdinfo", fd))
	if err != nil {
		return 0, err
	}

	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		if v, ok := strings.CutPrefix(lines.Text(), "mnt_id:"); ok {
			return strconv.Atoi(strings.TrimSpace(v))
		}
	}

	return 0, fmt.Errorf("cannot find mnt_id of descriptor %s of process %s", fd, pid)
}

// fromStatmount converts a reply into a point. The point does not reference the reply.
func (h *Host) fromStatmount(r statmountReply) point {
	p := point{id: volume.MountIdentity{Namespace: h.namespace, Boot: h.boot, ID: r.u64(atMntID)}}
	// One allocation holds the three strings, because they have the same lifetime.
	var room [128]byte
	all := appendDevice(room[:0], r.u32(atDevMajor), r.u32(atDevMinor))
	dev := len(all)
	all = append(all, r.str(atFSType)...)
	fs := len(all)
	all = append(all, r.str(atMntRoot)...)
	s := string(all)
	p.id.Device, p.id.FSType = s[:dev], s[dev:fs]
	p.id.Root, p.deleted = rootPath(s[fs:])
	if r.u64(atMask)&statmountMntPoint != 0 {
		p.at = string(r.str(atMntPoint))
	}
	if r.u64(atMask)&statmountSBSource != 0 {
		p.source = string(r.str(atSBSource))
	}
	p.shared = r.u64(atMntShare)&unix.MS_SHARED != 0
	p.attr = r.u64(atMntAttr)
	p.readOnly = p.attr&unix.MOUNT_ATTR_RDONLY != 0 || r.u32(atSBFlags)&unix.MS_RDONLY != 0

	return p
}

// rootPath removes the suffix that the kernel appends to the path of a deleted file, because the
// mount is still the same. No other path contains two slashes.
func rootPath(s string) (root string, deleted bool) {
	return strings.CutSuffix(s, "//deleted")
}

// device formats a device number as "major:minor".
func device(major, minor uint32) string {
	var room [2*10 + 1]byte
	return string(appendDevice(room[:0], major, minor))
}

func appendDevice(to []byte, major, minor uint32) []byte {
	to = append(strconv.AppendUint(to, uint64(major), 10), ':')
	return strconv.AppendUint(to, uint64(minor), 10)
}
