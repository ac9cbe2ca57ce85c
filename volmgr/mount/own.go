package mount

import (
	"context"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/filetree"
)

// Ownership is the owner and the mode that files must have. A nil field leaves the attribute
// unchanged.
type Ownership struct {
	UID, GID *uint32
	Mode     *uint32 // permission bits, set-user-ID, set-group-ID and the sticky bit

	// Recursive requests the same change for all files below the directory. If the directory
	// already has the requested owner and mode, Own skips these files. For this reason Own changes
	// the directory last.
	Recursive bool

	// Default requests UID and GID only for a directory that still belongs to root:root.
	Default bool
}

// progressInterval is the interval between the progress reports of Own.
const progressInterval = time.Second

// Own gives the requested owner and mode to the directory at path, which is the root of a mount. If
// the directory already has them, Own does not check the files below it.
//
// Own changes symbolic links themselves and does not follow them. It skips other mounts below path.
// It does not make a file executable that no user can execute. Only directories get set-user-ID and
// set-group-ID bits, and other files lose these bits. Own removes the access control lists of the
// root, and of every file that gets another owner or group. If the root has such a list, Own also
// visits the files below it.
//
// Own calls progress about once a second with the number of visited files. The whole walk has no
// time limit, but each of its steps has one. If a step hangs, Own fails with *HungError. If ctx
// ends, the walk stops. The files that it has changed stay changed, and the next walk visits all
// files again.
func (h *Host) Own(ctx context.Context, path string, o Ownership, progress func(files int)) error {
	path = filepath.Clean(path)
	w := &walk{ctx: ctx, want: o}
	c := begin(ctx, &h.gate, kindOwn, path, func() (struct{}, error) { return struct{}{}, w.own(path) })
	err := follow(ctx, c, w, progress)
	if err != nil {
		return fmt.Errorf("cannot set the owner or mode of %q: %w", path, err)
	}
	return nil
}

// follow waits until a walk ends. It fails with *HungError if the walk visits no further file
// within the time limit.
func follow(ctx context.Context, c *call[struct{}], w *walk, progress func(int)) error {
	for c.before != nil {
		if err := c.before.wait(ctx, c.bound); err != nil {
			return err
		}

		c.before = c.gate.start(c)
	}

	tick := time.NewTicker(progressInterval)
	defer tick.Stop()

	last, lastAt := int64(0), time.Now()
	stop := ctx.Done()

	for {
		select {
		case <-c.done:
			return c.err
		case <-stop:
			// The walk stops at the next file. Own still waits for the end of the walk, because the
			// open files of the walk keep the mount busy.
			stop, lastAt = nil, time.Now()
		case <-tick.C:
		}

		if n := w.files.Load(); n != last {
			last, lastAt = n, time.Now()
			if stop != nil {
				progress(int(n))
			}
		}

		if time.Since(lastAt) > c.bound {
			return &HungError{Call: string(kindOwn), Path: c.key.path, Since: lastAt}
		}
	}
}

// walk changes the files of one directory tree.
type walk struct {
	ctx   context.Context
	want  Ownership
	files atomic.Int64
}

// own changes the directory at path last. Therefore, if the directory has the requested owner and
// mode, all files below it have them too.
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

// nothing reports whether no change is requested.
func (o Ownership) nothing() bool { return o.UID == nil && o.GID == nil && o.Mode == nil }

// met reports whether a file has the requested owner and mode. For a file with a set-user-ID or
// set-group-ID bit, it returns false, because a previous owner may have prepared such a file as a
// trap.
func (o Ownership) met(st unix.Statx_t) bool {
	ids := (o.UID == nil || st.Uid == *o.UID) && (o.GID == nil || st.Gid == *o.GID)
	mode := uint32(st.Mode)
	return ids && o.modeOf(mode) == mode && !filetree.HasSetID(&st)
}

// owner converts the request into the type of the package filetree.
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

// modeOf returns the mode that a file with the given mode must get. It does not make a file
// executable that no user can execute.
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
