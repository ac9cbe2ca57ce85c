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

// Place is an open directory or file on which the agent mounts. If the path later leads to another
// file, the agent still mounts on the file that it opened. Only one goroutine at a time may use a
// Place.
type Place struct {
	h    *Host
	file *os.File // opened with O_PATH; the garbage collector closes it if the caller forgets to
	path string
	lent bool
	mode uint32 // file type and permissions
}

// OpenPlace opens the file at path. It refuses a path that contains a symbolic link, because a user
// who can change the link could redirect the mount. After the time limit it fails with *HungError.
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

// BorrowPlace returns a Place for a descriptor that another process lends to the agent. The Place
// contains a copy of the descriptor. The other process must be in this mount namespace, and its
// descriptor must be open (O_PATH) on path. BorrowPlace does not open the path itself. The other
// process may close its descriptor as soon as BorrowPlace returns.
func (h *Host) BorrowPlace(pid, fd int, path string) (*Place, error) {
	var ns unix.Stat_t
	if err := unix.Stat(h.procPath(pid, "ns/mnt"), &ns); err != nil {
		return nil, fmt.Errorf("cannot look at pid %d: %w", pid, err)
	}
	if ns.Ino != h.namespace {
		return nil, fmt.Errorf("pid %d is in another mount namespace than the agent", pid)
	}

	// This link in procfs leads to the open file itself, so the kernel does not follow the path of
	// the file.
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

// newPlace returns a Place that owns the given descriptor.
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

// Duplicate returns a copy of the place, which the caller must close separately.
func (p *Place) Duplicate() (*Place, error) {
	fd, err := unix.FcntlInt(p.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot keep %s open: %w", p.path, err)
	}
	again := *p
	again.file = os.NewFile(uintptr(fd), p.path)
	return &again, nil
}

// Close closes the place. It ignores the error, because an O_PATH descriptor has no data to lose.
func (p *Place) Close() { _ = p.file.Close() }

func (p *Place) fd() int { return int(p.file.Fd()) }

// Path returns the path at which the place was opened.
func (p *Place) Path() string { return p.path }

// Dir reports whether the place is a directory.
func (p *Place) Dir() bool { return p.mode&unix.S_IFMT == unix.S_IFDIR }

// Lent reports whether another process lent the descriptor. In that case the agent must not open
// the path.
func (p *Place) Lent() bool { return p.lent }

// Look finds the mount at the place in the mount table. It does not open any file, so it cannot
// check whether the mount works. It ignores autofs mounts, because these only trigger other mounts.
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

// top returns the uppermost mount at the place, or nil if there is none. It ignores autofs mounts.
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

// checkOptions returns an error unless the uppermost mount has the requested options.
func (p *Place) checkOptions(opts Options) error {
	top, err := p.top()
	switch {
	case err != nil:
		return err
	case top == nil:
		return errVanished
	case !opts.has(attrOf(top)):
		return fmt.Errorf("the mount has the options %s instead of the requested ones", top.Options)
	}

	return nil
}

// autofs is the type of a file system that the kernel uses to mount another file system on first
// access.
const autofs = "autofs"

// OnDemand reports whether a mount that Look found is an autofs mount.
func OnDemand(s volume.Sight) bool { return s.Seen == volume.SeenMount && s.Identity.FSType == autofs }
