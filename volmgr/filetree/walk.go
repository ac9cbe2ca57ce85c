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

// maxOpen is the number of directories that a walk keeps open, however deep the tree is. It is far
// below the usual limit of 1024 descriptors for each process.
const maxOpen = 32

// errMoved reports that another process moved a directory to another parent during the walk.
var errMoved = errors.New("the directory was moved during the walk")

// Visit processes one file. Its descriptor is an O_PATH descriptor, because opening a device or a
// pipe has side effects. The walk closes the descriptor after the call.
type Visit func(fd int, st *unix.Statx_t) error

// Below calls visit for every file and directory below the open directory root, but not for root
// itself. It visits a directory after the files in it. It skips a file that disappears during the
// walk, and other mounts below root.
//
// The walk ends at the first error, which contains the path of the file below root. If ctx ends,
// the walk returns the error of ctx. Each level of directories costs memory, but no descriptor.
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

// walk is the state of one walk. Its levels lead from the root to the directory that it is reading.
type walk struct {
	ctx    context.Context
	visit  Visit
	levels []*level
}

// level is one of the directories between the root and the current directory.
type level struct {
	name string
	fd   int // -1 if the directory is not open at present
	id   fileID
	// dirs contains the names of the subdirectories that the walk has not entered yet, each
	// followed by a NUL. A user controls their number, and one byte slice needs less memory than
	// many strings.
	dirs []byte
}

// fileID identifies a directory. The walk compares it to check that it has reopened the same
// directory.
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
	for _, l := range w.levels[1:] { // levels[0] is the root, which belongs to the caller
		if l.fd >= 0 {
			_ = unix.Close(l.fd) // no data was written to a directory
		}
	}
}

// read visits every file in a directory. It does not enter subdirectories but stores their names
// for later.
func (w *walk) read(l *level) error {
	fd, err := openat(l.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY) // a new descriptor has its own read position
	if err != nil {
		return err
	}

	f := os.NewFile(uintptr(fd), "directory")
	defer func() { _ = f.Close() }() // a file opened for reading has no data to lose
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

// file visits one entry of a directory. If the entry is a directory, file stores its name for
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

// enter opens a directory and reads it. By now the name may belong to a different file.
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

// leave visits a directory after all files in it, and returns to its parent.
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

// reopen opens the parent of an open directory. It fails with errMoved if the parent does not have
// the given id.
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

// open opens an entry with O_PATH. The descriptor is -1 if the entry no longer exists or another
// mount covers it.
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

// located adds the path of a file to an error, unless the error already contains one.
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

// pathError is an error with the path of a file below the root of the walk.
type pathError struct {
	path string
	err  error
}

func (e *pathError) Unwrap() error { return e.err }

// Error shortens the path in the message, because the user who created the files controls its
// length.
func (e *pathError) Error() string {
	const most = 160 // maximum length in bytes
	path := e.path
	if len(path) > most {
		path = path[:most/2] + "…" + path[len(path)-most/2:]
	}
	if path == "" {
		return e.err.Error()
	}
	return fmt.Sprintf("%q: %v", strings.ToValidUTF8(path, "?"), e.err)
}
