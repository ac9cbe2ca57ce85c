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

// The agent keeps its files open. A person or a program may still remove or replace them, and
// changes that the agent then writes would be lost at its next start. The lock is therefore on the
// directory, which outlives the files in it. Before each commit and each line of the log, the agent
// compares the file at the path with the open one:
//
//	the same      nothing to do
//	gone          the agent writes it again, from the open file
//	another one   the agent renames it to <file>.foreign-<UTC time> and writes its own file
//	              again. Intents are refused until the agent is restarted, because a person
//	              has to decide which of the two files counts
//
// An idle agent makes the same comparison every tendEvery.

// tendEvery is the interval at which the writer checks the files even if it writes nothing.
const tendEvery = 30 * time.Second

// Foreign is the fault of a database whose file or log was replaced while it was open. Intents are
// refused until the agent is restarted.
type Foreign struct {
	Path string // the file that was replaced
	Kept string // the new name of the file that was found at Path
}

// Error implements error.
func (f *Foreign) Error() string {
	return fmt.Sprintf("%s was replaced while the agent used it; the other file is kept as %s, and changes are refused", f.Path, f.Kept)
}

func (f *Foreign) refusal() error {
	return volume.Errorf(f, "cannot change anything: %v", f).WithHint("systemctl restart volagent")
}

// home is the locked directory of the database.
type home struct {
	*os.File
	info os.FileInfo
}

// lockHome opens the directory of a database and locks it. Only one process at a time can then open
// the database, even if its files are removed or replaced. The descriptor is closed on exec, so
// plugins do not inherit the lock. If the file system cannot lock directories (NFS), only the lock
// on the file remains.
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

// unlock closes the directory. It may be called more than once.
func (h home) unlock() error {
	if err := h.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// lock waits for a lock. The error wraps EWOULDBLOCK if another process keeps it.
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

// locked reports whether another process has locked a directory.
func locked(dir string) bool {
	f, err := os.Open(dir)
	if err != nil {
		return false
	}

	err = lock(f, syscall.LOCK_SH, 0)
	_ = f.Close() // closing a file that was only read loses nothing
	return errors.Is(err, syscall.EWOULDBLOCK)
}

// standing is the result of comparing an open file with the file at its path.
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

// setAside renames a file to <file>.<kind>-<UTC time>, and adds a number if that name is in use.
func setAside(path, kind string) (kept string, err error) {
	at := time.Now().UTC().Format("20060102T150405Z")
	kept = fmt.Sprintf("%s.%s-%s", path, kind, at)
	for n := 2; exists(kept); n++ {
		kept = fmt.Sprintf("%s.%s-%s.%d", path, kind, at, n)
	}
	return kept, os.Rename(path, kept)
}

// rewriting returns the temporary name of the file that will replace path.
func rewriting(path string) string { return path + ".new" }

// keepPlace makes sure that the file at the path is the open one. The writer calls it before each
// commit.
func (db *DB) keepPlace() (err error) {
	defer func() {
		db.mu.Lock()
		defer db.mu.Unlock()
		db.misplaced = err
	}()

	if db.broken != nil {
		return nil // the commit reports it, and bbolt can no longer read the file
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

// disown renames the file that replaced the open one.
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

// Foreign returns the file that replaced the database or the log, or nil.
func (db *DB) Foreign() *Foreign {
	if f := db.log.foreignFile(); f != nil {
		return f
	}
	db.mu.RLock()
	defer db.mu.RUnlock()
	return db.foreign
}

// admit refuses intents if the database or its log was replaced. It returns the other requests.
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

// rewrite copies the last committed content of the open file to a new file, which takes its place.
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

// unwritable returns the reason why a file that is open read-only cannot be written. It returns nil
// if the file is open for writing or could be.
func (o opened) unwritable(path string) error {
	if !o.readOnly {
		return nil
	}

	// access(2) does not notice that ext4 refuses writes after an error, so open the file.
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("the file system of %s can only be read: %w", path, err)
	}
	return f.Close()
}

// reopen opens the file for writing as soon as its file system allows that. Until then the changes
// are kept in memory.
func (db *DB) reopen() error {
	if err := db.bolt.unwritable(db.path); err != nil {
		return err
	}

	db.swap.Lock()
	defer db.swap.Unlock()
	if err := db.bolt.Close(); err != nil { // this drops its lock, which would block the next open
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

// remove removes a file. It is not an error if the file does not exist.
func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// view runs a read transaction. The lock makes it safe while the writer exchanges the file. The
// writer itself must not call it during that exchange.
func (db *DB) view(fn func(*bbolt.Tx) error) error {
	db.swap.RLock()
	defer db.swap.RUnlock()
	return db.bolt.View(fn)
}

// tend checks the files of a database that may be idle.
func (db *DB) tend() {
	_ = db.keepPlace() // Fault reports the error
	_ = db.log.tend()  // the next line or the next tend tries again
}

// tend locks the log and calls keepPlace.
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

// keepPlace makes sure that the file at the path is the open one. The caller holds mu.
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

// rewrite copies the valid lines of the log to a new file, which replaces the missing one. The log
// is never synced.
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
