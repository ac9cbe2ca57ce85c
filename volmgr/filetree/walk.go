package filetree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// maxOpen is the maximum number of directories that a walk keeps open, regardless of the depth of
// the tree. It is far below the usual limit of 1024 descriptors per process.
const maxOpen = 32

// errMoved reports that another process moved a directory to another parent during the walk.
var errMoved = errors.New("the directory was moved during the walk")

// Visit processes one file. The argument fd is an O_PATH descriptor, because opening a device or a
// pipe in any other way has side effects. The walk closes the descriptor after the call.
type Visit func(fd int, st *unix.Statx_t) error

// Below calls visit for every file and directory below the open directory root, but not for root
// itself. It visits a directory after the files in it. It skips files that disappear during the
// walk, and other mounts below root.
//
// The walk ends at the first error. The error contains the path of the file, relative to root. If
// ctx ends, the walk returns the error of ctx. A deep tree needs memory for each level, but not an
// open descriptor for each level.
func Below(ctx context.Context, root int, visit Visit) error {
	w := &walk{ctx: ctx, visit: visit, levels: []*level{{fd: root}}}
	defer w.close()
	if err := w.read(w.top()); err != nil {
		return w.located("", err)
	}

	for {
		name, more := w.top().next()
		switch {
		case more:
			if err := w.enter(name); err != nil {
				return err
			}
		case len(w.levels) == 1:
			return nil
		default:
			if err := w.leave(); err != nil {
				return err
			}
		}
	}
}

// walk is the state of one walk. Its levels are the directories on the path from the root to the
// current directory.
type walk struct {
	ctx    context.Context
	visit  Visit
	levels []*level
}

// level is one directory on the path from the root to the current directory.
type level struct {
	name string
	fd   int // -1 while the walk does not keep the directory open
	id   fileID
	// dirs contains the names of the subdirectories that the walk has not entered yet. A NUL
	// follows each name. A user controls the number of names, and one byte slice needs less memory
	// than many strings.
	dirs []byte
}

// fileID identifies a directory. When the walk opens a directory again, it compares the ids to
// check that the directory is the same.
type fileID struct {
	major, minor uint32
	inode        uint64
}

func idOf(st *unix.Statx_t) fileID { return fileID{st.Dev_major, st.Dev_minor, st.Ino} }

func (l *level) next() (string, bool) {
	end := bytes.IndexByte(l.dirs, 0)
	if end < 0 {
		return "", false
	}

	name := string(l.dirs[:end])
	l.dirs = l.dirs[end+1:]
	return name, true
}

func (w *walk) top() *level { return w.levels[len(w.levels)-1] }

func (w *walk) close() {
	for _, l := range w.levels[1:] { // levels[0] is the root, which the caller closes
		if l.fd >= 0 {
			_ = unix.Close(l.fd) // the walk writes nothing to a directory, so closing it can lose no data
		}
	}
}

