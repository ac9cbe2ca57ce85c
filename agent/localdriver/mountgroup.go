package localdriver

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/mounts"
	"github.com/volagent/volagent/agent/localdriver/request"
	"github.com/volagent/volagent/volmgr/filetree"
)

// giveToGroup makes a volume, which is mounted at the path at, belong to the group that a
// capability names. It returns an error while the volume is published for another group.
func (t *target) giveToGroup(ctx context.Context, a request.Access, at string) error {
	if a.Group < 0 {
		return nil
	}

	fail := func(err error) error {
		return fmt.Errorf("cannot give volume %q to group %d: %w", t.v.ID, a.Group, err)
	}
	root, err := mounts.OpenWritable(at)
	if err != nil {
		return fail(err)
	}
	// Closing a directory cannot lose data.
	defer func() { _ = unix.Close(root) }()

	done, err := givenTo(root, a.Group)
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
		if u.Point != at && u.Point != t.path {
			return csierr.Preconditionf("volume %q cannot be given to group %d: it is published at %q and belongs to another group", t.v.ID, a.Group, u.Point)
		}
	}

	err = giveTree(ctx, root, a.Group)
	if errors.Is(err, unix.EROFS) {
		return csierr.Preconditionf("volume %q cannot be given to group %d: its filesystem is mounted read-only", t.v.ID, a.Group)
	}
	if err != nil {
		return fail(err)
	}

	return nil
}

// givenTo reports whether a volume belongs to a group. It examines only the root directory of the
// volume.
//
// A root that belongs to the group counts even if its mode differs, because a user may have changed
// the mode on purpose. Every new volume belongs to group 0, so for group 0, givenTo also compares
// the mode. A root with an access control list does not count, because the list may permit access
// to other users.
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

// giveTree gives a group access to a directory and everything below it. It changes the root last.
// So if the root belongs to the group, everything below it does, too.
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

// groupMode returns a file's new mode, which gives the group the same rights as the owner. For a
// directory, it adds the set-group-ID bit, so that files that are made in it later also belong to
// the group.
func groupMode(mode uint32) uint32 {
	switch mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return mode
	case unix.S_IFDIR:
		return mode | unix.S_ISGID | 0o070
	}
	return mode | mode&0o700>>3
}
