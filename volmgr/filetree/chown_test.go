package filetree

import (
	"encoding/binary"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// aclEntry is one entry of an access control list.
type aclEntry struct {
	tag, rights uint16
	id          uint32
}

const noID = 0xffffffff

// setACL sets the access control list of a file in the kernel's format. The entries must be sorted
// by tag.
func setACL(t *testing.T, path, name string, entries ...aclEntry) {
	t.Helper()
	list := binary.LittleEndian.AppendUint32(nil, 2) // the version number of the format
	for _, e := range entries {
		list = binary.LittleEndian.AppendUint16(list, e.tag)
		list = binary.LittleEndian.AppendUint16(list, e.rights)
		list = binary.LittleEndian.AppendUint32(list, e.id)
	}
	check(t, unix.Lsetxattr(path, name, list, 0))
}

// forUser is an access control list that gives all rights to user 1234, and none to the owning
// group.
var forUser = []aclEntry{{0x01, 7, noID}, {0x02, 7, 1234}, {0x04, 0, noID}, {0x10, 7, noID}, {0x20, 0, noID}}

func change(t *testing.T, path string, to Owner) {
	t.Helper()
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW, 0)
	check(t, err)
	defer func() { _ = unix.Close(fd) }()
	st, err := stat(fd)
	check(t, err)
	check(t, Chown(fd, &st, to))
}

func owned(t *testing.T, path string) string {
	t.Helper()
	var st unix.Stat_t
	check(t, unix.Lstat(path, &st))
	return fmt.Sprintf("%d:%d %04o", st.Uid, st.Gid, st.Mode&0o7777)
}

// TestChown checks the owner, group and mode of each kind of file after a change.
func TestChown(t *testing.T) {
	widen := func(mode uint32) uint32 { return mode | mode&0o700>>3 | unix.S_ISGID }
	for name, c := range map[string]struct {
		dir  bool
		mode uint32
		to   Owner
		want string
	}{
		"owner alone":                 {mode: 0o640, to: Owner{UID: 5, GID: -1}, want: "5:0 0640"},
		"a file that the group runs":  {mode: 0o2700, to: Owner{UID: -1, GID: 6, Mode: widen}, want: "0:6 0770"},
		"a set-user-ID file":          {mode: 0o4711, to: Owner{UID: 5, GID: -1}, want: "5:0 0711"},
		"a set-ID file of that owner": {mode: 0o6711, to: Owner{UID: 0, GID: 0}, want: "0:0 0711"},
		"a directory":                 {dir: true, mode: 0o700, to: Owner{UID: -1, GID: 6, Mode: widen}, want: "0:6 2770"},
		"nothing":                     {mode: 0o640, to: Owner{UID: -1, GID: -1}, want: "0:0 0640"},
	} {
		path := t.TempDir() + "/f"
		if c.dir {
			check(t, os.Mkdir(path, 0o755))
		} else {
			check(t, os.WriteFile(path, nil, 0o644))
		}
		check(t, unix.Chmod(path, c.mode))
		change(t, path, c.to)
		if got := owned(t, path); got != c.want {
			t.Errorf("%s: has %s, want %s", name, got, c.want)
		}
	}
}

// TestChownACL checks that a change of owner removes the access control list. The owning group must
// not get rights that the list denied.
func TestChownACL(t *testing.T) {
	hasACL := func(path string) bool {
		fd, err := unix.Open(path, unix.O_PATH, 0)
		check(t, err)
		defer func() { _ = unix.Close(fd) }()
		has, err := HasACL(fd)
		check(t, err)
		return has
	}
	dir := t.TempDir()
	file := dir + "/file"
	check(t, os.WriteFile(file, nil, 0o600))
	setACL(t, file, accessACL, forUser...)
	setACL(t, dir, defaultACL, forUser...)
	if got := owned(t, file); got != "0:0 0770" || !hasACL(file) || !hasACL(dir) {
		t.Fatalf("the list is not in force: %s", got)
	}

	change(t, file, Owner{UID: 0, GID: 0})
	if !hasACL(file) {
		t.Error("the list is gone although the owner stays")
	}
	change(t, file, Owner{UID: 5, GID: -1})
	if got := owned(t, file); got != "5:0 0700" || hasACL(file) {
		t.Errorf("has %s, a list: %v", got, hasACL(file))
	}
	change(t, dir, Owner{UID: -1, GID: -1, DropACL: true})
	if hasACL(dir) {
		t.Error("the directory still gives a list to new files")
	}
}
