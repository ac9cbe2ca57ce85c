package statedb

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"go.etcd.io/bbolt"

	"github.com/volagent/volagent/volmgr/volume"
)

// The agent keeps its files open. A person or a program may remove or replace them
// all the same, and what the agent writes then is lost at its next start. So the
// lock is on the directory, which outlives the files in it, and before each commit
// and each line of the log the file at the path is compared with the open one:
//
//	the same      nothing to do
//	gone          it is written again, from the open file
//	another one   it is renamed to <file>.foreign-<UTC time>, ours is written again, and
//	              intents are refused until the agent is started again: whoever put the
//	              file there has to decide which of the two counts
//
// The same comparison runs every tendEvery, for an agent that writes nothing.

// tendEvery is how often the writer looks after the files if nothing is written.
const tendEvery = 30 * time.Second

// Foreign is the fault of a database whose file, or log, was replaced while it was
// open. Intents are refused until the agent is started again.
type Foreign struct {
	Path string // of the file that was replaced
	Kept string // the new name of the file that was found there
}

// Error implements error.
func (f *Foreign) Error() string {
	return fmt.Sprintf("%s was replaced while the agent used it; the other file is kept as %s, and changes are refused", f.Path, f.Kept)
}

func (f *Foreign) refusal() error {
	return volume.Errorf(f, "cannot change anything: %v", f).WithHint("systemctl restart volagent")
}

// home is the directory of the database, locked.
type home struct {
	*os.File
	info os.FileInfo
}

// lockHome opens the directory of a database and locks it, so that one process at a time has a
// database there, whatever becomes of its files. The descriptor is closed on exec,
// so plugins do not inherit the lock. Where the file system cannot lock a directory
// (NFS), only the lock of the file is left.
func lockHome(path string, wait time.Duration) (h home, err error) {
	dir := filepath.Dir(path)
	if h.File, err = os.Open(dir); err != nil {
		return h, fmt.Errorf("cannot open the directory of the state database: %w", err)
	}
	if h.info, err = h.Stat(); err == nil {
		err = lock(h.File, syscall.LOCK_EX, wait)
	}
	switch {
	case err == nil, errors.Is(err, syscall.EBADF), errors.Is(err, syscall.ENOLCK), errors.Is(err, syscall.EOPNOTSUPP):
		return h, nil
	case errors.Is(err, syscall.EWOULDBLOCK):
		err = ErrLocked
	}
	return h, errors.Join(fmt.Errorf("cannot open %s: %w", path, err), h.Close())
}

// unlock is Close, once or more often.
func (h home) unlock() error {
	if err := h.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// lock waits for a lock; the error wraps EWOULDBLOCK if somebody else keeps it.
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

// locked reports whether another process has the lock of a directory.
func locked(dir string) bool {
	f, err := os.Open(dir)
	if err != nil {
		return false
	}
	err = lock(f, syscall.LOCK_SH, 0)
	_ = f.Close() // it was only read
	return errors.Is(err, syscall.EWOULDBLOCK)
}

// standing says which file is at the path of an open one.
type standing int

const (
	inPlace standing = iota
	missing
	replaced
)

// look compares the file at a path in the directory with the open one.
func (h home) look(path string, open os.FileInfo) (standing, error) {
	dir := filepath.Dir(path)
	if now, err := os.Stat(dir); err != nil || !os.SameFile(now, h.info) {
		return missing, errors.Join(fmt.Errorf("%s was moved or replaced while the agent used it", dir), err)
	}
	switch now, err := os.Stat(path); {
	case errors.Is(err, os.ErrNotExist):
		return missing, nil
	case err != nil:
		return missing, fmt.Errorf("cannot look at %s: %w", path, err)
	case !os.SameFile(now, open):
		return replaced, nil
	}
	return inPlace, nil
}

// setAside renames a file to <file>.<kind>-<UTC time>, with a number behind it if
// that name is taken.
func setAside(path, kind string) (kept string, err error) {
	at := time.Now().UTC().Format("20060102T150405Z")
	kept = fmt.Sprintf("%s.%s-%s", path, kind, at)
	for n := 2; exists(kept); n++ {
		kept = fmt.Sprintf("%s.%s-%s.%d", path, kind, at, n)
	}
	return kept, os.Rename(path, kept)
}

// rewriting is the name of a file that takes the place of one that is gone.
func rewriting(path string) string { return path + ".new" }

// keepPlace makes sure that the file at the path is the open one. It is the
// writer's, before each commit.
func (db *DB) keepPlace() (err error) {
	defer func() {
		db.mu.Lock()
		defer db.mu.Unlock()
		db.misplaced = err
	}()
	if db.broken != nil {
		return nil // the commit says so, and the file can no longer be read through bbolt
	}
	if db.bolt.readOnly {
		if err := db.reopen(); err != nil {
			return err
		}
	}
	now, err := db.home.look(db.path, db.bolt.info)
	switch {
	case err != nil:
		return err
	case now == inPlace:
		return nil
	case now == replaced && db.Foreign() != nil:
		return fmt.Errorf("%s was replaced again while the agent used it", db.path)
	case now == replaced:
		if err := db.disown(); err != nil {
			return err
		}
	}
	if err := db.rewrite(); err != nil {
		return fmt.Errorf("%s is gone, and cannot be written again: %w", db.path, err)
	}
	if f := db.Foreign(); f != nil {
		return f
	}
	db.warn(db.path + " was removed while the agent used it, and is written again")
	return nil
}

// disown sets the file aside that took the place of the open one.
func (db *DB) disown() error {
	kept, err := setAside(db.path, "foreign")
	if err != nil {
		return fmt.Errorf("%s was replaced while the agent used it, and the other file cannot be set aside: %w", db.path, err)
	}
	f := &Foreign{db.path, kept}
	db.mu.Lock()
	db.foreign = f
	db.mu.Unlock()
	db.warn(f.Error())
	return nil
}

// Foreign returns which file was replaced; nil if none was.
func (db *DB) Foreign() *Foreign {
	if f := db.log.foreignFile(); f != nil {
		return f
	}
	db.mu.RLock()
	defer db.mu.RUnlock()
	return db.foreign
}

// admit answers the intents of a database that takes none, and returns the rest.
func (db *DB) admit(reqs []*request) (rest []*request) {
	f := db.Foreign()
	if f == nil {
		return reqs
	}
	for _, r := range reqs {
		if r.mode == intent {
			r.done <- f.refusal()
		} else {
			rest = append(rest, r)
		}
	}
	return rest
}

// rewrite copies the open file, as it was last committed, to a new one, which takes
// its place.
func (db *DB) rewrite() error {
	tmp := rewriting(db.path)
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := copyTo(db.bolt.DB, tmp); err != nil {
		return errors.Join(err, remove(tmp))
	}
	b, err := openBolt(tmp, time.Second)
	if err != nil {
		return errors.Join(err, remove(tmp))
	}
	if err := os.Rename(tmp, db.path); err != nil {
		return errors.Join(err, b.Close(), remove(tmp))
	}
	err = syncDir(db.dir)
	db.swap.Lock()
	old := db.bolt
	db.bolt = b
	db.swap.Unlock()
	return errors.Join(err, old.Close())
}

// unwritable says why a file that is open for reading alone cannot be written; nil if it
// is open for writing.
func (o opened) unwritable(path string) error {
	if !o.readOnly {
		return nil
	}
	// access(2) does not know of an ext4 that refuses writes after an error.
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("the file system of %s can only be read: %w", path, err)
	}
	return f.Close()
}

