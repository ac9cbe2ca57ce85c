package mount

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/volume"
)

// Like holds the options that a bind mount must get.
type Like struct {
	ReadOnly bool
	// Flags are mount options, named as in mount(8): nosuid, nodev, noexec, nosymfollow,
	// nodiratime, and noatime, relatime or strictatime.
	Flags []string
}

// attrs maps the flags to the bits of mount_setattr(2).
var attrs = map[string]uint64{
	"nosuid": unix.MOUNT_ATTR_NOSUID, "nodev": unix.MOUNT_ATTR_NODEV, "noexec": unix.MOUNT_ATTR_NOEXEC,
	"nosymfollow": unix.MOUNT_ATTR_NOSYMFOLLOW, "nodiratime": unix.MOUNT_ATTR_NODIRATIME,
	"noatime": unix.MOUNT_ATTR_NOATIME, "strictatime": unix.MOUNT_ATTR_STRICTATIME, "relatime": unix.MOUNT_ATTR_RELATIME,
}

// attr returns the attributes that mount_setattr(2) must set, and those that it must clear first.
func (l Like) attr() (unix.MountAttr, error) {
	var a unix.MountAttr
	if l.ReadOnly {
		a.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	for _, f := range l.Flags {
		bit, ok := attrs[f]
		if !ok {
			return a, fmt.Errorf("unknown mount option %q", f)
		}

		a.Attr_set |= bit
		if f == "noatime" || f == "relatime" || f == "strictatime" {
			a.Attr_clr |= unix.MOUNT_ATTR__ATIME
		}
	}

	return a, nil
}

// has reports whether a mount with these attributes has the requested options.
func (l Like) has(attr uint64) bool {
	want, err := l.attr()
	if err != nil {
		return false
	}
	if want.Attr_clr != 0 && (attr^want.Attr_set)&unix.MOUNT_ATTR__ATIME != 0 {
		return false
	}
	return attr&want.Attr_set == want.Attr_set
}

// Attach bind-mounts src at a place, without the mounts below src. It sets the options before the mount
// becomes visible to other processes. The result is that of a Look at the new mount, but Attach inspects
// the mount through its own descriptor instead of its path. After the time limit Attach fails with
// *HungError, and the kernel may still make the mount later.
func (h *Host) Attach(ctx context.Context, src string, p *Place, like Like) (volume.Sight, error) {
	own, err := p.Again() // the call may still run after the caller has closed p
	if err != nil {
		return volume.Sight{}, err
	}

	s, err := bounded(ctx, h, kindChange, p.path, h.bound, func() (volume.Sight, error) {
		defer own.Close()
		return h.attach(src, own, like)
	})
	if err != nil {
		return s, fmt.Errorf("cannot bind %q at %q: %w", src, p.path, err)
	}
	return s, nil
}

// Settled checks that no earlier change at a path is still running. If a bind or another change has
// not returned after its caller gave up, Settled fails with *HungError. The mount of such a bind
// may still appear.
func (h *Host) Settled(ctx context.Context, path string) error {
	path = filepath.Clean(path)
	_, err := bounded(ctx, h, kindChange, path, h.bound, func() (struct{}, error) { return struct{}{}, nil })
	return err
}

func (h *Host) attach(src string, p *Place, like Like) (volume.Sight, error) {
	const clone = unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_NO_AUTOMOUNT | unix.AT_SYMLINK_NOFOLLOW
	tree := -1
	err := retry(func() (err error) { tree, err = unix.OpenTree(unix.AT_FDCWD, src, clone); return err })
	if h.noSetattr || errors.Is(err, unix.ENOSYS) {
		if err == nil {
			closeFD(tree)
		}
		return h.attachVisibly(src, p, like)
	}
	if err != nil {
		return volume.Sight{}, err
	}
	defer closeFD(tree)
	if err := h.makeLike(tree, like); err != nil {
		return volume.Sight{}, err
	}

	err = retry(func() error {
		return unix.MoveMount(tree, "", p.fd(), "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	})
	if err != nil {
		return volume.Sight{}, err
	}
	return h.through(tree, p.path, like)
}

// makeLike sets the attributes of a mount, given a descriptor that is open on the mount's root.
func (h *Host) makeLike(fd int, like Like) error {
	attr, err := like.attr()
	if err != nil || attr == (unix.MountAttr{}) {
		return err
	}
	if err := retry(func() error { return unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr) }); err != nil {
		return fmt.Errorf("cannot set mount options: %w", err)
	}
	return nil
}

// MakeLike sets the options of the uppermost mount at a place and checks the result. After the time
// limit it fails with *HungError, and the kernel may still make the change later.
func (h *Host) MakeLike(ctx context.Context, p *Place, like Like) error {
	if attr, err := like.attr(); err != nil || attr == (unix.MountAttr{}) {
		return err
	}

	remake := func() (struct{}, error) { return struct{}{}, h.remakeLike(p.path, like) }
	if p.lent { // an open of a path that a caller lends could block, so the agent uses its descriptor
		remake = func() (struct{}, error) { return struct{}{}, p.isLike(like) }
	}
	_, err := bounded(ctx, h, kindChange, p.path, h.bound, remake)
	if err != nil {
		return fmt.Errorf("cannot change the mount at %q: %w", p.path, err)
	}
	return nil
}

func (h *Host) remakeLike(path string, like Like) error {
	if like.ReadOnly {
		if err := h.makeReadOnly(path); err != nil {
			return err
		}
	}

	fd, err := h.openNoLink(path)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	if err := h.makeLike(fd, Like{Flags: like.Flags}); err != nil {
		return err
	}

	_, err = h.through(fd, path, like)
	return err
}

// attachVisibly makes the bind mount on kernels without mount_setattr (before Linux 5.12). There
// the mount is visible before it becomes read-only, and no other option can be set.
func (h *Host) attachVisibly(src string, p *Place, like Like) (volume.Sight, error) {
	if len(like.Flags) > 0 {
		return volume.Sight{}, errors.New("this kernel cannot set mount options of one mount alone; that needs Linux 5.12")
	}
	if err := retry(func() error { return unix.Mount(src, h.fdLink(p.fd()), "", unix.MS_BIND, "") }); err != nil {
		return volume.Sight{}, err
	}
	if like.ReadOnly {
		if err := h.makeReadOnly(p.path); err != nil {
			return volume.Sight{}, err
		}
	}

	return h.look(p.path, false), nil
}

// through inspects a mount through a descriptor that is open on its root, and checks that it has
// the requested options.
func (h *Host) through(fd int, path string, like Like) (volume.Sight, error) {
	st, err := statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, lookMask)
	if err != nil {
		return volume.Sight{}, err
	}

	p, err := h.pointOf(st, fd, "", statmountMntPoint)
	if err != nil {
		return volume.Sight{}, err
	}

	switch {
	case p.at != path:
		return volume.Sight{}, fmt.Errorf("the mount is now at %s, because the directory was moved", p.at)
	case !like.has(p.attr):
		return volume.Sight{}, errors.New("the kernel reports success, but the mount does not have the requested options")
	}

	s := volume.Sight{Seen: volume.SeenMount, Identity: p.id, ReadOnly: p.readOnly}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return s, nil
	}

	again, err := openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return failed(path, &p, err), nil
	}

	closeFD(again)
	return s, nil
}
