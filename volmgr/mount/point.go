package mount

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/proc"
)

// pointOf describes the mount that contains the file with the attributes st. The parameter extra is
// a mask of fields of statmount(2) that the caller needs beyond the identity. If fd is negative,
// pointOf identifies the file by path, otherwise by fd.
func (r *reader) pointOf(st unix.Statx_t, fd int, path string, extra uint64) (point, error) {
	const basic = statmountSBBasic | statmountMntBasic | statmountMntRoot | statmountFSType
	var unique uint64
	if st.Mask&unix.STATX_MNT_ID_UNIQUE != 0 && !r.noMountRoot {
		unique = st.Mnt_id
	}
	if unique != 0 && !r.noStatmount {
		var room [usualStat]byte
		reply, err := statmount(unique, basic|extra, &room)
		switch {
		case errors.Is(err, unix.ENOENT):
			return point{}, errVanished
		case err == nil:
			return r.fromStatmount(reply), nil
		}
	}

	flags := unix.AT_STATX_DONT_SYNC | unix.AT_SYMLINK_NOFOLLOW
	if fd >= 0 {
		flags, path = unix.AT_STATX_DONT_SYNC|unix.AT_EMPTY_PATH, ""
	} else {
		fd = unix.AT_FDCWD
	}

	// Even with an empty mask, statx returns the mount id that mountinfo shows. A FUSE mount of
	// another user answers a call with an empty mask too.
	st, err := statx(fd, path, flags, 0)
	if err != nil {
		return point{}, err
	}
	if st.Mask&unix.STATX_MNT_ID == 0 {
		return point{}, fmt.Errorf("the kernel does not report a mount id")
	}

	m, err := r.mountByID(int(st.Mnt_id))
	if err != nil {
		return point{}, err
	}

	p := r.fromInfo(m)
	p.attr = attrOf(m)
	if p.id.ID = unique; unique == 0 {
		p.id.ID = r.uniqueID(m.ID)
	}
	return p, nil
}

// openPoint describes the mount that contains an open file. The parameter extra has the same
// meaning as for pointOf.
func (r *reader) openPoint(fd int, extra uint64) (point, error) {
	st, err := statFD(fd, lookMask)
	if err != nil {
		return point{}, err
	}
	return r.pointOf(st, fd, "", extra)
}

// slowPoint describes the mount at the mount point path. It is used if statx fails on path. It
// returns nil if path is not a mount point. It reads the mount id from an O_PATH descriptor,
// because this way needs no answer from the file system.
func (r *reader) slowPoint(path string) (*point, error) {
	table, err := r.table(nil)
	if err != nil {
		return nil, err
	}

	at, id := path, -1
	fd, err := open(path, unix.O_PATH|unix.O_NOFOLLOW)
	switch {
	case err == nil:
		defer closeFD(fd)
		if at, err = r.fdPath(fd); err != nil {
			return nil, err
		}
		if id, err = r.fdMountID("self", fd); err != nil {
			return nil, err
		}
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR):
		return nil, nil
	}

	hidden := covered(table)
	for _, m := range table {
		p := r.fromInfo(m)
		here := p.at == at || (p.deleted && p.at+deletedMark == at)
		if !here || (id >= 0 && m.ID != id) || (id < 0 && hidden[m.ID]) {
			continue
		}

		p.id.ID = r.uniqueID(m.ID)
		return &p, nil
	}

	return nil, nil
}

// find describes the mount at the mount point path. It returns nil if path is not a mount point.
// The parameter extra has the same meaning as for pointOf. If find returns both a point and an
// error, the mount does not work. If it returns only an error, a mount above path does not work.
func (r *reader) find(path string, extra uint64) (unix.Statx_t, *point, error) {
	// Cached attributes are sufficient, because the kernel can return them even if the storage is
	// dead.
	st, err := r.rootAt(path)
	switch {
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR):
		return st, nil, nil
	case err == nil && st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0:
		if st.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
			return st, nil, nil
		}

		var p point
		if p, err = r.pointOf(st, -1, path, extra); err == nil {
			return st, &p, nil
		}
		if errors.Is(err, errVanished) {
			return st, nil, err
		}
	}

	p, serr := r.slowPoint(path)
	if serr != nil {
		return st, nil, serr
	}
	return st, p, err
}

// rootAt reads the attributes of path. After EACCES it requests fewer attributes, because a FUSE
// mount of another user refuses to return the usual ones.
func (r *reader) rootAt(path string) (unix.Statx_t, error) {
	const flags = unix.AT_SYMLINK_NOFOLLOW | unix.AT_STATX_DONT_SYNC
	st, err := statx(unix.AT_FDCWD, path, flags, lookMask)
	if errors.Is(err, unix.EACCES) {
		st, err = statx(unix.AT_FDCWD, path, flags, 0)
	}
	if r.noMountRoot {
		st.Attributes_mask = 0
	}
	return st, err
}

// mountRoot reports whether the file that is open as fd is the root of a mount.
func (r *reader) mountRoot(fd int) (bool, error) {
	st, err := statFD(fd, lookMask)
	if err != nil {
		return false, err
	}
	if st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0 && !r.noMountRoot {
		return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
	}

	path, err := r.fdPath(fd)
	if err != nil {
		return false, err
	}
	return r.mountedAt(path)
}

// refuseMount returns an error if the file that is open as fd is the root of a mount.
func (r *reader) refuseMount(fd int) error {
	root, err := r.mountRoot(fd)
	if err == nil && root {
		err = errors.New("something is mounted there")
	}
	return err
}

// mountedAt reports whether path is a mount point, even if the mount does not work.
func (r *reader) mountedAt(path string) (bool, error) {
	_, p, err := r.find(path, 0)
	if p != nil {
		return true, nil
	}
	return false, err
}

// within reports whether path is dir or a path below dir.
func within(path, dir string) bool {
	rest, ok := strings.CutPrefix(path, strings.TrimSuffix(dir, "/"))
	return ok && (rest == "" || rest[0] == '/')
}

// covered returns the ids of the mounts that are hidden by another mount. A mount hides its parent
// if both have the same mount point.
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
