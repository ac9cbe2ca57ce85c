package localdriver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// maxGroupDepth bounds the directories that are open at once while a volume is given to a group.
const maxGroupDepth = 1000

// parseGroup reads a volume_mount_group, a number of a group; none is -1.
func parseGroup(group string) (int, error) {
	if group == "" {
		return -1, nil
	}
	gid, err := strconv.ParseUint(group, 10, 32)
	if err != nil || gid == math.MaxUint32 { // which means "leave it" to chown
		return -1, invalidf("volume_mount_group %q is not the number of a group", group)
	}
	return int(gid), nil
}

// giveToGroup makes the volume, of which at is a mount, belong to the group of its capability.
// It is refused while the volume is published for another one.
func (t *target) giveToGroup(ctx context.Context, a access, at string) error {
	if a.group < 0 {
		return nil
	}
	fail := func(err error) error {
		return fmt.Errorf("cannot give volume %q to group %d: %w", t.v.ID, a.group, err)
	}
	root, err := openWritable(at)
	if err != nil {
		return fail(err)
	}
	defer func() { _ = unix.Close(root) }() // a directory, nothing is written to it
	w := groupWalk{ctx: ctx, gid: a.group}
	if has, err := w.has(root); has || err != nil {
		return err
	}
	uses, err := t.uses()
	if err != nil {
		return err
	}
	for _, u := range uses {
		if u.point != at && u.point != t.path {
			return preconditionf("volume %q cannot be given to group %d: it is published at %q and belongs to another group", t.v.ID, a.group, u.point)
		}
	}
	// The root comes last: that it is the group's says that all below is.
	if err = w.below(root, 0); err == nil {
		err = w.give(root)
	}
	if errors.Is(err, unix.EROFS) {
		return preconditionf("volume %q cannot be given to group %d: its filesystem is mounted read-only", t.v.ID, a.group)
	}
	if err != nil {
		return fail(err)
	}
	return nil
}

// groupWalk gives a tree to a group by directory descriptors alone. They come from a copy of the
// mount that has no other mounts in it, and no link is followed.
type groupWalk struct {
	ctx context.Context
	gid int
}

// has tells whether what is open belongs to the group already.
func (w groupWalk) has(fd int) (bool, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, err
	}
	return int(st.Gid) == w.gid && groupMode(st.Mode) == st.Mode, nil
}

// below gives everything in a directory to the group, not the directory itself.
func (w groupWalk) below(dir, depth int) error {
	if depth > maxGroupDepth {
		return preconditionf("its directories are nested deeper than %d", maxGroupDepth)
	}
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "directory")
	defer func() { _ = f.Close() }() // it is only read
	for {
		names, err := f.Readdirnames(512)
		for _, name := range names {
			if err := w.entry(fd, name, depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (w groupWalk) entry(dir int, name string, depth int) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	// O_PATH: opening a device or a pipe would do something.
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil // removed meanwhile
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		if err := w.below(fd, depth+1); err != nil {
			return err
		}
	}
	return w.give(fd)
}

// give lets the group have one file or directory.
func (w groupWalk) give(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if int(st.Gid) != w.gid {
		if err := unix.Fchownat(fd, "", -1, w.gid, unix.AT_EMPTY_PATH); err != nil {
			return err
		}
		// The kernel takes set-user-id off a program that changes hands.
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
	}
	mode := groupMode(st.Mode)
	if mode == st.Mode {
		return nil
	}
	// fchmod does not take O_PATH; its name in /proc leads to just this file.
	return unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), mode&0o7777)
}

// groupMode is the mode with which a group can use a file as its owner does. What is made in a
// directory later is to be the group's, too.
func groupMode(mode uint32) uint32 {
	switch mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return mode
	case unix.S_IFDIR:
		return mode | unix.S_ISGID | 0o070
	}
	return mode | mode&0o700>>3
}
