package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// Apart is how a process sees a directory of this host otherwise than the host
// does, as far as that is proven. The zero value is that nothing is wrong.
type Apart struct {
	NoPath    bool // there is no such directory for it
	OtherPath bool // at that path it has another directory
	NotIn     bool // what is mounted below the directory here does not reach it
	NotOut    bool // what it mounts below the directory does not reach this host
	// Barred: it runs as User, which may not enter a directory that only we may enter.
	Barred bool
	User   uint32
}

// The kinds of call for Sharing: one at a time for a directory.
const kindCanary kind = "try whether mounts are shared below"

// Sharing finds out whether a process and this host see each other's mounts below
// dir, at the same path, and whether the process may enter dir. Where the process has our
// mount namespace and root the mounts are shared, and nothing is tried. Else a canary is mounted in dir, by us, and then
// in the process's namespace, and each time the other side is asked for it. What
// is mounted there already notices nothing. Both canaries and their directory are
// gone afterwards; a process that is killed on the way leaves one, which the next
// Sharing of the directory takes off, or ClearCanary.
//
// An error is what kept from finding out all of it (the process is gone, we may
// not look into it, the directory hangs: *HungError); what is Apart is so all
// the same. Dir is made if it is not there.
func (h *Host) Sharing(ctx context.Context, pid int, dir string) (Apart, error) {
	dir = filepath.Clean(dir)
	type answer struct {
		apart Apart
		err   error
	}
	a, err := bounded(ctx, h, kindCanary, dir, h.bound, func() (answer, error) {
		apart, err := h.sharing(pid, dir)
		return answer{apart, err}, nil
	})
	if err == nil {
		err = a.err
	}
	if err != nil {
		return a.apart, fmt.Errorf("cannot tell whether process %d shares mounts below %q: %w", pid, dir, err)
	}
	return a.apart, nil
}

// ClearCanary takes off what a killed agent left of a Sharing of dir.
func (h *Host) ClearCanary(ctx context.Context, dir string) error {
	dir = filepath.Clean(dir)
	_, err := bounded(ctx, h, kindCanary, dir, h.bound, func() (struct{}, error) { return struct{}{}, h.clearCanary(dir) })
	if err != nil {
		return fmt.Errorf("cannot clear a canary below %q: %w", dir, err)
	}
	return nil
}

// SameNetwork reports whether a process is in our network namespace.
func (h *Host) SameNetwork(pid int) (bool, error) {
	own, err := os.Readlink(h.proc + "/self/ns/net")
	if err != nil {
		return false, err
	}
	theirs, err := os.Readlink(h.procPath(pid, "ns/net"))
	return err == nil && theirs == own, err
}

func (h *Host) sharing(pid int, dir string) (a Apart, err error) {
	// All is asked of this descriptor: a pid may change hands, it does not.
	proc, err := open(h.procPath(pid, ""), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return a, err
	}
	defer closeFD(proc)
	space, err := readlinkat(proc, "ns/mnt")
	if err != nil {
		return a, err
	}
	root, err := readlinkat(proc, "root")
	if err != nil {
		return a, err
	}
	a.User, a.Barred, err = h.barred(proc)
	if err != nil || a.Barred || space == h.ownSpace() && root == "/" {
		return a, err
	}
	err = errors.Join(os.MkdirAll(filepath.Dir(dir), 0o711), os.MkdirAll(dir, 0o700))
	if err != nil {
		return a, err
	}
	here, err := open(dir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return a, err
	}
	defer closeFD(here)
	there, err := openIn(proc, dir)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		_, err = readlinkat(proc, "root") // and the process is still there
		return Apart{NoPath: err == nil}, err
	}
	if err != nil {
		return a, err
	}
	defer closeFD(there)
	if same, err := sameFile(here, there); err != nil || !same {
		return Apart{OtherPath: err == nil}, err
	}
	return h.canaries(proc, here, there, dir)
}

// canaries mounts one on each side, and looks for it on the other.
func (h *Host) canaries(proc, here, there int, dir string) (a Apart, err error) {
	if err := h.clearCanary(dir); err != nil {
		return a, err
	}
	at := filepath.Join(dir, CanaryName)
	if err := os.Mkdir(at, 0o700); err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, h.clearCanary(dir)) }()
	seen, err := canary(at, there)
	if err != nil {
		return a, err
	}
	a.NotIn = !seen
	err = h.visit(proc, there, func() error {
		seen, err := canary(CanaryName, here)
		a.NotOut = err == nil && !seen
		return err
	})
	return a, err
}

// canary mounts one at path and reports whether it is seen from a directory of
// the other side.
func canary(path string, other int) (seen bool, err error) {
	dev, err := mountCanary(path)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, takeOff(path)) }()
	found, err := deviceAt(other, CanaryName)
	return found == dev, err
}

// visit runs fn in the mount namespace of a process, in a directory of it.
//
// A mount namespace belongs to a thread, and only one that shares its root and
// working directory with no other thread may change it: so this takes a thread
// of its own, which is never given back to the runtime and ends with its
// goroutine. Nothing else can run on it. It cannot be the first thread of this
// program, which does not end, and whose namespace is what /proc/self shows.
func (h *Host) visit(proc, dir int, fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			defer runtime.UnlockOSThread() // held until another one has done it
			done <- h.visit(proc, dir, fn)
			return
		}
		err := enter(proc, dir)
		if err == nil {
			err = fn()
		}
		done <- err
	}()
	return <-done
}

// enter takes this thread into the mount namespace of a process.
func enter(proc, dir int) error {
	ns, err := openat(proc, "ns/mnt", unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer closeFD(ns)
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	if err := unix.Setns(ns, unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("setns", err)
	}
	// The root is now that of the namespace, which need not be the process's.
	return os.NewSyscallError("fchdir", unix.Fchdir(dir))
}

// openIn opens a directory as a process sees it, links in its path included.
func openIn(proc int, dir string) (int, error) {
	root, err := openat(proc, "root", unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return -1, err
	}
	defer closeFD(root)
	fd := -1
	err = retry(func() (err error) {
		fd, err = unix.Openat2(root, dir, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
		return err
	})
	if errors.Is(err, unix.EAGAIN) { // something was renamed meanwhile
		err = errVanished
	}
	return fd, err
}

// openat opens a name below a descriptor.
func openat(dir int, name string, flags int) (int, error) {
	fd := -1
	err := retry(func() (err error) {
		fd, err = unix.Openat(dir, name, flags|unix.O_CLOEXEC, 0)
		return err
	})
	return fd, err
}

// readlinkat reads a link below a descriptor.
func readlinkat(dir int, name string) (string, error) {
	var room [256]byte
	n, err := unix.Readlinkat(dir, name, room[:])
	if err != nil {
		return "", err
	}
	return string(room[:n]), nil
}

// sameFile reports whether two descriptors are of the same file.
func sameFile(a, b int) (bool, error) {
	var st [2]unix.Statx_t
	for i, fd := range []int{a, b} {
		var err error
		if st[i], err = statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_INO); err != nil {
			return false, err
		}
	}
	return st[0].Ino == st[1].Ino && st[0].Dev_major == st[1].Dev_major && st[0].Dev_minor == st[1].Dev_minor, nil
}
