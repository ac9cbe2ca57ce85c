package localdriver

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/volagent/volagent/volmgr/filetree"
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
	done, err := givenTo(root, a.group)
	if err != nil {
		return fail(err)
	}
	if done {
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
	err = giveTree(ctx, root, a.group)
	if errors.Is(err, unix.EROFS) {
		return preconditionf("volume %q cannot be given to group %d: its filesystem is mounted read-only", t.v.ID, a.group)
	}
	if err != nil {
		return fail(err)
	}
	return nil
}

// givenTo reports whether a volume belongs to the group, by its root. A root of that group with
// another mode was changed on purpose. A new volume belongs to group 0, so there the mode tells.
// A root with an access control list may let others in, so it does not count.
func givenTo(root, gid int) (bool, error) {
	var st unix.Stat_t
	if err := unix.Fstat(root, &st); err != nil {
		return false, err
	}
	hasACL, err := filetree.HasACL(root)
	if err != nil || hasACL || int(st.Gid) != gid {
		return false, err
	}
	return gid != 0 || groupMode(st.Mode) == st.Mode, nil
}

// giveTree lets the group have a directory and everything below it. The root comes last, because
// a root that belongs to the group stands for all below.
func giveTree(ctx context.Context, root, gid int) error {
	to := filetree.Owner{UID: -1, GID: gid, Mode: groupMode}
	give := func(fd int, st *unix.Statx_t) error { return filetree.Chown(fd, st, to) }
	if err := filetree.Below(ctx, root, give); err != nil {
		return err
	}
	var st unix.Statx_t
	if err := unix.Statx(root, "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS, &st); err != nil {
		return err
	}
	to.DropACL = true
	return filetree.Chown(root, &st, to)
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
