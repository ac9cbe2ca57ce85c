package treecopy

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const (
	// linksDir is a temporary directory beside the copy of a tree. For each file that has several
	// names, it contains one name of the file's copy.
	linksDir = "links"
	// maxPins limits how many files the copier keeps open to prevent the reuse of their inode
	// numbers.
	maxPins = 1000
)

// hardLinks gives the copy of a file with several names the same names.
//
// It recognizes a file by its device and inode numbers. But a volume may be in use during the copy:
// if a file is deleted, another file can get its inode number. Therefore hardLinks keeps the first
// maxPins files open, which reserves their numbers. It recognizes further files by their birth time
// as well. On a filesystem without birth times, each name of a further file becomes a separate
// copy. These copies cost space, but no name ever gets the content of another file.
type hardLinks struct {
	dir    *os.File // the open directory linksDir
	parent int      // the open directory that contains linksDir
	pins   []*os.File
	pinned map[string]bool // the keys of the files that pins keeps open
	// trust is true if no file is deleted during the copy, so inode numbers alone identify files.
	trust bool
}

func newHardLinks(parent int) (*hardLinks, error) {
	err := unix.Mkdirat(parent, linksDir, 0o700)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, err
	}
	dir, err := openDir(parent, linksDir)
	if err != nil {
		return nil, err
	}
	// a copy that did not finish has left names of its own files
	if err := emptyLinks(dir); err != nil {
		return nil, errors.Join(err, dir.Close())
	}

	return &hardLinks{dir: dir, parent: parent, pinned: map[string]bool{}}, nil
}

func severalNames(st *unix.Statx_t) bool {
	return st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR
}

// key returns the name of a file in linksDir. It contains the device number, because the subvolumes
// of a btrfs use the same inode numbers on different devices, and any user can create subvolumes.
func (h *hardLinks) key(st *unix.Statx_t) string {
	key := fmt.Sprintf("%d-%d-%d", st.Dev_major, st.Dev_minor, st.Ino)
	if hasBirthTime(st) {
		key += fmt.Sprintf("-%d.%d", st.Btime.Sec, st.Btime.Nsec)
	}
	return key
}

func hasBirthTime(st *unix.Statx_t) bool { return st.Mask&unix.STATX_BTIME != 0 }

// link adds another name to the copy of a file, if the file was already copied. It reports whether
// it added the name. The file must be open, so that its inode number cannot be reused.
func (h *hardLinks) link(st *unix.Statx_t, to int, toName string) (bool, error) {
	if !severalNames(st) {
		return false, nil
	}

	key := h.key(st)
	if !h.pinned[key] && !hasBirthTime(st) && !h.trust {
		return false, nil
	}

	err := unix.Linkat(int(h.dir.Fd()), key, to, toName, 0)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}

	return err == nil, err
}

// add records the copy of a file, which must still be open. If taken is true, h keeps the file open
// and closes it later.
func (h *hardLinks) add(file *os.File, st *unix.Statx_t, to int, toName string) (taken bool, err error) {
	if !severalNames(st) {
		return false, nil
	}

	pin := !h.trust && len(h.pins) < maxPins
	if !pin && !hasBirthTime(st) && !h.trust {
		return false, nil
	}

	key := h.key(st)
	if err := unix.Linkat(to, toName, int(h.dir.Fd()), key, 0); err != nil {
		return false, err
	}

	if pin {
		h.pins, h.pinned[key] = append(h.pins, file), true
	}

	return pin, nil
}

// clear removes linksDir. The copies keep their other names.
func (h *hardLinks) clear() error {
	if err := emptyLinks(h.dir); err != nil {
		return fmt.Errorf("cannot remove %q: %w", h.dir.Name(), err)
	}
	return unix.Unlinkat(h.parent, linksDir, unix.AT_REMOVEDIR)
}

// emptyLinks removes all names in linksDir, which contains no directories.
func emptyLinks(dir *os.File) error {
	// The directory is opened anew, because a descriptor has a position in the list of names.
	in, err := openDir(int(dir.Fd()), ".")
	if err != nil {
		return err
	}
	err = eachName(in, func(name string) error { return ignoreGone(unix.Unlinkat(int(in.Fd()), name, 0)) })
	return errors.Join(err, in.Close())
}

func (h *hardLinks) close() error {
	err := h.dir.Close()
	for _, f := range h.pins {
		err = errors.Join(err, f.Close())
	}
	return err
}
