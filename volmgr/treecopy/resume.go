package treecopy

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// place makes room in the target for the copy of an open file or directory. A copy that did not
// finish may have left an entry with this name. If the entry is a file with the same content, place
// sets its attributes and returns true: nothing remains to be copied. It keeps a directory, whose
// files the copier compares one by one. It removes any other entry.
//
// The content decides, and not the size and the time, because both can survive a loss of power that
// the content did not survive. The copy of a file with several names is always made again, because
// each name must lead to the new copy.
func (c *treeCopier) place(src *os.File, st *unix.Statx_t, to int, toName string) (done bool, err error) {
	have, err := statEntry(to, toName)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, err
	}

	kind, isDir := st.Mode&unix.S_IFMT, have.Mode&unix.S_IFMT == unix.S_IFDIR
	switch {
	case isDir && kind == unix.S_IFDIR:
		return false, nil
	case isDir:
		if err := unix.Unlinkat(to, toName, unix.AT_REMOVEDIR); err != nil {
			return false, fmt.Errorf("the copy has a directory there from an earlier run, and cannot replace it: %w", err)
		}
		return false, nil
	}

	files := kind == unix.S_IFREG && have.Mode&unix.S_IFMT == unix.S_IFREG
	if files && st.Size == have.Size && st.Nlink == 1 && have.Nlink == 1 {
		if done, err = c.complete(src, st, to, toName); done || err != nil {
			return done, err
		}
	}

	return false, unix.Unlinkat(to, toName, 0)
}

// complete sets the attributes of a file of the target, if it has the same content as src. It reports
// whether it has.
func (c *treeCopier) complete(src *os.File, st *unix.Statx_t, to int, toName string) (done bool, err error) {
	in, err := reopen(src)
	if err != nil {
		return false, err
	}
	defer func() { _ = in.Close() }() // closing cannot lose data, because the file was only read

	out, err := openBeneath(to, toName, unix.O_NONBLOCK)
	if err != nil {
		return false, err
	}

	done, err = sameData(c.ctx, in, out, int64(st.Size), c.prog)
	if done && err == nil {
		err = settle(xattrsOf(in), out, st)
	}

	return done, errors.Join(err, out.Close())
}

// reopen opens a regular file for reading that is open with O_PATH.
func reopen(src *os.File) (*os.File, error) {
	fd, err := unix.Open(openPath(src), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), src.Name()), nil
}
