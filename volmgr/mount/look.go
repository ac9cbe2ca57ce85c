package mount

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/volume"
)

// Look inspects the mount at path and does not follow a symbolic link. If path does not exist or is
// no mount point, the result is SeenNothing. A mount works if Look can open its root. Look does not
// open a device node, because an open may have side effects. After the time limit the result is
// SeenHung. While the system call of a Look hangs, every further Look at the same path returns
// SeenHung at once.
func (h *Host) Look(ctx context.Context, path string) volume.Sight {
	return sightOf(ctx, path, h.beginLook(ctx, path, false))
}

// looksAtOnce is the number of paths that LookAll inspects in parallel.
const looksAtOnce = 16

// LookAll inspects paths in parallel, each like Look, so that a hanging mount does not delay the
// others. The results have the order of the paths. The agent is about to unmount the mounts at the
// paths in leaving. LookAll does not open these mounts, because an open file would make the unmount
// fail. It therefore does not know whether they work.
func (h *Host) LookAll(ctx context.Context, paths []string, leaving map[string]bool) []volume.Sight {
	sights := make([]volume.Sight, len(paths))
	var begun [looksAtOnce]*call[volume.Sight] // begun[i%looksAtOnce] is the running call for paths[i]
	for i, path := range paths {
		if done := i - looksAtOnce; done >= 0 {
			sights[done] = sightOf(ctx, paths[done], begun[i%looksAtOnce])
		}
		begun[i%looksAtOnce] = h.beginLook(ctx, path, leaving[path])
	}

	for i := max(len(paths)-looksAtOnce, 0); i < len(paths); i++ {
		sights[i] = sightOf(ctx, paths[i], begun[i%looksAtOnce])
	}
	return sights
}

// beginLook starts a Look in the background. It returns nil if the path is not absolute.
func (h *Host) beginLook(ctx context.Context, path string, leaving bool) *call[volume.Sight] {
	if !filepath.IsAbs(path) {
		return nil
	}
	path = filepath.Clean(path)
	return begin(ctx, &h.gate, kindLook, path, func() (volume.Sight, error) { return h.look(path, leaving), nil })
}

// sightOf returns the result of the call that beginLook started.
func sightOf(ctx context.Context, path string, c *call[volume.Sight]) volume.Sight {
	if c == nil {
		return volume.Sight{Seen: volume.SeenError, Detail: fmt.Sprintf("cannot look at %q: not an absolute path", path)}
	}

	s, err := c.wait(ctx)
	if err == nil {
		return s
	}

	var hung *HungError
	if errors.As(err, &hung) {
		return volume.Sight{Seen: volume.SeenHung, Detail: hung.since()}
	}
	return volume.Sight{Seen: volume.SeenError, Unchecked: ctx.Err() != nil, Detail: fmt.Sprintf("cannot look at %q: %v", c.key.path, err)}
}

// look inspects the mount at path. It starts again if the mount changes during the inspection.
func (r *reader) look(path string, leaving bool) volume.Sight {
	for range 3 {
		s, err := r.lookOnce(path, leaving)
		if err == nil {
			return s
		}
	}
	return volume.Sight{Seen: volume.SeenError, Detail: fmt.Sprintf("cannot look at %q: %v", path, errVanished)}
}

// lookOnce inspects the mount at path once. Its only error is errVanished.
func (r *reader) lookOnce(path string, leaving bool) (volume.Sight, error) {
	st, p, err := r.find(path, 0)
	if p != nil && err == nil && !leaving {
		err = r.probe(path, st, *p)
	}
	switch {
	case errors.Is(err, errVanished):
		return volume.Sight{}, err
	case err != nil:
		return failed(path, p, err), nil
	case p == nil:
		return volume.Sight{}, nil
	}

	s := volume.Sight{Seen: volume.SeenMount, Identity: p.id, ReadOnly: p.readOnly}
	if dev := loopNode(st); dev != "" {
		s.Identity.Backing = r.Block(dev).Backing
	}
	if p.deleted {
		s.Detail = "the source of the mount was deleted"
	}
	return s, nil
}

// probe returns an error if the mount at path does not work.
func (r *reader) probe(path string, st unix.Statx_t, p point) error {
	if r.deviceGone(p.id.Device) {
		return fmt.Errorf("device %s: %w", p.id.Device, unix.ENODEV)
	}

	const nofollow = unix.AT_SYMLINK_NOFOLLOW | unix.AT_STATX_FORCE_SYNC
	flags := unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOFOLLOW | unix.O_NOCTTY
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFBLK:
		if dev := device(st.Rdev_major, st.Rdev_minor); r.deviceGone(dev) {
			return fmt.Errorf("device %s: %w", dev, unix.ENODEV)
		}
		if dev := loopNode(st); dev != "" && r.unattached(dev) {
			return fmt.Errorf("no file is attached to loop device %s: %w", dev, unix.ENXIO)
		}

		_, err := statx(unix.AT_FDCWD, path, nofollow, unix.STATX_BASIC_STATS)
		return err
	case unix.S_IFDIR, 0: // 0 means that the type is unknown
		if p.id.FSType == "autofs" {
			return nil // opening an autofs mount would trigger a mount
		}

		flags |= unix.O_DIRECTORY
	default:
		_, err := statx(unix.AT_FDCWD, path, nofollow, unix.STATX_BASIC_STATS)
		return err
	}

	fd, err := open(path, flags)
	if errors.Is(err, unix.EAGAIN) {
		return nil // another process has a lease on the file; the file system works
	}
	if err != nil {
		return err
	}
	defer closeFD(fd)
	// Some FUSE file systems do not implement open, but all of them answer statx.
	again, err := statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, lookMask|unix.STATX_BASIC_STATS)
	if err != nil {
		return err
	}
	if again.Mnt_id != st.Mnt_id && again.Mask&st.Mask&unix.STATX_MNT_ID_UNIQUE != 0 {
		return errVanished
	}
	return nil
}

// failed returns the result of Look after an error. The point p is nil if the error occurred before
// the mount was known.
func failed(path string, p *point, err error) volume.Sight {
	if p == nil {
		return volume.Sight{Seen: volume.SeenError, Detail: fmt.Sprintf("cannot look at %q: %v", path, err)}
	}

	s := volume.Sight{Seen: volume.SeenError, Identity: p.id, ReadOnly: p.readOnly}
	s.Detail = fmt.Sprintf("cannot open %q: %v", path, err)
	if dead(err) {
		s.Seen = volume.SeenDead
	}
	return s
}

// dead reports whether an error means that the storage of a mount is permanently gone. Other errors
// may mean that the storage is temporarily unavailable, or that the agent may not access it.
func dead(err error) bool {
	for _, e := range []unix.Errno{
		unix.ENOTCONN, unix.ECONNABORTED, // a FUSE file system without its daemon
		unix.ESTALE,                             // an NFS mount with a stale handle
		unix.EIO,                                // a file system that was shut down
		unix.ENODEV, unix.ENXIO, unix.ENOMEDIUM, // a missing device
		unix.ESHUTDOWN, unix.EHOSTDOWN, unix.EREMOTEIO, // unreachable network storage
	} {
		if errors.Is(err, e) {
			return true
		}
	}

	return false
}
