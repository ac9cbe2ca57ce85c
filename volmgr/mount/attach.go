package mount

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/volume"
)

// Attach bind-mounts src at the place, without the mounts below src. It sets the options before the
// mount becomes visible to other processes. The result is that of a Look at the new mount, but
// Attach inspects the mount through its own descriptor instead of its path. After the time limit
// Attach fails with *HungError, and the kernel may still make the mount later.
func (p *Place) Attach(ctx context.Context, src string, like Like) (volume.Sight, error) {
	own, err := p.Again() // the call may still run after the caller has closed p
	if err != nil {
		return volume.Sight{}, err
	}

	s, err := bounded(ctx, &p.h.gate, kindChange, p.path, func() (volume.Sight, error) {
		defer own.Close()
		return own.h.attach(src, own.fd(), own.path, like)
	})
	if err != nil {
		return s, fmt.Errorf("cannot bind %q at %q: %w", src, p.path, err)
	}
	return s, nil
}

// MakeLike sets the options of the uppermost mount at the place and checks the result. If the place
// is lent, MakeLike only checks whether the mount has the options, because a change would have to
// open the path, and that could block. After the time limit MakeLike fails with *HungError, and the
// kernel may still make the change later.
func (p *Place) MakeLike(ctx context.Context, like Like) error {
	if attr, err := like.attr(); err != nil || attr == (unix.MountAttr{}) {
		return err
	}

	remake := func() error { return p.h.remakeLike(p.path, like) }
	if p.lent {
		remake = func() error { return p.isLike(like) }
	}
	if err := p.h.gate.do(ctx, kindChange, p.path, remake); err != nil {
		return fmt.Errorf("cannot change the mount at %q: %w", p.path, err)
	}
	return nil
}

// attach bind-mounts src at path, on which the descriptor place is open.
func (c *changer) attach(src string, place int, path string, like Like) (volume.Sight, error) {
	const clone = unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_NO_AUTOMOUNT | unix.AT_SYMLINK_NOFOLLOW
	tree := -1
	err := retry(func() (err error) { tree, err = unix.OpenTree(unix.AT_FDCWD, src, clone); return err })
	if c.noSetattr || errors.Is(err, unix.ENOSYS) {
		if err == nil {
			closeFD(tree)
		}
		return c.attachVisibly(src, place, path, like)
	}
	if err != nil {
		return volume.Sight{}, err
	}
	defer closeFD(tree)
	if err := makeLike(tree, like); err != nil {
		return volume.Sight{}, err
	}

	err = retry(func() error {
		return unix.MoveMount(tree, "", place, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	})
	if err != nil {
		return volume.Sight{}, err
	}
	return c.through(tree, path, like)
}

// makeLike sets the attributes of a mount, given a descriptor that is open on the mount's root.
func makeLike(fd int, like Like) error {
	attr, err := like.attr()
	if err != nil || attr == (unix.MountAttr{}) {
		return err
	}
	if err := retry(func() error { return unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr) }); err != nil {
		return fmt.Errorf("cannot set mount options: %w", err)
	}
	return nil
}

// remakeLike sets the options of the mount at path, and checks the result.
func (c *changer) remakeLike(path string, like Like) error {
	if like.ReadOnly {
		if err := c.setOptions(path, Like{ReadOnly: true}, 0); err != nil {
			return err
		}
	}

	fd, err := openNoLink(path)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	if err := makeLike(fd, Like{Flags: like.Flags}); err != nil {
		return err
	}

	_, err = c.through(fd, path, like)
	return err
}

// attachVisibly makes the bind mount on kernels without mount_setattr (before Linux 5.12). There
// the mount is visible before it becomes read-only, and no other option can be set.
func (c *changer) attachVisibly(src string, place int, path string, like Like) (volume.Sight, error) {
	if len(like.Flags) > 0 {
		return volume.Sight{}, errors.New("this kernel cannot set mount options of one mount alone; that needs Linux 5.12")
	}
	if err := retry(func() error { return unix.Mount(src, c.fdLink(place), "", unix.MS_BIND, "") }); err != nil {
		return volume.Sight{}, err
	}
	if like.ReadOnly {
		if err := c.setOptions(path, Like{ReadOnly: true}, 0); err != nil {
			return volume.Sight{}, err
		}
	}

	return c.look(path, false), nil
}

// through inspects a mount through a descriptor that is open on the mount's root, and checks that
// the mount has the requested options.
func (c *changer) through(fd int, path string, like Like) (volume.Sight, error) {
	st, err := statFD(fd, lookMask)
	if err != nil {
		return volume.Sight{}, err
	}

	p, err := c.pointOf(st, fd, "", statmountMntPoint)
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
