package harness

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
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

// lockFolders waits until the tests of no other folder run. By default, go test runs several
// packages at once. Two folders would compete for loop devices, container runtimes and processors.
// lockFolders locks the parent directory of all folders, so each checkout has a lock of its own.
func lockFolders() (unlock func() error, err error) {
	release, err := lockDir("..", func() {
		fmt.Fprintln(os.Stderr, "waiting for the tests of another folder")
	})
	return func() error {
		removeCgroups()
		return release()
	}, err
}

// removeCgroups removes the cgroups of plugins that ended while no agent was running. On a real
// host the next agent removes them.
func removeCgroups() {
	groups, _ := filepath.Glob("/sys/fs/cgroup/*/volagent-plugin-*")
	for _, dir := range groups {
		_ = os.Remove(dir) // the kernel keeps cgroups that are in use
	}
}
