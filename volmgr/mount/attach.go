package mount

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/volume"
)

// Attach bind-mounts src at the place, without the mounts below src. It sets the options before the
// mount becomes visible to other processes. Attach inspects the new mount through a descriptor and
// returns the same result as Look. After the time limit it fails with *HungError, and the kernel
// may still make the mount later.
func (p *Place) Attach(ctx context.Context, src string, opts Options) (volume.Sight, error) {
	own, err := p.Duplicate() // the caller may close p before the call returns
	if err != nil {
		return volume.Sight{}, err
	}

	s, err := bounded(ctx, &p.h.gate, kindChange, p.path, func() (volume.Sight, error) {
		defer own.Close()
		return own.h.attach(src, own.fd(), own.path, opts)
	})
	if err != nil {
		return s, fmt.Errorf("cannot bind %q at %q: %w", src, p.path, err)
	}
	return s, nil
}

// SetOptions sets the options of the uppermost mount at the place and checks the result. If another
// process lent the descriptor of the place, SetOptions changes nothing and only checks the options.
// A change would require opening the path, which can block. After the time limit SetOptions fails
// with *HungError, and the kernel may still make the change later.
func (p *Place) SetOptions(ctx context.Context, opts Options) error {
	if attr, err := opts.attr(); err != nil || attr == (unix.MountAttr{}) {
		return err
	}

	change := func() error { return p.h.setOptions(p.path, opts) }
	if p.lent {
		change = func() error { return p.checkOptions(opts) }
	}
	if err := p.h.gate.do(ctx, kindChange, p.path, change); err != nil {
		return fmt.Errorf("cannot change the mount at %q: %w", p.path, err)
	}
	return nil
}

// attach bind-mounts src at path. The parameter place is a descriptor of the file at path.
func (c *changer) attach(src string, place int, path string, opts Options) (volume.Sight, error) {
	const clone = unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_NO_AUTOMOUNT | unix.AT_SYMLINK_NOFOLLOW
	tree := -1
	err := retry(func() (err error) { tree, err = unix.OpenTree(unix.AT_FDCWD, src, clone); return err })
	if c.noSetattr || errors.Is(err, unix.ENOSYS) {
		if err == nil {
			closeFD(tree)
		}
		return c.attachVisibly(src, place, path, opts)
	}
	if err != nil {
		return volume.Sight{}, err
	}
	defer closeFD(tree)
	if err := setAttributes(tree, opts); err != nil {
		return volume.Sight{}, err
	}

	err = retry(func() error {
		return unix.MoveMount(tree, "", place, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	})
	if err != nil {
		return volume.Sight{}, err
	}
	return c.inspectOpen(tree, path, opts)
}

// setAttributes sets the attributes of the mount whose root directory or file is open as fd.
func setAttributes(fd int, opts Options) error {
	attr, err := opts.attr()
	if err != nil || attr == (unix.MountAttr{}) {
		return err
	}
	if err := retry(func() error { return unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr) }); err != nil {
		return fmt.Errorf("cannot set mount options: %w", err)
	}
	return nil
}

// setOptions sets the options of the mount at path and checks the result.
func (c *changer) setOptions(path string, opts Options) error {
	if opts.ReadOnly {
		if err := c.addOptions(path, Options{ReadOnly: true}, 0); err != nil {
			return err
		}
	}

	fd, err := openNoLink(path)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	if err := setAttributes(fd, Options{Flags: opts.Flags}); err != nil {
		return err
	}

	_, err = c.inspectOpen(fd, path, opts)
	return err
}

// attachVisibly makes the bind mount on kernels without mount_setattr (before Linux 5.12). Such a
// kernel shows the mount before it becomes read-only, and attachVisibly can set no other option.
func (c *changer) attachVisibly(src string, place int, path string, opts Options) (volume.Sight, error) {
	if len(opts.Flags) > 0 {
		return volume.Sight{}, errors.New("this kernel cannot set mount options of one mount alone; that needs Linux 5.12")
	}
	if err := retry(func() error { return unix.Mount(src, c.fdLink(place), "", unix.MS_BIND, "") }); err != nil {
		return volume.Sight{}, err
	}
	if opts.ReadOnly {
		if err := c.addOptions(path, Options{ReadOnly: true}, 0); err != nil {
			return volume.Sight{}, err
		}
	}

	return c.look(path, false), nil
}

// inspectOpen inspects the mount whose root is open as fd, and checks that it has the requested
// options.
func (c *changer) inspectOpen(fd int, path string, opts Options) (volume.Sight, error) {
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
	case !opts.has(p.attr):
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
