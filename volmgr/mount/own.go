package mount

import (
	"context"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/volagent/volagent/volmgr/filetree"
	"golang.org/x/sys/unix"
)

// Ownership is who shall own files, and with which mode. Nil is as it is.
type Ownership struct {
	UID, GID *uint32
	Mode     *uint32 // permission bits, set-id bits and the sticky bit
	// Recursive asks for all that is below too, unless the directory itself is as
	// it should be: that is changed last.
	Recursive bool
	// Default has UID and GID given only to a directory that belongs to root (0:0).
	Default bool
}

// tellEvery is how often a walk tells how far it is.
const tellEvery = time.Second

// Own gives the directory at path, the root of a mount, the owner and mode that
// are asked for. Where it has them already nothing else is looked at, however
// much lies below. Links are neither followed nor left out, and what is mounted
// below is left alone. A file that cannot be executed by anybody does not become
// executable by the mode. Set-user-ID and set-group-ID bits are for directories: other files
// lose them. Access control lists are removed from the root, and from every file whose owner
// or group changes; a root that has one is not as asked.
//
// Tell is called about once a second with how many files were seen. A walk has no
// bound, but each part of it has: *HungError. If ctx ends the walk stops; what it
// did stays, and the next one goes over all of it again.
func (h *Host) Own(ctx context.Context, path string, o Ownership, tell func(files int)) error {
	path = filepath.Clean(path)
	w := &walk{ctx: ctx, want: o}
	c := begin(ctx, h, kindOwn, path, h.bound, func() (struct{}, error) { return struct{}{}, w.own(path) })
	err := h.follow(ctx, c, w, tell)
	if err != nil {
		return fmt.Errorf("cannot set the owner or mode of %q: %w", path, err)
	}
	return nil
}

// follow waits for a walk for as long as it gets on.
func (h *Host) follow(ctx context.Context, c *call[struct{}], w *walk, tell func(int)) error {
	for c.before != nil {
		if err := c.before.wait(ctx, c.bound); err != nil {
			return err
		}
		c.before = c.gate.start(c)
	}
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	last, lastAt := int64(0), time.Now()
	stop := ctx.Done()
	for {
		select {
		case <-c.done:
			return c.err
		case <-stop:
			// It stops at the next file; what it has open would keep the mount busy.
			stop, lastAt = nil, time.Now()
		case <-tick.C:
		}
		if n := w.files.Load(); n != last {
			last, lastAt = n, time.Now()
			if stop != nil {
				tell(int(n))
			}
		}
		if time.Since(lastAt) > h.bound {
			return &HungError{Call: string(kindOwn), Path: c.key.path, Since: lastAt}
		}
	}
}

// walk changes one tree.
type walk struct {
	ctx   context.Context
	want  Ownership
	files atomic.Int64
}

// own changes the directory at path last, because a root that is as asked stands for all below.
func (w *walk) own(path string) error {
	fd, err := open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	st, err := statx(fd, "", unix.AT_EMPTY_PATH, ownMask)
	if err != nil {
		return err
	}
	if w.want.Default && (st.Uid != 0 || st.Gid != 0) {
		w.want.UID, w.want.GID = nil, nil
	}
	if w.want.nothing() {
		return nil
	}
	hasACL, err := filetree.HasACL(fd)
	asAsked := w.want.met(st) && !hasACL
	if err != nil || asAsked {
		return err
	}
	if w.want.Recursive {
		if err := filetree.Below(w.ctx, fd, w.visit); err != nil {
			return err
		}
	}
	to := w.want.owner()
	to.DropACL = true
	return filetree.Chown(fd, &st, to)
}

const ownMask = unix.STATX_TYPE | unix.STATX_MODE | unix.STATX_UID | unix.STATX_GID

// visit changes one file below the root.
func (w *walk) visit(fd int, st *unix.Statx_t) error {
	w.files.Add(1)
	if w.want.met(*st) {
		return nil
	}
	return filetree.Chown(fd, st, w.want.owner())
}

// nothing reports whether a file may be as it is.
func (o Ownership) nothing() bool { return o.UID == nil && o.GID == nil && o.Mode == nil }

// met reports whether a file is as it should be. A file that runs with its owner's rights is
// not: it may be the work of a previous owner.
func (o Ownership) met(st unix.Statx_t) bool {
	ids := (o.UID == nil || st.Uid == *o.UID) && (o.GID == nil || st.Gid == *o.GID)
	mode := uint32(st.Mode)
	return ids && o.modeOf(mode) == mode && !filetree.HasSetID(&st)
}

// owner words what is asked for as filetree takes it.
func (o Ownership) owner() filetree.Owner {
	to := filetree.Owner{UID: -1, GID: -1, Mode: o.modeOf}
	if o.UID != nil {
		to.UID = int(*o.UID)
	}
	if o.GID != nil {
		to.GID = int(*o.GID)
	}
	return to
}

// modeOf returns the mode that a file with this mode should have. A file that nobody may execute
// does not become a program.
func (o Ownership) modeOf(mode uint32) uint32 {
	kind := mode & unix.S_IFMT
	if o.Mode == nil || kind == unix.S_IFLNK {
		return mode
	}
	want := *o.Mode
	if kind != unix.S_IFDIR {
		if want &= 0o777; mode&0o111 == 0 {
			want &^= 0o111
		}
	}
	return kind | want
}
