package statedb

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, os.ErrNotExist)
}

// syncDir syncs a directory, so that the names of its files are durable.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("cannot open the directory of the state database: %w", err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("cannot write the directory of the state database: %w", err)
	}
	return nil
}

// setAside renames a file to <file>.<kind>-<UTC time>. It appends a number if a file with this name
// exists.
func setAside(path, kind string) (kept string, err error) {
	at := time.Now().UTC().Format("20060102T150405Z")
	kept = fmt.Sprintf("%s.%s-%s", path, kind, at)
	for n := 2; exists(kept); n++ {
		kept = fmt.Sprintf("%s.%s-%s.%d", path, kind, at, n)
	}
	return kept, os.Rename(path, kept)
}

// rewriting returns the temporary name of the new file that replaces the file at path.
func rewriting(path string) string { return path + ".new" }

// createNew creates a file. It replaces a file that a killed agent left at the path.
func createNew(path string) (*os.File, error) {
	if err := remove(path); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
}

// remove removes a file. It is not an error if the file does not exist.
func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// lock waits for a lock on a file. The error wraps EWOULDBLOCK if another process still holds the
// lock after wait.
func lock(f *os.File, how int, wait time.Duration) error {
	const poll = 20 * time.Millisecond
	for end := time.Now().Add(wait); ; {
		err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) || !time.Now().Add(poll).Before(end) {
			return err
		}
		<-time.After(poll)
	}
}
