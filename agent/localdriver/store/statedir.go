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

// Reach calls the tap, if there is one, with a point that the driver has reached.
func (s *StateDir) Reach(point string) {
	if s.Tap != nil {
		s.Tap(point)
	}
}

// StateDir is a locked state directory.
type StateDir struct {
	Root string // with all symbolic links resolved, as the mount table shows it
	lock *os.File
	Log  hclog.Logger
	Tap  func(point string) // called at points where a crash would matter; nil except in tests
}

// A killed driver may have forked a child that has not yet executed its own program and still holds
// the lock. Therefore acquire retries every lockEvery, for at most lockWithin.
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

// entries lists the objects in one of the driver's directories. It skips names that the driver
// cannot have made.
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

// Leftovers lists the deleted objects whose data is not removed yet.
func (s *StateDir) Leftovers() []string { return s.entries(DirTrash, validAnyID) }

// Move renames an entry between two of the driver's directories and waits for the disk. It never
// replaces an existing entry.
func (s *StateDir) Move(id, from, to string) error {
	if err := unix.Renameat2(unix.AT_FDCWD, s.Path(from, id), unix.AT_FDCWD, s.Path(to, id), unix.RENAME_NOREPLACE); err != nil {
		return fmt.Errorf("cannot move %q from %s to %s: %w", id, from, to, err)
	}
	return errors.Join(SyncDir(s.Path(to)), SyncDir(s.Path(from)))
}
