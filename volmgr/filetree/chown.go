package filetree

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Owner is the requested owner of a file.
type Owner struct {
	UID, GID int // -1 means that the owner or group does not change
	// Mode returns the new mode of a file from its present mode. Both modes include the bits of the
	// file type. If Mode is nil, the mode of the file does not change.
	Mode func(mode uint32) uint32
	// DropACL is set to remove access control lists even if neither owner nor group changes.
	DropACL bool
}

// setID contains the bits that make a program run with the rights of the file's owner or group.
const setID = unix.S_ISUID | unix.S_ISGID

// Chown sets the owner, group and mode of an open file.
//
// The previous owner may be an attacker who prepared the file to keep rights after the change.
// Therefore Chown clears the set-user-ID and set-group-ID bits of a file that is not a directory.
// It clears them before the change of owner, because the kernel keeps some of them. It clears them
// again after the change, because the previous owner may have set them in the meantime. If the
// owner or the group changes, Chown also removes the access control lists.
func Chown(fd int, st *unix.Statx_t, to Owner) error {
	uid, gid := -1, -1
	if to.UID >= 0 && st.Uid != uint32(to.UID) {
		uid = to.UID
	}

	if to.GID >= 0 && st.Gid != uint32(to.GID) {
		gid = to.GID
	}

	changes := uid >= 0 || gid >= 0
	link := st.Mode&unix.S_IFMT == unix.S_IFLNK // a symbolic link has neither a mode nor an access control list
	if HasSetID(st) {
		if err := chmod(fd, uint32(st.Mode)&^setID); err != nil {
			return err
		}
	}

	if changes {
		if err := retry(func() error { return unix.Fchownat(fd, "", uid, gid, unix.AT_EMPTY_PATH) }); err != nil {
			return fmt.Errorf("chown: %w", err)
		}
	}

	if link {
		return nil
	}
	if changes || to.DropACL {
		if err := dropACL(fd, isDir(st)); err != nil {
			return err
		}
	}
	now, err := stat(fd)
	if err != nil {
		return err
	}
	want := uint32(now.Mode)
	if to.Mode != nil {
		want = to.Mode(want)
	}
	if !isDir(&now) {
		want &^= setID
	}
	if want == uint32(now.Mode) {
		return nil
	}
	return chmod(fd, want)
}

// HasSetID reports whether a file has the set-user-ID or set-group-ID bit. It returns false for a
// directory.
func HasSetID(st *unix.Statx_t) bool { return !isDir(st) && st.Mode&setID != 0 }

// nameOf returns a path that leads to the open file itself. System calls that refuse O_PATH
// descriptors accept this path.
func nameOf(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

func chmod(fd int, mode uint32) error {
	if err := retry(func() error { return unix.Chmod(nameOf(fd), mode&0o7777) }); err != nil {
		return fmt.Errorf("chmod: %w", err)
	}
	return nil
}

const (
	accessACL  = "system.posix_acl_access"
	defaultACL = "system.posix_acl_default"
)

// HasACL reports whether an open file has an access control list. For a directory, the default list
// for new files also counts.
func HasACL(fd int) (bool, error) {
	for _, name := range []string{accessACL, defaultACL} {
		list, err := readACL(fd, name)
		if err != nil || list != nil {
			return list != nil, err
		}
	}

	return false, nil
}

// dropACL removes the access control lists of an open file. The file must not be a symbolic link.
func dropACL(fd int, dir bool) error {
	list, err := readACL(fd, accessACL)
	if err != nil {
		return err
	}
	if list != nil {
		if err := dropAccessACL(fd, list); err != nil {
			return err
		}
	}
	if !dir {
		return nil
	}
	return removeACL(fd, defaultACL)
}

// dropAccessACL removes the access list of a file without giving more rights to the owning group.
// While the list exists, the group bits of the file's mode are the mask of the list. The mask may
// permit more than the list's entry for the owning group.
func dropAccessACL(fd int, list []byte) error {
	st, err := stat(fd)
	if err != nil {
		return err
	}

	mode := uint32(st.Mode)
	mode = mode&^0o070 | mode&(groupRights(list)<<3)
	if mode != uint32(st.Mode) {
		if err := chmod(fd, mode); err != nil { // chmod also reduces the mask of the list
			return err
		}
	}

	return removeACL(fd, accessACL)
}

// groupRights returns the rights in the list's entry for the owning group, from 0 to 7. A list has
// a header of 4 bytes and entries of 8 bytes. Each entry contains a tag, rights and an id, all in
// little-endian order (linux/posix_acl_xattr.h).
func groupRights(list []byte) uint32 {
	const header, entry, groupObj = 4, 8, 0x04
	for at := header; at+entry <= len(list); at += entry {
		if binary.LittleEndian.Uint16(list[at:]) == groupObj {
			return uint32(binary.LittleEndian.Uint16(list[at+2:])) & 7
		}
	}

	return 0
}

// maxACL is the maximum size of an access control list in the kernel, in bytes (XATTR_SIZE_MAX).
const maxACL = 1 << 16

// readACL returns an access control list. It returns nil if the file has none or if the file system
// does not support lists.
func readACL(fd int, name string) ([]byte, error) {
	var list []byte
	n := 0
	get := func() (err error) {
		n, err = unix.Getxattr(nameOf(fd), name, list)
		return err
	}
	err := retry(get) // asks only for the size first, because nearly no file has a list
	if err == nil {
		list = make([]byte, maxACL)
		err = retry(get)
	}
	if noACL(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read its access control list: %w", err)
	}
	return list[:n:n], nil
}

func removeACL(fd int, name string) error {
	err := retry(func() error { return unix.Removexattr(nameOf(fd), name) })
	if err != nil && !noACL(err) {
		return fmt.Errorf("cannot remove its access control list: %w", err)
	}
	return nil
}

func noACL(err error) bool { return errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EOPNOTSUPP) }
