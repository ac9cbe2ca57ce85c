package mount

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// The request codes come from include/uapi/linux/fuse.h.
const (
	fuseLookup      = 1
	fuseForget      = 2
	fuseGetattr     = 3
	fuseInit        = 26
	fuseOpendir     = 27
	fuseReaddir     = 28
	fuseReleasedir  = 29
	fuseInterrupt   = 36
	fuseDestroy     = 38
	fuseBatchForget = 42
)

// fuseFS is a FUSE file system with one empty directory. A test can make it stop answering, answer
// again, or die.
type fuseFS struct {
	dev       *os.File
	noOpendir bool

	mu      sync.Mutex
	asleep  bool
	waiting [][]byte // the replies that were held back since sleep
	done    chan struct{}
}

// openFuse mounts a FUSE file system at dir. The file system does not answer any request, not even
// FUSE_INIT.
func openFuse(t testing.TB, dir, data string) *os.File {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	check(t, err)
	mountFS(t, "fuse.test", "test", dir, 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0%s", fd, data))
	// Call os.NewFile only after the mount. Before the mount, the Go runtime could not poll the
	// descriptor.
	dev := os.NewFile(uintptr(fd), "/dev/fuse")
	// An error means that the test has already closed the device.
	t.Cleanup(func() { _ = dev.Close() })
	return dev
}

func serveFuse(t testing.TB, dir string, noOpendir bool) *fuseFS {
	t.Helper()
	f := &fuseFS{dev: openFuse(t, dir, ""), noOpendir: noOpendir, done: make(chan struct{})}
	go f.serve()
	t.Cleanup(f.die)
	_, err := os.ReadDir(dir)
	check(t, err)
	return f
}

func (f *fuseFS) serve() {
	defer close(f.done)
	buf := make([]byte, 1<<17)
	for {
		n, err := f.dev.Read(buf)
		if err != nil {
			return
		}
		if reply := f.answer(buf[:n]); reply != nil {
			f.mu.Lock()
			if f.asleep {
				f.waiting = append(f.waiting, reply)
			} else {
				f.send(reply)
			}
			f.mu.Unlock()
		}
	}
}

// send writes a reply. It ignores an error, because the kernel may have aborted the request.
func (f *fuseFS) send(reply []byte) { _, _ = f.dev.Write(reply) }

func (f *fuseFS) answer(req []byte) []byte {
	ne := binary.NativeEndian
	unique := ne.Uint64(req[8:])
	reply := func(errno unix.Errno, size int) []byte {
		r := make([]byte, 16+size)
		ne.PutUint32(r, uint32(len(r)))
		ne.PutUint32(r[4:], uint32(-int32(errno)))
		ne.PutUint64(r[8:], unique)
		return r
	}
	switch ne.Uint32(req[4:]) {
	case fuseForget, fuseBatchForget, fuseInterrupt:
		return nil
	case fuseInit:
		r := reply(0, 64)
		ne.PutUint32(r[16:], 7)
		ne.PutUint32(r[20:], 31)
		ne.PutUint32(r[28:], ne.Uint32(req[40+12:])&(1<<24)) // flag FUSE_NO_OPENDIR_SUPPORT
		ne.PutUint32(r[36:], 1<<16)                          // field max_write
		return r
	case fuseGetattr:
		r := reply(0, 104)
		attr := r[16+16:]
		ne.PutUint64(attr, 1)                       // inode number
		ne.PutUint32(attr[60:], unix.S_IFDIR|0o755) // file mode
		ne.PutUint32(attr[64:], 2)                  // number of links
		return r
	case fuseOpendir:
		if f.noOpendir {
			return reply(unix.ENOSYS, 0)
		}
		return reply(0, 16)
	case fuseReaddir, fuseReleasedir, fuseDestroy:
		return reply(0, 0)
	case fuseLookup:
		return reply(unix.ENOENT, 0)
	default:
		return reply(unix.ENOSYS, 0)
	}
}

// sleep makes the file system hold back all replies.
func (f *fuseFS) sleep() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asleep = true
}

// wake sends the replies that were held back, and lets the file system answer again.
func (f *fuseFS) wake() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asleep = false
	for _, r := range f.waiting {
		f.send(r)
	}
	f.waiting = nil
}

// asked reports whether a request is waiting for its reply. The method sleep holds back replies.
func (f *fuseFS) asked() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.waiting) > 0
}

// die ends the daemon but does not unmount the file system.
func (f *fuseFS) die() {
	_ = f.dev.Close() // an error means that the descriptor is already closed
	<-f.done
}
