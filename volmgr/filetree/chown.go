package filetree

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Owner is the owner that a file shall have.
type Owner struct {
	UID, GID int // -1 keeps the present one
	// Mode returns the mode that a file shall have from the one that it has, both with the bits
	// of its type. Nil keeps the mode.
	Mode func(mode uint32) uint32
	// DropACL removes access control lists even if neither owner nor group changes.
	DropACL bool
}

// setID are the bits that run a program with its owner's or group's rights.
const setID = unix.S_ISUID | unix.S_ISGID

// Chown gives an open file its owner, group and mode.
//
// The previous owner may be an attacker who prepared the file, so it must not carry rights
// over. A file that is no directory loses its set-user-ID and set-group-ID bits before the
// change, because the kernel keeps some of them, and again after it, because the previous owner
// may set them in between. If owner or group changes, the access control lists go too.
func Chown(fd int, st *unix.Statx_t, to Owner) error {
	uid, gid := -1, -1
	if to.UID >= 0 && st.Uid != uint32(to.UID) {
		uid = to.UID
	}
	if to.GID >= 0 && st.Gid != uint32(to.GID) {
		gid = to.GID
	}
	changes := uid >= 0 || gid >= 0
	link := st.Mode&unix.S_IFMT == unix.S_IFLNK // it has neither a mode nor a list
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

// HasSetID reports whether a file that is no directory has a set-user-ID or set-group-ID bit.
func HasSetID(st *unix.Statx_t) bool { return !isDir(st) && st.Mode&setID != 0 }

// nameOf leads to just the file that is open, also for calls that refuse O_PATH.
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

// HasACL reports whether an open file has an access control list, or a directory one for the
// files that are made in it.
func HasACL(fd int) (bool, error) {
	for _, name := range []string{accessACL, defaultACL} {
		list, err := readACL(fd, name)
		if err != nil || list != nil {
			return list != nil, err
		}
	}
	return false, nil
}

// dropACL removes the access control lists of an open file that is no symbolic link.
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

// dropAccessACL removes a list and keeps what the owning group may do. While there is a list, the
// group bits of the mode are its mask, which may allow more than the group's own entry does.
func dropAccessACL(fd int, list []byte) error {
	st, err := stat(fd)
	if err != nil {
		return err
	}
	mode := uint32(st.Mode)
	mode = mode&^0o070 | mode&(groupRights(list)<<3)
	if mode != uint32(st.Mode) {
		if err := chmod(fd, mode); err != nil { // this narrows the mask
			return err
		}
	}
	return removeACL(fd, accessACL)
}

// groupRights returns what the entry of the owning group allows, 0 to 7. A list has a header of 4
// bytes and entries of 8: tag, rights and id, all little-endian (linux/posix_acl_xattr.h).
func groupRights(list []byte) uint32 {
	const header, entry, groupObj = 4, 8, 0x04
	for at := header; at+entry <= len(list); at += entry {
		if binary.LittleEndian.Uint16(list[at:]) == groupObj {
			return uint32(binary.LittleEndian.Uint16(list[at+2:])) & 7
		}
	}
	return 0
}

// maxACL is the most bytes that the kernel gives of a list (XATTR_SIZE_MAX).
const maxACL = 1 << 16

// readACL returns nil where there is no list, or the file system has none.
func readACL(fd int, name string) ([]byte, error) {
	var list []byte
	n := 0
	get := func() (err error) {
		n, err = unix.Getxattr(nameOf(fd), name, list)
		return err
	}
	err := retry(get) // the size alone: nearly no file has a list
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
