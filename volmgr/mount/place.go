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

// Place is a directory or a file to mount at, held open: whatever becomes of its path,
// it is this one that is mounted at. It is for one goroutine at a time.
type Place struct {
	h    *Host
	file *os.File // O_PATH; one that nobody closes is closed when it is found unused
	path string
	lent bool
	mode uint32 // type and permissions
}

// OpenPlace walks to a path. It refuses one that a link leads to: whoever may change
// the link could aim the mount elsewhere. The walk is bounded; *HungError.
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

// BorrowPlace takes a descriptor of another process, which has to be open (O_PATH) on
// path. It walks to the path itself at no time, and the descriptor may be closed as
// soon as this returns. The process has to be in this mount namespace.
func (h *Host) BorrowPlace(pid, fd int, path string) (*Place, error) {
	ns, err := h.namespaceOf(pid)
	if err != nil {
		return nil, fmt.Errorf("cannot look at pid %d: %w", pid, err)
	}
	if ns != h.namespace {
		return nil, fmt.Errorf("pid %d is in another mount namespace than the agent", pid)
	}
	// A link of procfs leads to the open file itself, and not by its path.
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

// placeOf takes over a descriptor.
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

// Again is another descriptor of the same place, to be closed on its own.
func (p *Place) Again() (*Place, error) {
	fd, err := unix.FcntlInt(p.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot keep %s open: %w", p.path, err)
	}
	again := *p
	again.file = os.NewFile(uintptr(fd), p.path)
	return &again, nil
}

// Close gives the descriptor back; nothing can be lost by it.
func (p *Place) Close() { _ = p.file.Close() }

func (p *Place) fd() int { return int(p.file.Fd()) }

// Path is where the place is.
func (p *Place) Path() string { return p.path }

// Dir reports whether it is a directory, File whether it is a regular file.
func (p *Place) Dir() bool { return p.mode&unix.S_IFMT == unix.S_IFDIR }

// Lent reports whether the descriptor came from another process, so that nobody here
// may walk to the path.
func (p *Place) Lent() bool { return p.lent }

// Look says what is mounted at the place, by the mount table alone: nothing is walked
// to, and nothing opened. What mounts the place on demand (autofs) is not counted. Of a
// mount that is there it is not known whether it works.
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

// top is the uppermost mount at the place, less one that is made on demand.
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

// isLike fails unless the uppermost mount has the options that are asked for.
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

// namespaceOf is the inode of a process's mount namespace.
func (h *Host) namespaceOf(pid int) (uint64, error) {
	var st unix.Stat_t
	err := unix.Stat(fmt.Sprintf("%s/%d/ns/mnt", h.proc, pid), &st)
	return st.Ino, err
}

// autofs is a file system whose root is mounted over on demand.
const autofs = "autofs"

// OnDemand reports whether a sight is of nothing but what mounts something on demand.
func OnDemand(s volume.Sight) bool { return s.Seen == volume.SeenMount && s.Identity.FSType == autofs }

// walk opens a path for reference alone, with no link on the way or at the end.
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
	case errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM): // before 5.6, or a filter
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
