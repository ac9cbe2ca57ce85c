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

// Apart lists the proven differences between a directory as a process sees it and the directory as
// the host sees it. The zero value means that no difference is known.
type Apart struct {
	NoPath    bool // the process does not have the directory
	OtherPath bool // the process has another directory at that path
	NotIn     bool // mounts of the host below the directory do not reach the process
	NotOut    bool // mounts of the process below the directory do not reach the host

	// Barred means that the process runs as the user with the id User, and that this user may not
	// enter a directory of the agent with mode 0700.
	Barred bool
	User   uint32
}

// Sharing tests whether a process and this host see each other's mounts below dir, at the same
// path. It also checks whether the process may enter dir. If the process has the agent's mount
// namespace and root directory, the mounts are shared and no test is needed.
//
// Otherwise Sharing mounts a canary in dir, first in the agent's mount namespace and then in that
// of the process. Each time it checks whether the canary appears in the other namespace. Existing
// mounts are not affected. At the end Sharing removes both canaries and their directory. If the
// agent is killed during the test, a canary remains until the next Sharing of the directory, or
// until ClearCanary.
//
// An error gives the reason why the test is incomplete: the process has ended, the agent may not
// inspect the process, or the directory hangs (*HungError). Even after an error, the differences in
// the returned Apart are proven. Sharing creates dir if it does not exist.
func (h *Host) Sharing(ctx context.Context, pid int, dir string) (Apart, error) {
	dir = filepath.Clean(dir)
	type answer struct {
		apart Apart
		err   error
	}
	a, err := bounded(ctx, &h.gate, kindCanary, dir, func() (answer, error) {
		apart, err := sharingTest{h, dir}.run(pid)
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

// ClearCanary removes a canary that remains below dir because the agent was killed during Sharing.
func (h *Host) ClearCanary(ctx context.Context, dir string) error {
	dir = filepath.Clean(dir)
	err := h.gate.do(ctx, kindCanary, dir, func() error { return sharingTest{h, dir}.clear() })
	if err != nil {
		return fmt.Errorf("cannot remove a canary below %q: %w", dir, err)
	}
	return nil
}

// sharingTest is the test that Sharing makes in one directory.
type sharingTest struct {
	h   *Host
	dir string
}

// run tests whether a process shares the mounts below the directory.
func (t sharingTest) run(pid int) (a Apart, err error) {
	// All checks use this descriptor, because another process may get the pid in the meantime.
	proc, err := open(t.h.procPath(pid, ""), unix.O_PATH|unix.O_DIRECTORY)
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

	a.User, a.Barred, err = t.h.barred(proc)
	if err != nil || a.Barred || space == t.h.ownSpace() && root == "/" {
		return a, err
	}

	err = errors.Join(os.MkdirAll(filepath.Dir(t.dir), 0o711), os.MkdirAll(t.dir, 0o700))
	if err != nil {
		return a, err
	}

	here, err := open(t.dir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return a, err
	}
	defer closeFD(here)
	there, err := openIn(proc, t.dir)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		_, err = readlinkat(proc, "root") // readlinkat fails if the process has ended
		return Apart{NoPath: err == nil}, err
	}
	if err != nil {
		return a, err
	}
	defer closeFD(there)
	if same, err := sameFile(here, there); err != nil || !same {
		return Apart{OtherPath: err == nil}, err
	}
	return t.canaries(proc, here, there)
}

// canaries mounts a canary in each of the two namespaces, and checks whether each canary appears in
// the other namespace. The parameters here and there are descriptors of the tested directory, as
// seen by the host and by the process.
func (t sharingTest) canaries(proc, here, there int) (a Apart, err error) {
	if err := t.clear(); err != nil {
		return a, err
	}

	at := filepath.Join(t.dir, CanaryName)
	if err := os.Mkdir(at, 0o700); err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, t.clear()) }()
	seen, err := canary(at, there)
	if err != nil {
		return a, err
	}

	a.NotIn = !seen
	err = visit(proc, there, func() error {
		seen, err := canary(CanaryName, here)
		a.NotOut = err == nil && !seen
		return err
	})

	return a, err
}

// canary mounts a canary at path, and reports whether it appears in the directory other, which is
// open in the other namespace.
func canary(path string, other int) (seen bool, err error) {
	dev, err := mountCanary(path)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, unmountCanary(path)) }()
	found, err := deviceAt(other, CanaryName)
	return found == dev, err
}

// clear unmounts all canaries below the directory, and removes the directory on which they were
// mounted. It keeps any other mount there and returns an error. When the directory is removed, the
// kernel also unmounts the mounts on it in other namespaces. In this way clear also removes a
// canary that a killed agent left in the namespace of a process.
func (t sharingTest) clear() error {
	at := filepath.Join(t.dir, CanaryName)
	mounted, err := t.h.mountedAt(at)
	if err != nil {
		return err
	}
	if mounted {
		entries, err := t.h.Under(at)
		if err != nil {
			return err
		}

		for _, e := range entries {
			if !IsCanary(e) {
				return fmt.Errorf("something is mounted at %q: %s (%s)", e.Path, e.Source, e.Identity.FSType)
			}
		}

		for range entries {
			if err := unmountCanary(at); err != nil {
				return err
			}
		}
	}

	if err := retry(func() error { return unix.Rmdir(at) }); err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "rmdir", Path: at, Err: err}
	}
	return nil
}

// visit runs fn in the mount namespace of a process. The working directory of fn is the open
// directory dir of that process.
//
// In Linux each thread can be in a different mount namespace. A thread may change its namespace
// only if no other thread shares its root and working directory. Therefore visit uses a separate
// thread. The thread ends with its goroutine and runs no other code. The first thread of the
// program is unsuitable, because it does not end and /proc/self shows its namespace.
func visit(proc, dir int, fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			// Keep this thread locked, so that the next goroutine gets another thread.
			defer runtime.UnlockOSThread()
			done <- visit(proc, dir, fn)
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

// enter moves the calling thread into the mount namespace of a process.
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
	// The thread now has the root directory of the namespace. The root directory of the process may
	// be another one.
	return os.NewSyscallError("fchdir", unix.Fchdir(dir))
}

// openIn opens the directory at a path as a process sees it. The kernel resolves symbolic links in
// the path as for that process.
func openIn(proc int, dir string) (int, error) {
	root, err := openat(proc, "root", unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return -1, err
	}
	defer closeFD(root)
	fd, err := openat2(root, dir, unix.O_PATH|unix.O_DIRECTORY, unix.RESOLVE_IN_ROOT)
	if errors.Is(err, unix.EAGAIN) { // a component of the path was renamed in the meantime
		err = errVanished
	}
	return fd, err
}
