package statedb

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// The database keeps two copies of itself beside the file, for an agent that finds the file missing
// or damaged. A copy is a backup with a seal. The newest is state.copy-1, the one before it
// state.copy-2. The writer starts a copy copySoon after a commit, or later, once the newest copy is
// copyEvery old. A migration makes a copy before it changes the file. No commit waits for a copy. A
// file that fails its check is not copied, so a bad copy never replaces a good one.

const (
	copySoon  = 2 * time.Second
	copyEvery = 5 * time.Minute
)

// copyPaths returns the paths of the automatic copies of a file, the newest first.
func copyPaths(path string) []string {
	dir := filepath.Dir(path)
	return []string{filepath.Join(dir, "state.copy-1"), filepath.Join(dir, "state.copy-2")}
}

// copier decides when to make a copy. Only the writer goroutine uses it.
type copier struct {
	newest string           // path of the newest copy
	stale  bool             // there was a commit since the last copy was started
	due    <-chan time.Time // fires when the next copy is due; nil if none is planned
	ended  chan error       // receives the result of the current copy; nil if none is being made
	tried  time.Time        // when the last copy was started
}

// plan schedules the next copy if one is needed.
func (c *copier) plan() {
	if !c.stale || c.due != nil || c.ended != nil {
		return
	}

	last := c.tried
	if info, err := os.Stat(c.newest); err != nil {
		last = time.Time{} // there is no copy yet, so it must not wait
	} else if info.ModTime().Before(time.Now()) {
		last = info.ModTime() // an earlier agent may have made it
	}
	c.due = time.After(copyWait(time.Since(last)))
}

// copyWait returns the delay from a commit to the next copy, for the age of the last one.
func copyWait(age time.Duration) time.Duration { return max(copySoon, copyEvery-age) }

// start makes a copy in its own goroutine.
func (c *copier) start(keep func() error) {
	c.due, c.stale, c.tried, c.ended = nil, false, time.Now(), make(chan error, 1)
	go func(ended chan<- error) { ended <- keep() }(c.ended)
}

// rotate makes a copy and syncs it to disk. The previous copy becomes the older one.
func (b *backups) rotate() error {
	paths := copyPaths(b.file.path)
	tmp := rewriting(paths[0])
	f, err := createNew(tmp)
	if err != nil {
		return err
	}
	_, err = b.write(f)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, remove(tmp))
	}
	if err := os.Rename(paths[0], paths[1]); err != nil && !errors.Is(err, os.ErrNotExist) {
		return errors.Join(err, remove(tmp))
	}
	if err := os.Rename(tmp, paths[0]); err != nil {
		return errors.Join(err, remove(tmp))
	}

	return syncDir(b.file.dir)
}

// forgetTemp removes the temporary files of an agent that was killed.
func forgetTemp(path string) {
	for _, name := range []string{filepath.Join(filepath.Dir(path), tempName), rewriting(path), rewriting(logPath(path)), rewriting(copyPaths(path)[0])} {
		_ = os.Remove(name) // the next copy reports why it cannot be removed
	}
}

// HasCopies reports whether there is an automatic copy.
func (b *backups) HasCopies() bool {
	for _, path := range copyPaths(b.file.path) {
		if exists(path) {
			return true
		}
	}
	return false
}

// LastCopy reads the newest automatic copy that is valid. The error names the reason for each copy
// that it rejected, and is ErrNotExist if there is none. LastCopy changes no file.
func (b *backups) LastCopy() (out Restorable, err error) {
	var errs []error
	for _, path := range copyPaths(b.file.path) {
		f, err := os.Open(path)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out, err = b.ReadBackup(io.Reader(f))
		if err = errors.Join(err, f.Close()); err == nil {
			return out, nil
		}
		errs = append(errs, fmt.Errorf("cannot use the copy %s: %w", path, err))
	}

	return out, errors.Join(errs...)
}

// report warns if a copy could not be made.
func (b *backups) report(err error) {
	if err != nil {
		b.file.warn(fmt.Sprintf("cannot make a copy of %s; the one before it is kept: %v", b.file.path, err))
	}
}
