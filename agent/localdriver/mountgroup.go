package localdriver

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"

	"golang.org/x/sys/unix"
)

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
	var st unix.Stat_t
	if err := unix.Fstat(root, &st); err != nil {
		return fail(err)
	}
	// A root that is the group's with another mode is so by somebody's will. What is new belongs to
	// group 0, so there the mode tells.
	if int(st.Gid) == a.group && (a.group != 0 || groupMode(st.Mode) == st.Mode) {
		return nil
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
	give := func(fd int, st *unix.Stat_t) error { return giveGroup(fd, st, a.group) }
	if err = (treeWalk{ctx: ctx, visit: give}).below(root, 0); err == nil {
		err = give(root, &st)
	}
	if errors.Is(err, unix.EROFS) {
		return preconditionf("volume %q cannot be given to group %d: its filesystem is mounted read-only", t.v.ID, a.group)
	}
	if err != nil {
		return fail(err)
	}
	return nil
}

// giveGroup lets the group have one file or directory.
func giveGroup(fd int, st *unix.Stat_t, gid int) error {
	mode := st.Mode
	if int(st.Gid) != gid {
		if err := unix.Fchownat(fd, "", -1, gid, unix.AT_EMPTY_PATH); err != nil {
			return err
		}
		// The kernel takes set-user-id off a program that changes hands.
		var now unix.Stat_t
		if err := unix.Fstat(fd, &now); err != nil {
			return err
		}
		mode = now.Mode
	}
	if groupMode(mode) == mode {
		return nil
	}
	// fchmod does not take O_PATH; its name in /proc leads to just this file.
	return unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), groupMode(mode)&0o7777)
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