// reopen opens the file for writing, once its file system allows that. Until then the
// database has in memory what happens.
func (db *DB) reopen() error {
	if err := db.bolt.unwritable(db.path); err != nil {
		return err
	}
	db.swap.Lock()
	defer db.swap.Unlock()
	if err := db.bolt.Close(); err != nil { // with it its lock goes, which is in the way
		return err
	}
	b, err := openBolt(db.path, time.Second)
	if b.DB != nil {
		db.bolt = b
	}
	if err != nil {
		return err
	}
	return b.unwritable(db.path)
}

// remove is os.Remove of a file that may not be there.
func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// view runs a read transaction. It may be called by anybody but the writer while
// that exchanges the file.
func (db *DB) view(fn func(*bbolt.Tx) error) error {
	db.swap.RLock()
	defer db.swap.RUnlock()
	return db.bolt.View(fn)
}

// tend looks after the files of a database that may be idle.
func (db *DB) tend() {
	_ = db.keepPlace() // Fault has it
	_ = db.log.tend()  // the next line, or the next tend, tries again
}

// tend is keepPlace with the lock.
func (l *logFile) tend() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return nil
	}
	return l.keepPlace()
}

func (l *logFile) foreignFile() *Foreign {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.foreign
}

// keepPlace makes sure that the file at the path is the open one; mu is held.
func (l *logFile) keepPlace() error {
	now, err := l.home.look(l.path, l.info)
	switch {
	case err != nil:
		return err
	case now == inPlace:
		return nil
	case now == replaced && l.foreign != nil:
		return fmt.Errorf("%s was replaced again while the agent used it", l.path)
	case now == replaced:
		kept, err := setAside(l.path, "foreign")
		if err != nil {
			return fmt.Errorf("%s was replaced while the agent used it, and the other file cannot be set aside: %w", l.path, err)
		}
		l.foreign = &Foreign{l.path, kept}
		l.warn(l.foreign.Error())
	}
	if err := l.rewrite(); err != nil {
		return fmt.Errorf("%s is gone, and cannot be written again: %w", l.path, err)
	}
	if now == missing {
		l.warn(l.path + " was removed while the agent used it, and is written again")
	}
	return nil
}

// rewrite copies the lines that count to a new file, which takes the place of the one
// that is gone. The log is never synced.
func (l *logFile) rewrite() error {
	lines := make([]byte, l.size)
	if _, err := l.f.ReadAt(lines, 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	tmp := rewriting(l.path)
	if err := remove(tmp); err != nil {
		return err
	}
	f, err := os.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, bytes.NewReader(lines))
	info, serr := f.Stat()
	if err = errors.Join(err, serr); err == nil {
		err = os.Rename(tmp, l.path)
	}
	if err != nil {
		return errors.Join(err, f.Close(), remove(tmp))
	}
	old := l.f
	l.f, l.info, l.broken = f, info, false
	return old.Close()
}
