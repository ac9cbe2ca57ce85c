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

// maxOpen is how many directories a walk keeps open, however deep the tree is. It is far below
// the usual limit of 1024 descriptors a process.
const maxOpen = 32

// errMoved is returned when a directory was moved to another parent during the walk.
var errMoved = errors.New("the directory was moved while the tree was walked")

// Visit handles one file. The descriptor was opened with O_PATH, because opening a device or a
// pipe has effects, and it is closed after the call.
type Visit func(fd int, st *unix.Statx_t) error

// Below calls visit for everything below the open directory root, which is not visited itself.
// A directory is visited after its content. A file that disappears during the walk is skipped,
// and so is everything on another mount.
//
// The walk ends at the first error and names the file by its path below root. It ends with the
// context's error when ctx is done. Each level of directories costs memory, but no descriptor.
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

// walk is one walk. Its levels lead from the root to the directory that is read.
type walk struct {
	ctx    context.Context
	visit  Visit
	levels []*level
}

// level is a directory on the way down.
type level struct {
	name string
	fd   int // closed while it is -1
	id   fileID
	// dirs are the names of the directories in it that the walk has not entered yet, each ended
	// by a NUL. One string takes less memory than a slice, since a user decides how many there are.
	dirs []byte
}

// fileID tells whether a directory that is opened again is the same.
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
	for _, l := range w.levels[1:] { // the root is the caller's
		if l.fd >= 0 {
			_ = unix.Close(l.fd) // a directory, nothing was written to it
		}
	}
}

// read visits every file of a directory that is no directory, and remembers those that are.
func (w *walk) read(l *level) error {
	fd, err := openat(l.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY) // a read position of its own
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "directory")
	defer func() { _ = f.Close() }() // it was only read
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

// file visits one entry of a directory, or leaves it for later if it is a directory.
func (w *walk) file(l *level, name string) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	fd, st, err := open(l.fd, name)
	if err != nil || fd < 0 {
		return err
	}
	defer func() { _ = unix.Close(fd) }() // O_PATH: there is nothing that could fail
	if isDir(&st) {
		l.dirs = append(append(l.dirs, name...), 0)
		return nil
	}
	return w.visit(fd, &st)
}

// enter goes down into a directory and reads it. By now the name may stand for another file.
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
		_ = unix.Close(fd) // O_PATH: there is nothing that could fail
		return w.located(name, err)
	}
	w.levels = append(w.levels, &level{name: name, fd: fd, id: idOf(&st)})
	if far := len(w.levels) - maxOpen; far > 0 {
		_ = unix.Close(w.levels[far].fd) // O_PATH: there is nothing that could fail
		w.levels[far].fd = -1
	}
	return w.located("", w.read(w.top()))
}

// leave visits the directory whose content is done, and goes back to the one above.
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
	_ = unix.Close(l.fd) // O_PATH: there is nothing that could fail
	w.levels = w.levels[:len(w.levels)-1]
	return nil
}

// reopen opens the directory above an open one, which must still be the one with this id.
func reopen(below int, id fileID) (int, error) {
	fd, st, err := open(below, "..")
	if err != nil {
		return -1, err
	}
	if fd >= 0 && idOf(&st) == id {
		return fd, nil
	}
	if fd >= 0 {
		_ = unix.Close(fd) // O_PATH: there is nothing that could fail
	}
	return -1, errMoved
}

const statMask = unix.STATX_TYPE | unix.STATX_MODE | unix.STATX_UID | unix.STATX_GID | unix.STATX_INO

// open opens an entry for reference alone. The descriptor is -1 if the entry is gone, or hidden by
// another mount.
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
		_ = unix.Close(fd) // O_PATH: there is nothing that could fail
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

// located adds to an error the path of the file that it is about, once.
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

// pathError is an error with the path of its file below the root of the walk.
type pathError struct {
	path string
	err  error
}

func (e *pathError) Unwrap() error { return e.err }

// Error shortens the path, since whoever made the files chose its length.
func (e *pathError) Error() string {
	const most = 160 // bytes
	path := e.path
	if len(path) > most {
		path = path[:most/2] + "…" + path[len(path)-most/2:]
	}
	if path == "" {
		return e.err.Error()
	}
	return fmt.Sprintf("%q: %v", strings.ToValidUTF8(path, "?"), e.err)
}
