package statedb

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// The database keeps two copies of itself beside the file, for an agent that finds the
// file gone or damaged. A copy is a backup, with a seal. The newest is state.copy-1, the
// one before it state.copy-2. One is made copySoon after a commit, unless the newest is
// younger than copyEvery, and before a migration. No commit waits for it. A file that
// does not pass its check is not copied, so that it takes the place of no good copy.

const (
	copySoon  = 2 * time.Second
	copyEvery = 5 * time.Minute
)

// copyPaths are the automatic copies of a file, the newest first.
func copyPaths(path string) []string {
	dir := filepath.Dir(path)
	return []string{filepath.Join(dir, "state.copy-1"), filepath.Join(dir, "state.copy-2")}
}

// copier decides when a copy is made. It is the writer goroutine's alone.
type copier struct {
	stale bool             // something was committed since the last copy was begun
	due   <-chan time.Time // when the next one is to be made; nil if none is planned
	ended chan error       // of the one that is being made; nil if none is
	tried time.Time        // when the last one was begun
}

// planCopy sets the time of the next copy if one is needed.
func (db *DB) planCopy() {
	c := &db.copies
	if !c.stale || c.due != nil || c.ended != nil {
		return
	}
	last := c.tried
	if info, err := os.Stat(copyPaths(db.path)[0]); err != nil {
		last = time.Time{} // there is none, so it must not wait
	} else if info.ModTime().Before(time.Now()) {
		last = info.ModTime() // an earlier agent may have made it
	}
	c.due = time.After(copyWait(time.Since(last)))
}

// copyWait is how long after a commit the next copy is made, if the last one has an age.
func copyWait(age time.Duration) time.Duration { return max(copySoon, copyEvery-age) }

// startCopy begins a copy beside the writer.
func (db *DB) startCopy() {
	c := &db.copies
	c.due, c.stale, c.tried, c.ended = nil, false, time.Now(), make(chan error, 1)
	go func(ended chan<- error) { ended <- db.keepCopy() }(c.ended)
}

// copied takes note of how a copy ended.
func (db *DB) copied(err error) {
	db.copies.ended = nil
	if err != nil {
		db.warn(fmt.Sprintf("cannot make a copy of %s; the one before it is kept: %v", db.path, err))
	}
}

// keepCopy checks the file and makes a copy of it, which takes the place of the one
// before.
func (db *DB) keepCopy() error {
	if err := db.Verify(); err != nil {
		return err
	}
	return db.rotate()
}

// rotate makes a copy, durably. One that was made before becomes the older one.
func (db *DB) rotate() error {
	paths := copyPaths(db.path)
	tmp := rewriting(paths[0])
	if err := remove(tmp); err != nil {
		return err
	}
	f, err := os.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = db.writeBackup(f)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, remove(tmp))
	}
	if err := os.Rename(paths[0], paths[1]); err != nil && !errors.Is(err, os.ErrNotExist) {
		return errors.Join(err, remove(tmp))
	}
	if err := os.Rename(tmp, paths[0]); err != nil {
		return errors.Join(err, remove(tmp))
	}
	return syncDir(db.dir)
}

// HasCopies reports whether there is an automatic copy.
func (db *DB) HasCopies() bool {
	for _, path := range copyPaths(db.path) {
		if exists(path) {
			return true
		}
	}
	return false
}

// LastCopy reads the newest automatic copy that makes sense. The error says why the others
// do not, and is ErrNotExist where there is none. Nothing is changed.
func (db *DB) LastCopy() (out Restorable, err error) {
	var errs []error
	for _, path := range copyPaths(db.path) {
		f, err := os.Open(path)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out, err = db.ReadBackup(io.Reader(f))
		if err = errors.Join(err, f.Close()); err == nil {
			return out, nil
		}
		errs = append(errs, fmt.Errorf("cannot use the copy %s: %w", path, err))
	}
	return out, errors.Join(errs...)
}
