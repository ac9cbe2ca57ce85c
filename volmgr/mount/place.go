package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/volagent/volagent/volmgr/proc"

	"github.com/volagent/volagent/volmgr/volume"
	"golang.org/x/sys/unix"
)

// Place is a directory or file on which to mount, held open. If its path changes, the mount is
// still made on this file. A Place is for one goroutine at a time.
type Place struct {
	h    *Host
	file *os.File // O_PATH; a forgotten one is closed by the garbage collector
	path string
	lent bool
	mode uint32 // type and permissions
}

// OpenPlace walks to a path. It refuses a path with a symbolic link, because a user who may change
// the link could redirect the mount. After the time limit it fails with *HungError.
func (h *Host) OpenPlace(ctx context.Context, path string) (*Place, error) {
	path = filepath.Clean(path)
	return bounded(ctx, h, kindWalk, path, h.bound, func() (*Place, error) {
		fd, err := h.walk(path)
		if err != nil {
			return nil, err
		}
		return h.placeOf(fd, path, false)
	})
}

// BorrowPlace takes a descriptor of another process, which must be open (O_PATH) on path. It never
// walks to the path itself. The caller may close its descriptor as soon as BorrowPlace returns. The
// process must be in this mount namespace.
func (h *Host) BorrowPlace(pid, fd int, path string) (*Place, error) {
	ns, err := h.namespaceOf(pid)
	if err != nil {
		return nil, fmt.Errorf("cannot look at pid %d: %w", pid, err)
	}
	if ns != h.namespace {
		return nil, fmt.Errorf("pid %d is in another mount namespace than the agent", pid)
	}

	// A link in procfs leads to the open file itself, without walking its path.
	own, err := open(fmt.Sprintf("%s/%d/fd/%d", h.proc, pid, fd), unix.O_PATH)
	if err != nil {
		return nil, fmt.Errorf("cannot take descriptor %d of pid %d: %w", fd, pid, err)
	}

	is, err := h.fdPath(own)
	if err == nil && is != path {
		err = fmt.Errorf("descriptor %d of pid %d is open on %s, and not on %s", fd, pid, is, path)
	}
	if err != nil {
		closeFD(own)
		return nil, err
	}

	return h.placeOf(own, path, true)
}

// placeOf takes ownership of a descriptor.
func (h *Host) placeOf(fd int, path string, lent bool) (*Place, error) {
	p := &Place{h: h, file: os.NewFile(uintptr(fd), path), path: path, lent: lent}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		p.Close()
		return nil, err
	}

	p.mode = st.Mode
	return p, nil
}

// Again returns another descriptor of the same place, which must be closed separately.
func (p *Place) Again() (*Place, error) {
	fd, err := unix.FcntlInt(p.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot keep %s open: %w", p.path, err)
	}
	again := *p
	again.file = os.NewFile(uintptr(fd), p.path)
	return &again, nil
}

// Close closes the descriptor. It ignores the error because the descriptor was only for reference.
func (p *Place) Close() { _ = p.file.Close() }

func (p *Place) fd() int { return int(p.file.Fd()) }

// Path returns the path of the place.
func (p *Place) Path() string { return p.path }

// Dir reports whether the place is a directory.
func (p *Place) Dir() bool { return p.mode&unix.S_IFMT == unix.S_IFDIR }

// Lent reports whether the descriptor came from another process. In that case the agent must not
// walk to the path.
func (p *Place) Lent() bool { return p.lent }

// Look finds the mount at the place from the mount table alone. It walks to no path and opens
// nothing. It does not count an autofs mount, which mounts on demand. Whether a found mount works
// is unknown.
func (p *Place) Look() volume.Sight {
	top, err := p.top()
	switch {
	case err != nil:
		return volume.Sight{Seen: volume.SeenError, Detail: fmt.Sprintf("cannot look at %q: %v", p.path, err)}
	case top == nil:
		return volume.Sight{}
	}

	at := p.h.fromInfo(top)
	at.id.ID = p.h.uniqueID(top.ID)
	return volume.Sight{Seen: volume.SeenMount, Identity: at.id, ReadOnly: at.readOnly}
}

// top returns the uppermost mount at the place, ignoring autofs.
func (p *Place) top() (*proc.Mount, error) {
	table, err := p.h.table(func(m *proc.Mount) (bool, bool) {
		return m.Mountpoint != p.path || m.FSType == autofs, false
	})
	if err != nil {
		return nil, err
	}

	hidden := covered(table)
	for _, m := range slices.Backward(table) {
		if !hidden[m.ID] {
			return m, nil
		}
	}

	return nil, nil
}

// isLike fails unless the uppermost mount has the requested options.
func (p *Place) isLike(like Like) error {
	top, err := p.top()
	switch {
	case err != nil:
		return err
	case top == nil:
		return errVanished
	case !like.has(attrOf(top)):
		return fmt.Errorf("it has the options %s, and others were asked for", top.Options)
	}

	return nil
}

// namespaceOf returns the inode number of a process's mount namespace.
func (h *Host) namespaceOf(pid int) (uint64, error) {
	var st unix.Stat_t
	err := unix.Stat(fmt.Sprintf("%s/%d/ns/mnt", h.proc, pid), &st)
	return st.Ino, err
}

// autofs is a file system on whose root another mount is made on demand.
const autofs = "autofs"

// OnDemand reports whether a sight shows only an autofs mount.
func OnDemand(s volume.Sight) bool { return s.Seen == volume.SeenMount && s.Identity.FSType == autofs }

// walk opens a path with O_PATH and allows no symbolic link in it.
func (h *Host) walk(path string) (int, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	fd := -1
	err := retry(func() (err error) {
		fd, err = unix.Openat2(unix.AT_FDCWD, path, &how)
		return err
	})
	switch {
	case err == nil:
		return fd, nil
	case errors.Is(err, unix.ELOOP):
		end, err := filepath.EvalSymlinks(path)
		if err == nil {
			err = fmt.Errorf("a link leads on to %s; name that", end)
		}
		return -1, err
	case errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM): // before Linux 5.6, or refused by a filter
		end, err := filepath.EvalSymlinks(path)
		if err == nil && end != path {
			err = fmt.Errorf("a link leads on to %s; name that", end)
		}
		if err != nil {
			return -1, err
		}
		return h.openNoLink(path)
	default:
		return -1, err
	}
}
