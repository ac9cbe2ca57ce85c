// Package untrusted reads files at paths that another user may control, such as secret files,
// volume files, notes beside mounts, and backups. Such a path may lead to a FIFO, a device, a link
// to /proc/kmsg, an endless file, or a file on hanging storage. None of these may block the agent.
package untrusted

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// within is the time limit of one read. Even a file of the maximum size normally takes only
// milliseconds.
const within = 5 * time.Second

// ErrNotRegular means that the path does not lead to a regular file.
var ErrNotRegular = errors.New("it is not a regular file")

// errHangs means that a read has exceeded the time limit. Until this read has ended, all other
// reads of the same path also fail with errHangs.
var errHangs = fmt.Errorf("the storage of the file did not answer within %s", within)

// reader reads files. Only one read of each path runs at a time, so that a path on hanging storage
// blocks only one thread.
type reader struct {
	mu     sync.Mutex
	busy   map[string]*underway
	within time.Duration
	read   func(path string, limit int64) ([]byte, error)
}

// underway is a read that has not ended yet.
type underway struct {
	ended chan struct{}
	hangs bool // the read has exceeded the time limit
}

var (
	files = &reader{busy: map[string]*underway{}, within: within, read: readWith(Open)}
	plain = &reader{busy: map[string]*underway{}, within: within, read: readWith(openPlain)}
)

// ReadFile returns the content of a regular file that has at most limit bytes. It follows symbolic
// links and waits for at most five seconds. Only an error of type *fs.PathError contains the path.
func ReadFile(path string, limit int64) ([]byte, error) { return files.file(path, limit) }

// ReadPlainFile does the same as ReadFile, but refuses a path that contains a symbolic link.
func ReadPlainFile(path string, limit int64) ([]byte, error) { return plain.file(path, limit) }

func (r *reader) file(path string, limit int64) ([]byte, error) {
	timer := time.NewTimer(r.within)
	defer timer.Stop()
	mine, err := r.begin(path, timer.C)
	if err != nil {
		return nil, err
	}

	type result struct {
		data []byte
		err  error
	}

	answer := make(chan result, 1)
	go func() {
		data, err := r.read(path, limit)
		r.mu.Lock()
		delete(r.busy, path)
		close(mine.ended)
		r.mu.Unlock()
		answer <- result{data, err}
	}()

	select {
	case got := <-answer:
		return got.data, got.err
	case <-timer.C:
		r.mu.Lock()
		mine.hangs = true
		r.mu.Unlock()
		return nil, errHangs
	}
}

// begin waits until no other read of the path is running, and then begins a read. If the other read
// hangs, begin returns an error. A caller cannot use the result of the other read, because the file
// may have changed after that read began.
func (r *reader) begin(path string, late <-chan time.Time) (*underway, error) {
	for {
		r.mu.Lock()
		other := r.busy[path]
		if other == nil {
			mine := &underway{ended: make(chan struct{})}
			r.busy[path] = mine
			r.mu.Unlock()
			return mine, nil
		}

		hangs := other.hangs
		r.mu.Unlock()
		if hangs {
			return nil, errHangs
		}
		select {
		case <-other.ended:
		case <-late:
			return nil, errHangs
		}
	}
}

func readWith(open func(path string) (*os.File, error)) func(path string, limit int64) ([]byte, error) {
	return func(path string, limit int64) ([]byte, error) {
		f, err := open(path)
		if err != nil {
			return nil, err
		}
		return read(f, limit)
	}
}

func read(f *os.File, limit int64) ([]byte, error) {
	defer f.Close() //nolint:errcheck // a file opened for reading has no data to lose

	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() > limit {
		return nil, tooLarge(limit)
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit { // the file grew after the check of its size
		return nil, tooLarge(limit)
	}

	return data, nil
}

func tooLarge(limit int64) error { return fmt.Errorf("it has more than %d bytes", limit) }

// Open opens a regular file for reading. It does not block on a FIFO or a device, but it may block
// on hanging storage.
//
// Open first examines the file through an O_PATH descriptor, because opening some devices has side
// effects. Open also refuses files in /proc. The kernel calls them regular files, but reading some
// of them blocks or consumes data.
func Open(path string) (*os.File, error) {
	at, err := openat(path, unix.O_PATH)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return reopen(at, path)
}

// openPlain does the same as Open, but refuses a path that contains a symbolic link.
func openPlain(path string) (*os.File, error) {
	at, err := openat("/", unix.O_PATH)
	for rest := strings.Trim(path, "/"); err == nil && rest != ""; {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		parent := at
		at, err = unix.Openat(parent, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		unix.Close(parent) //nolint:errcheck // an O_PATH descriptor has no data to lose
		if err == nil && isLink(at) {
			unix.Close(at) //nolint:errcheck // as above
			return nil, fmt.Errorf("%w: %s in %s is a symbolic link", ErrNotRegular, strconv.Quote(name), path)
		}
	}

	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return reopen(at, path)
}

// isLink reports whether an O_PATH descriptor refers to a symbolic link.
func isLink(fd int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK
}

// reopen opens the file of an O_PATH descriptor for reading, and closes the descriptor.
func reopen(at int, path string) (*os.File, error) {
	defer unix.Close(at) //nolint:errcheck // an O_PATH descriptor has no data to lose

	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, ErrNotRegular
	}
	var sys unix.Statfs_t
	if err := unix.Fstatfs(at, &sys); err != nil {
		return nil, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	if sys.Type == unix.PROC_SUPER_MAGIC {
		return nil, fmt.Errorf("%w: it is a file in procfs", ErrNotRegular)
	}

	// This path leads to the same inode, even if the original path now leads to another file.
	fd, err := openat("/proc/self/fd/"+strconv.Itoa(at), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}

	return os.NewFile(uintptr(fd), path), nil
}

func openat(path string, flags int) (fd int, err error) {
	for {
		fd, err = unix.Open(path, flags|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}
