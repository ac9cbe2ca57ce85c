package mount

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Ownership is who shall own files, and with which mode. Nil is as it is.
type Ownership struct {
	UID, GID *uint32
	Mode     *uint32 // permission bits, set-id bits and the sticky bit
	// Recursive asks for all that is below too, unless the directory itself is as
	// it should be: that is changed last.
	Recursive bool
}

// tellEvery is how often a walk tells how far it is.
const tellEvery = time.Second

// Own gives the directory at path, the root of a mount, the owner and mode that
// are asked for. Where it has them already nothing else is looked at, however
// much lies below. Links are neither followed nor left out, and what is mounted
// below is left alone. A file that cannot be executed by anybody does not become
// executable by the mode, nor get set-id bits by it: those are for directories.
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

// deepest is how far down a walk goes: each level costs an open file.
const deepest = 1000

func (w *walk) own(path string) error {
	fd, err := open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	st, err := statx(fd, "", unix.AT_EMPTY_PATH, ownMask)
	if err != nil || w.want.met(st) {
		return err
	}
	if w.want.Recursive {
		if err := w.below(fd, path, 0); err != nil {
			return err
		}
	}
	return w.want.apply(fd, st) // last, because it stands for all of them
}

const ownMask = unix.STATX_TYPE | unix.STATX_MODE | unix.STATX_UID | unix.STATX_GID

// below changes all that is in an open directory, which path names in errors.
func (w *walk) below(dir int, path string, depth int) error {
	if depth == deepest {
		return fmt.Errorf("%q lies more than %d directories deep", path, deepest)
	}
	again, err := openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY) // with a place of its own to read from
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(again), path)
	defer func() { _ = f.Close() }() // it was only read
	for {
		names, err := f.Readdirnames(1000)
		for _, name := range names {
			if w.ctx.Err() != nil {
				return w.ctx.Err()
			}
			if err := w.one(again, name, filepath.Join(path, name), depth); err != nil {
				return err
			}
		}
		if len(names) == 0 {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

// one changes one entry of a directory, and what is in it. One that is gone by now,
// or that another mount hides, needs nothing.
func (w *walk) one(dir int, name, path string, depth int) error {
	w.files.Add(1)
	fd := -1
	err := retry(func() (err error) {
		fd, err = unix.Openat2(dir, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_XDEV})
		return err
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EXDEV) {
		return nil
	}
	if err == nil {
		defer closeFD(fd)
		err = w.entry(fd, path, depth)
	}
	var deeper *os.PathError
	if err != nil && !errors.As(err, &deeper) && w.ctx.Err() == nil {
		return &os.PathError{Op: "change", Path: path, Err: err}
	}
	return err
}

func (w *walk) entry(fd int, path string, depth int) error {
	st, err := statx(fd, "", unix.AT_EMPTY_PATH, ownMask)
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		if err := w.below(fd, path, depth+1); err != nil {
			return err
		}
	}
	if w.want.met(st) {
		return nil
	}
	return w.want.apply(fd, st)
}

// met reports whether a file is as it should be.
func (o Ownership) met(st unix.Statx_t) bool {
	return (o.UID == nil || st.Uid == *o.UID) && (o.GID == nil || st.Gid == *o.GID) && !o.chmods(st)
}

// modeFor is the mode that a file should have.
func (o Ownership) modeFor(st unix.Statx_t) uint32 {
	mode := *o.Mode
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return mode
	}
	if mode &= 0o777; st.Mode&0o111 == 0 {
		mode &^= 0o111
	}
	return mode
}

func (o Ownership) chmods(st unix.Statx_t) bool {
	return o.Mode != nil && st.Mode&unix.S_IFMT != unix.S_IFLNK && uint32(st.Mode)&0o7777 != o.modeFor(st)
}

// apply changes an open file. The owner comes first, since a change of it takes
// set-id bits away.
func (o Ownership) apply(fd int, st unix.Statx_t) error {
	uid, gid := -1, -1
	if o.UID != nil && *o.UID != st.Uid {
		uid = int(*o.UID)
	}
	if o.GID != nil && *o.GID != st.Gid {
		gid = int(*o.GID)
	}
	if uid != -1 || gid != -1 {
		if err := retry(func() error { return unix.Fchownat(fd, "", uid, gid, unix.AT_EMPTY_PATH) }); err != nil {
			return fmt.Errorf("chown: %w", err)
		}
	}
	if o.Mode == nil || st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return nil
	}
	// By the link, because fchmod(2) refuses a file that is open for reference alone.
	err := retry(func() error {
		return unix.Fchmodat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), o.modeFor(st), 0)
	})
	if err != nil {
		return fmt.Errorf("chmod: %w", err)
	}
	return nil
}
