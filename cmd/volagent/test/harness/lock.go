package harness

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// lockDir locks a directory against other processes and returns a function that unlocks it. The
// kernel also unlocks the directory when this process ends. If another process holds the lock,
// lockDir first calls the function waiting, and then waits for the lock.
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
	return f.Close, nil // closing the file releases the lock
}

// lockFolders takes a lock that only one test folder can hold at a time. By default, go test runs
// several packages at once, and their tests would compete for loop devices, container runtimes and
// processors. The lock is on the common parent directory of all folders, so each checkout has its
// own lock.
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
// host, the next agent removes such cgroups.
func removeCgroups() {
	groups, _ := filepath.Glob("/sys/fs/cgroup/*/volagent-plugin-*")
	for _, dir := range groups {
		_ = os.Remove(dir) // Remove fails if the cgroup is in use
	}
}
