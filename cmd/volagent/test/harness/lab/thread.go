package lab

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// kind is a kind of namespace: its name in /proc/PID/ns, and its flag of clone(2).
type kind struct {
	name string
	flag int
}

var netKind = kind{"net", unix.CLONE_NEWNET}

// hostKinds are the namespaces of a host.
var hostKinds = []kind{{"uts", unix.CLONE_NEWUTS}, netKind, {"pid", unix.CLONE_NEWPID}, {"mnt", unix.CLONE_NEWNS}}

// errGone is the error of a function that ended its goroutine, for example with t.Fatal.
var errGone = errors.New("the function ended its goroutine")

// thread is a thread of this process in the namespaces of a space. It calls one function at a time.
//
// A thread is never returned to Go's runtime, because its working directory is its own. It never ends
// either: when a thread ends, the kernel kills the processes that the thread started with Pdeathsig,
// and these include processes of other tests. So the thread leaves the namespaces and then waits for
// ever.
type thread struct {
	jobs chan func()
	left chan error // receives the result of leaving the namespaces
}

// newThread starts a thread in the namespaces of a process.
func newThread(pid int, kinds []kind) (*thread, error) {
	t := &thread{jobs: make(chan func()), left: make(chan error, 1)}
	entered := make(chan error, 1)
	go t.serve(pid, kinds, entered)
	if err := <-entered; err != nil {
		return nil, err
	}
	return t, nil
}

// serve enters the namespaces of a process, calls functions there, and leaves the namespaces when the
// channel jobs is closed.
func (t *thread) serve(pid int, kinds []kind, entered chan<- error) {
	runtime.LockOSThread() // and never unlock it
	if unix.Gettid() == os.Getpid() {
		// The main thread must keep its namespaces, because /proc/self shows those of the main thread.
		// While this goroutine has the main thread, the other one runs on another thread.
		done := make(chan error, 1)
		go t.serve(pid, kinds, done)
		entered <- <-done
		runtime.UnlockOSThread()
		return
	}

	own, err := openNamespaces("/proc/self/ns/", kinds)
	if err == nil {
		err = enterNamespaces(pid, kinds)
	}
	entered <- err
	if err == nil {
		for job := range t.jobs {
			job()
		}
	}
	t.left <- own.enter()
	select {}
}

// call calls a function on the thread.
func (t *thread) call(do func() error) error {
	err, done := errGone, make(chan struct{})
	t.jobs <- func() {
		defer close(done) // also if do ends the goroutine
		err = do()
	}
	<-done
	return err
}

// leave makes the thread leave the namespaces. The thread must have no work.
func (t *thread) leave() error {
	close(t.jobs)
	return <-t.left
}

// enterNamespaces puts the calling thread into the namespaces of a process.
func enterNamespaces(pid int, kinds []kind) error {
	theirs, err := openNamespaces(fmt.Sprintf("/proc/%d/ns/", pid), kinds)
	if err != nil {
		return err
	}
	// Only a thread with its own working directory can enter another mount namespace.
	return errors.Join(unix.Unshare(unix.CLONE_FS), theirs.enter())
}

// namespaces are the open files of some namespaces.
type namespaces []namespace

type namespace struct {
	kind
	file *os.File
}

// openNamespaces opens the namespaces whose files are in a directory.
func openNamespaces(dir string, kinds []kind) (namespaces, error) {
	var ns namespaces
	for _, k := range kinds {
		f, err := os.Open(dir + k.name)
		if err != nil {
			return nil, errors.Join(err, ns.close())
		}
		ns = append(ns, namespace{k, f})
	}
	return ns, nil
}

// enter puts the calling thread into the namespaces, and closes them.
func (ns namespaces) enter() error {
	for _, n := range ns {
		if err := unix.Setns(int(n.file.Fd()), n.flag); err != nil {
			return errors.Join(fmt.Errorf("cannot enter namespace %q: %w", n.name, err), ns.close())
		}
	}
	return ns.close()
}

// close closes the files of the namespaces.
func (ns namespaces) close() (err error) {
	for _, n := range ns {
		err = errors.Join(err, n.file.Close())
	}
	return err
}
