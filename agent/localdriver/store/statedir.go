package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// Reach calls the tap, if it is set, with the name of a point that the driver has reached.
func (s *StateDir) Reach(point string) {
	if s.Tap != nil {
		s.Tap(point)
	}
}

// StateDir is a state directory that this process has locked.
type StateDir struct {
	Root string // the path with all symbolic links resolved, as the mount table shows it
	lock *os.File
	Log  hclog.Logger
	Tap  func(point string) // for tests: called at each point at which a crash could do harm
}

// acquire retries every lockEvery, for at most lockWithin. The reason is a driver that was killed:
// a child process that it had just forked may still hold the lock, until the child executes its own
// program.
const (
	lockWithin = 2 * time.Second
	lockEvery  = 20 * time.Millisecond
)

func (s *StateDir) acquire(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lockWithin)
	defer cancel()

	f, err := os.OpenFile(s.Path("lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("cannot open the lock file: %w", err)
	}

	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			s.lock = f
			return nil
		}

		select {
		case <-time.After(lockEvery):
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("another driver uses the state directory %q: %w", s.Root, err), f.Close())
		}
	}
}

// Close unlocks the directory.
func (s *StateDir) Close() error { return s.lock.Close() }

// Path returns a path inside the directory.
func (s *StateDir) Path(elem ...string) string {
	return filepath.Join(append([]string{s.Root}, elem...)...)
}

// entries lists the objects in one of the driver's directories. It skips entries with names that
// the driver does not use.
func (s *StateDir) entries(dir string, valid func(string) bool) []string {
	list, err := os.ReadDir(s.Path(dir))
	if err != nil {
		s.Log.Error("cannot list a state directory", "error", err)
		return nil
	}

	var ids []string
	for _, e := range list {
		if !e.IsDir() || !valid(e.Name()) {
			s.Log.Warn("the driver did not make this directory; it stays", "path", s.Path(dir, e.Name()))
			continue
		}
		ids = append(ids, e.Name())
	}

	return ids
}

// Leftovers lists the deleted objects whose data has not been removed yet.
func (s *StateDir) Leftovers() []string { return s.entries(DirTrash, validAnyID) }

// Move renames an entry from one of the driver's directories to another, and waits until the change
// is on disk. It never replaces an existing entry.
func (s *StateDir) Move(id, from, to string) error {
	if err := unix.Renameat2(unix.AT_FDCWD, s.Path(from, id), unix.AT_FDCWD, s.Path(to, id), unix.RENAME_NOREPLACE); err != nil {
		return fmt.Errorf("cannot move %q from %s to %s: %w", id, from, to, err)
	}
	return errors.Join(SyncDir(s.Path(to)), SyncDir(s.Path(from)))
}
