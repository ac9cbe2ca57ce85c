package tree

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const (
	// linksDir holds, during the copy of a tree, one name for each file that has several names.
	linksDir = "links"
	// maxPins limits the open files that keep inode numbers from being reused during one copy.
	maxPins = 1000
)

// hardLinks makes the copy of a file with several names have the same names.
//
// Device and inode number identify a file. But the number can belong to another file as soon as the
// first one is deleted, and the volume may be in use during the copy. Therefore hardLinks keeps the
// first maxPins files open, which reserves their numbers. It identifies further files by their
// birth time as well. On a filesystem without birth times, it copies the names of further files
// separately. That costs space, but no name ever gets the content of another file.
type hardLinks struct {
	dir    *os.File // linksDir
	parent int      // the open directory that contains linksDir
	pins   []*os.File
	pinned map[string]bool // the keys of the files in pins
}

func newHardLinks(parent int) (*hardLinks, error) {
	if err := unix.Mkdirat(parent, linksDir, 0o700); err != nil {
		return nil, err
	}
	dir, err := openDir(parent, linksDir)
	if err != nil {
		return nil, err
	}
	return &hardLinks{dir: dir, parent: parent, pinned: map[string]bool{}}, nil
}

func severalNames(st *unix.Statx_t) bool {
	return st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR
}

// key names a file in linksDir. It includes the device number, because the subvolumes of a btrfs
// have the same inode numbers on separate devices, and any user can create subvolumes.
func (h *hardLinks) key(st *unix.Statx_t) string {
	key := fmt.Sprintf("%d-%d-%d", st.Dev_major, st.Dev_minor, st.Ino)
	if hasBirthTime(st) {
		key += fmt.Sprintf("-%d.%d", st.Btime.Sec, st.Btime.Nsec)
	}
	return key
}

func hasBirthTime(st *unix.Statx_t) bool { return st.Mask&unix.STATX_BTIME != 0 }

// link adds another name to a file's copy. It reports whether a copy existed. The file must be
// open, so that its inode number cannot be reused.
func (h *hardLinks) link(st *unix.Statx_t, to int, toName string) (bool, error) {
	if !severalNames(st) {
		return false, nil
	}

	key := h.key(st)
	if !h.pinned[key] && !hasBirthTime(st) {
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

	pin := len(h.pins) < maxPins
	if !pin && !hasBirthTime(st) {
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

// clear removes linksDir, which holds only names.
func (h *hardLinks) clear(ctx context.Context) error {
	r := remover{ctx: ctx, top: h.parent}
	if err := r.empty(h.parent, linksDir, 0); err != nil {
		return fmt.Errorf("cannot remove %q: %w", h.dir.Name(), err)
	}
	return unix.Unlinkat(h.parent, linksDir, unix.AT_REMOVEDIR)
}

func (h *hardLinks) close() error {
	err := h.dir.Close()
	for _, f := range h.pins {
		err = errors.Join(err, f.Close())
	}
	return err
}
