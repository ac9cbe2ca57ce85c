package statedb

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// The database keeps two automatic copies beside its file. An agent uses them if it finds the file
// missing or damaged. A copy is a backup with a seal. The newer copy is state.copy-1, and the older
// one is state.copy-2. After a commit, the writer waits for copySoon before it makes a copy. It
// also waits until the newest copy is copyEvery old. A migration makes a copy before it changes the
// file. No commit waits for a copy. The writer does not copy a file that fails its check, so a bad
// copy never replaces a good one.

const (
	copySoon  = 2 * time.Second
	copyEvery = 5 * time.Minute
)

// copyPaths returns the paths of a file's automatic copies, with the newer copy first.
func copyPaths(path string) []string {
	dir := filepath.Dir(path)
	return []string{filepath.Join(dir, "state.copy-1"), filepath.Join(dir, "state.copy-2")}
}

// copier decides when to make a copy. Only the writer goroutine uses it.
type copier struct {
	newest string           // path of the newest copy
	stale  bool             // a commit was made after the start of the last copy
	due    <-chan time.Time // fires when the next copy is due; nil if none is planned
	ended  chan error       // receives the result of the current copy; nil if no copy is in progress
	tried  time.Time        // time at which the last copy was started
}

// plan schedules the next copy if one is needed.
func (c *copier) plan() {
	if !c.stale || c.due != nil || c.ended != nil {
		return
	}

	last := c.tried
	if info, err := os.Stat(c.newest); err != nil {
		last = time.Time{} // no copy exists yet, so the first copy must not be delayed
	} else if info.ModTime().Before(time.Now()) {
		last = info.ModTime() // an earlier agent may have made the copy at this time
	}
	c.due = time.After(copyWait(time.Since(last)))
}

// copyWait returns the delay from a commit to the next copy. The parameter age is the age of the
// last copy.
func copyWait(age time.Duration) time.Duration { return max(copySoon, copyEvery-age) }

// start makes a copy in a new goroutine.
func (c *copier) start(keep func() error) {
	c.due, c.stale, c.tried, c.ended = nil, false, time.Now(), make(chan error, 1)
	go func(ended chan<- error) { ended <- keep() }(c.ended)
}

// rotate makes a copy and syncs it to disk. The copy that was the newest becomes the older one.
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

// forgetTemp removes temporary files that a killed agent left behind.
func forgetTemp(path string) {
	for _, name := range []string{filepath.Join(filepath.Dir(path), tempName), rewriting(path), rewriting(logPath(path)), rewriting(copyPaths(path)[0])} {
		_ = os.Remove(name) // if the removal fails, the next copy reports the reason
	}
}

// HasCopies reports whether an automatic copy exists.
func (b *backups) HasCopies() bool {
	return slices.ContainsFunc(copyPaths(b.file.path), exists)
}

// LastCopy reads the newest valid copy. If copies exist but none is valid, the error gives a reason
// for each copy. If no copy exists, the error is ErrNotExist. LastCopy changes no file.
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

// report warns if the database could not make a copy.
func (b *backups) report(err error) {
	if err != nil {
		b.file.warn(fmt.Sprintf("cannot make a copy of %s; the database keeps the previous copy: %v", b.file.path, err))
	}
}