// read visits every file in a directory. It does not enter the subdirectories, but stores their
// names for later.
func (w *walk) read(l *level) error {
	fd, err := openat(l.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY) // a new descriptor has its own read position
	if err != nil {
		return err
	}

	f := os.NewFile(uintptr(fd), "directory")
	defer func() { _ = f.Close() }() // the directory is only read, so closing it can lose no data
	for {
		names, err := f.Readdirnames(1000)
		for _, name := range names {
			if err := w.file(l, name); err != nil {
				return w.located(name, err)
			}
		}
		if len(names) == 0 {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

// file visits one directory entry. If the entry is a directory, file only stores its name for
// later.
func (w *walk) file(l *level, name string) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}

	fd, st, err := open(l.fd, name)
	if err != nil || fd < 0 {
		return err
	}
	defer func() { _ = unix.Close(fd) }() // closing an O_PATH descriptor cannot fail

	if isDir(&st) {
		l.dirs = append(append(l.dirs, name...), 0)
		return nil
	}

	return w.visit(fd, &st)
}

// enter opens a subdirectory and reads it. The name may no longer belong to the file for which the
// walk stored it.
func (w *walk) enter(name string) error {
	fd, st, err := open(w.top().fd, name)
	if err != nil {
		return w.located(name, err)
	}
	if fd < 0 {
		return nil
	}
	if !isDir(&st) {
		err := w.visit(fd, &st)
		_ = unix.Close(fd) // closing an O_PATH descriptor cannot fail
		return w.located(name, err)
	}
	w.levels = append(w.levels, &level{name: name, fd: fd, id: idOf(&st)})
	if far := len(w.levels) - maxOpen; far > 0 {
		_ = unix.Close(w.levels[far].fd) // closing an O_PATH descriptor cannot fail
		w.levels[far].fd = -1
	}

	return w.located("", w.read(w.top()))
}

// leave visits the current directory and then returns to its parent.
func (w *walk) leave() error {
	l, above := w.top(), w.levels[len(w.levels)-2]
	st, err := stat(l.fd)
	if err == nil {
		err = w.visit(l.fd, &st)
	}
	if err == nil && above.fd < 0 {
		above.fd, err = reopen(l.fd, above.id)
	}
	if err != nil {
		return w.located("", err)
	}
	_ = unix.Close(l.fd) // closing an O_PATH descriptor cannot fail
	w.levels = w.levels[:len(w.levels)-1]
	return nil
}

// reopen opens the parent of an open directory. If the parent does not have the given id, reopen
// fails with errMoved.
func reopen(below int, id fileID) (int, error) {
	fd, st, err := open(below, "..")
	if err != nil {
		return -1, err
	}
	if fd >= 0 && idOf(&st) == id {
		return fd, nil
	}
	if fd >= 0 {
		_ = unix.Close(fd) // closing an O_PATH descriptor cannot fail
	}
	return -1, errMoved
}

const statMask = unix.STATX_TYPE | unix.STATX_MODE | unix.STATX_UID | unix.STATX_GID | unix.STATX_INO

// open opens a directory entry with O_PATH. The descriptor is -1 if the entry no longer exists, or
// if another mount covers the entry.
func open(dir int, name string) (int, unix.Statx_t, error) {
	fd, err := openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EXDEV) {
		return -1, unix.Statx_t{}, nil
	}
	if err != nil {
		return -1, unix.Statx_t{}, fmt.Errorf("cannot open: %w", err)
	}

	st, err := stat(fd)
	if err != nil {
		_ = unix.Close(fd) // closing an O_PATH descriptor cannot fail
		return -1, st, err
	}

	return fd, st, nil
}

// stat returns the attributes of an open file.
func stat(fd int) (unix.Statx_t, error) {
	var st unix.Statx_t
	err := retry(func() error { return unix.Statx(fd, "", unix.AT_EMPTY_PATH, statMask, &st) })
	if err != nil {
		err = fmt.Errorf("cannot read its attributes: %w", err)
	}
	return st, err
}

func openat(dir int, name string, flags uint64) (int, error) {
	fd := -1
	err := retry(func() (err error) {
		fd, err = unix.Openat2(dir, name, &unix.OpenHow{
			Flags:   flags | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_MAGICLINKS,
		})

		return err
	})

	return fd, err
}

func isDir(st *unix.Statx_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR }

// located adds the path of a file to an error, unless the error already contains a path.
func (w *walk) located(name string, err error) error {
	var told *pathError
	if err == nil || errors.As(err, &told) || w.ctx.Err() != nil {
		return err
	}

	parts := make([]string, 0, len(w.levels))
	for _, l := range w.levels[1:] {
		parts = append(parts, l.name)
	}
	if name != "" {
		parts = append(parts, name)
	}
	return &pathError{path: strings.Join(parts, "/"), err: err}
}

// pathError is an error about a file, with the path of the file relative to the root of the walk.
type pathError struct {
	path string
	err  error
}

func (e *pathError) Unwrap() error { return e.err }

// Error shortens a long path in the message, because the user who created the files controls the
// length of the path.
func (e *pathError) Error() string {
	const most = 160 // maximum length of the path, in bytes
	path := e.path
	if len(path) > most {
		path = path[:most/2] + "…" + path[len(path)-most/2:]
	}
	if path == "" {
		return e.err.Error()
	}
	return fmt.Sprintf("%q: %v", strings.ToValidUTF8(path, "?"), e.err)
}
