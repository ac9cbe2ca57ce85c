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

	"github.com/volagent/volagent/volmgr/proc"

	"github.com/volagent/volagent/volmgr/volume"
	"golang.org/x/sys/unix"
)

// errVanished says that the mount went while it was being looked at.
var errVanished = errors.New("the mount changed while it was looked at")

// point is one mount as the kernel describes it.
type point struct {
	id       volume.MountIdentity
	at       string // mount point
	source   string
	readOnly bool   // the mount, or its file system
	attr     uint64 // of the mount, as mount_setattr(2) has them
	deleted  bool   // its root directory or file is unlinked
	shared   bool   // mounts below it propagate
}

// lookMask is what every look needs; asking less lets a file system answer
// without its storage.
const lookMask = unix.STATX_TYPE | unix.STATX_MNT_ID_UNIQUE

// statx asks about a path or, with AT_EMPTY_PATH and no path, about an open
// file. Sync is AT_STATX_DONT_SYNC, which takes what is cached, or
// AT_STATX_FORCE_SYNC, which makes a network or FUSE file system answer.
func statx(fd int, path string, flags, mask int) (unix.Statx_t, error) {
	var st unix.Statx_t
	err := retry(func() error { return unix.Statx(fd, path, flags|unix.AT_NO_AUTOMOUNT, mask, &st) })
	return st, err
}

// retry repeats a call that a signal interrupted: Go's runtime sends them, and
// FUSE and NFS give up on any.
func retry(fn func() error) error {
	for {
		if err := fn(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// open is open(2), repeated after signals.
func open(path string, flags int) (int, error) {
	fd := -1
	err := retry(func() (err error) {
		fd, err = unix.Open(path, flags|unix.O_CLOEXEC, 0)
		return err
	})
	return fd, err
}

// closeFD closes what was opened for looking only; nothing can be lost by it.
func closeFD(fd int) { _ = unix.Close(fd) }

// fdPath is the path of an open file as the kernel sees it now.
func (h *Host) fdPath(fd int) (string, error) {
	return os.Readlink(h.fdLink(fd))
}

// fdLink is a path that leads to an open file, whatever its own path holds.
func (h *Host) fdLink(fd int) string { return h.proc + "/self/fd/" + strconv.Itoa(fd) }

// pointOf describes the mount that st is on. More is a mask of what is wanted
// beside the identity. With fd < 0 the path says where to ask again.
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
	// The short id, with the mask that even a FUSE mount of another user
	// answers: it comes unasked.
	st, err := statx(fd, path, flags, 0)
	if err != nil {
		return point{}, err
	}
	if st.Mask&unix.STATX_MNT_ID == 0 {
		return point{}, fmt.Errorf("the kernel tells no mount id")
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

// slowPoint describes the mount whose root is path, for a path that statx
// says nothing about. The mount id of an O_PATH descriptor needs no answer
// from the file system. Nil means that no mount is there.
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

// fdMountID reads mnt_id of a descriptor of a process ("self" or a pid). It
// asks the kernel, not the file system.
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

// fromStatmount turns a reply into a point, which keeps nothing of the reply.
func (h *Host) fromStatmount(r statmountReply) point {
	p := point{id: volume.MountIdentity{Namespace: h.namespace, Boot: h.boot, ID: r.u64(atMntID)}}
	// One string for the three that live and die together.
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

// rootPath takes off what the kernel adds to the path of an unlinked file: the
// mount is the same one. No other path holds two slashes.
func rootPath(s string) (root string, deleted bool) {
	return strings.CutSuffix(s, "//deleted")
}

// device writes a device number as everywhere in this program.
func device(major, minor uint32) string {
	var room [2*10 + 1]byte
	return string(appendDevice(room[:0], major, minor))
}

func appendDevice(to []byte, major, minor uint32) []byte {
	to = append(strconv.AppendUint(to, uint64(major), 10), ':')
	return strconv.AppendUint(to, uint64(minor), 10)
}
