package harness

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// lockDir locks a directory against other processes, and returns a function that unlocks the
// directory. The lock also ends with this process. If another process has the lock, lockDir calls
// waiting once, and then waits.
func lockDir(dir string, waiting func()) (unlock func() error, err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		waiting()
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot lock %s: %w", dir, err), f.Close())
	}
	return f.Close, nil // the kernel unlocks a closed file
}

// lockFolders waits until no other folder of tests uses the host. go test runs several packages at
// once, but loop devices, container runtimes and time limits need the host for one folder at a
// time. The lock is on the parent directory of all folders, so each checkout has its own lock.
func lockFolders() (unlock func() error, err error) {
	return lockDir("..", func() {
		fmt.Fprintln(os.Stderr, "waiting for the tests of another folder")
	})
}
