package mount

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/proc"
	"github.com/volagent/volagent/volmgr/volume"
)

// Place is an open directory or file on which the agent mounts. If another file gets its path, the
// agent still mounts on the open one. Only one goroutine at a time may use a Place.
type Place struct {
	h    *Host
	file *os.File // opened with O_PATH; the garbage collector closes a forgotten one
	path string
	lent bool
	mode uint32 // file type and permissions
}

// OpenPlace opens the file at a path. It refuses a path that contains a symbolic link, because a
// user who may change the link could redirect the mount. After the time limit it fails with
// *HungError.
func (h *Host) OpenPlace(ctx context.Context, path string) (*Place, error) {
	path = filepath.Clean(path)
	return bounded(ctx, &h.gate, kindWalk, path, func() (*Place, error) {
		fd, err := openNoLinks(path)
		if err != nil {
			return nil, err
		}
		return newPlace(h, fd, path, false)
	})
}

// BorrowPlace copies a descriptor of another process. That process must be in this mount namespace,
// and its descriptor must be open (O_PATH) on path. BorrowPlace never walks to the path itself. The
// other process may close its descriptor as soon as BorrowPlace returns.
func (h *Host) BorrowPlace(pid, fd int, path string) (*Place, error) {
	var ns unix.Stat_t
	if err := unix.Stat(h.procPath(pid, "ns/mnt"), &ns); err != nil {
		return nil, fmt.Errorf("cannot look at pid %d: %w", pid, err)
	}
	if ns.Ino != h.namespace {
		return nil, fmt.Errorf("pid %d is in another mount namespace than the agent", pid)
	}

	// This link in procfs leads to the open file itself, so the kernel does not walk the file's
	// path.
	own, err := open(h.procPath(pid, "fd/"+strconv.Itoa(fd)), unix.O_PATH)
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

	return newPlace(h, own, path, true)
}

// newPlace makes a Place that owns the given descriptor.
func newPlace(h *Host, fd int, path string, lent bool) (*Place, error) {
	p := &Place{h: h, file: os.NewFile(uintptr(fd), path), path: path, lent: lent}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		p.Close()
		return nil, err
	}

	p.mode = st.Mode
	return p, nil
}

// Again duplicates the place. The caller must close the duplicate separately.
func (p *Place) Again() (*Place, error) {
	fd, err := unix.FcntlInt(p.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot keep %s open: %w", p.path, err)
	}
	again := *p
	again.file = os.NewFile(uintptr(fd), p.path)
	return &again, nil
}

// Close closes the descriptor. It ignores the error, because an O_PATH descriptor has no data to
// lose.
func (p *Place) Close() { _ = p.file.Close() }

func (p *Place) fd() int { return int(p.file.Fd()) }

// Path returns the path of the place.
func (p *Place) Path() string { return p.path }

// Dir reports whether the place is a directory.
func (p *Place) Dir() bool { return p.mode&unix.S_IFMT == unix.S_IFDIR }

// Lent reports whether the descriptor came from another process. In that case the agent must not
// walk to the path.
func (p *Place) Lent() bool { return p.lent }

// Look finds the mount at the place from the mount table alone. It opens no file and does not walk
// to the path. It ignores an autofs mount, which only triggers another mount. It does not know
// whether the mount works.
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

// top returns the uppermost mount at the place and ignores autofs mounts.
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

// isLike returns an error unless the uppermost mount has the requested options.
func (p *Place) isLike(like Like) error {
	top, err := p.top()
	switch {
	case err != nil:
		return err
	case top == nil:
		return errVanished
	case !like.has(attrOf(top)):
		return fmt.Errorf("the mount has the options %s instead of the requested ones", top.Options)
	}

	return nil
}

// autofs is a file system that mounts another file system on its root when a process first accesses
// it.
const autofs = "autofs"

// OnDemand reports whether Look found only an autofs mount.
func OnDemand(s volume.Sight) bool { return s.Seen == volume.SeenMount && s.Identity.FSType == autofs }
