package statedb

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/bbolt"

	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// file is the open bbolt file. The writer checks before each commit that the file is still at its
// path.
type file struct {
	place
	dir  string
	bolt opened
	// The writer locks swap to replace bolt. Other goroutines hold its read lock while they use
	// bolt.
	swap sync.RWMutex

	// misplaced is the reason why the next commit will fail, or nil. keepPlace sets it, and
	// place.mu guards it.
	misplaced error
	// broken is set after a panic of bbolt in a commit, because bbolt may still hold its locks.
	// Only the writer uses it.
	broken error
}

func newFile(path string, b opened, h home, warn func(string)) *file {
	return &file{place: place{path: path, home: h, warn: warn}, dir: filepath.Dir(path), bolt: b, misplaced: b.unwritable(path)}
}

// close closes the file.
func (f *file) close() error {
	if f.broken != nil {
		return errors.Join(f.broken, f.bolt.abandon())
	}
	return f.bolt.Close()
}

// fault returns the reason why the next commit will fail, or nil if the next commit is expected to
// succeed.
func (f *file) fault() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.misplaced
}

// keepPlace ensures that the file at the path is the file that the database has open. The writer
// calls it before each commit.
func (f *file) keepPlace() (err error) {
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.misplaced = err
	}()

	if f.broken != nil {
		return nil // the commit reports the error, and bbolt can no longer read the file
	}
	if f.bolt.readOnly {
		if err := f.reopen(); err != nil {
			return err
		}
	}

	was, err := f.keep(f.bolt.info, f.rewrite)
	if foreign := f.Foreign(); err == nil && was != inPlace && foreign != nil {
		return foreign
	}
	return err
}

// rewrite copies the committed content of the open file to a new file, which replaces the file at
// the path.
func (f *file) rewrite() error {
	tmp := rewriting(f.path)
	if err := copyTo(f.bolt.DB, tmp); err != nil {
		return errors.Join(err, remove(tmp))
	}

	b, err := openBolt(tmp, time.Second)
	if err != nil {
		return errors.Join(err, remove(tmp))
	}
	if err := os.Rename(tmp, f.path); err != nil {
		return errors.Join(err, b.Close(), remove(tmp))
	}

	err = syncDir(f.dir)
	f.swap.Lock()
	old := f.bolt
	f.bolt = b
	f.swap.Unlock()
	return errors.Join(err, old.Close())
}

// reopen opens the file for writing as soon as its file system permits writes. Until then, changes
// are only in memory.
func (f *file) reopen() error {
	if err := f.bolt.unwritable(f.path); err != nil {
		return err
	}

	f.swap.Lock()
	defer f.swap.Unlock()
	if err := f.bolt.Close(); err != nil { // Close releases bbolt's lock, which would otherwise block the next open
		return err
	}

	b, err := openBolt(f.path, time.Second)
	if b.DB != nil {
		f.bolt = b
	}
	if err != nil {
		return err
	}

	return b.unwritable(f.path)
}

// view runs a read transaction. It holds a lock, so that the writer does not replace bolt during
// the transaction. The writer must not call view while it replaces bolt.
func (f *file) view(fn func(*bbolt.Tx) error) error {
	f.swap.RLock()
	defer f.swap.RUnlock()
	return f.bolt.View(fn)
}

// update runs a write transaction. After a panic in one transaction, update refuses all later ones.
func (f *file) update(fn func(*bbolt.Tx) error) (err error) {
	if f.broken != nil {
		return f.broken
	}
	defer guard(func(p any) {
		f.broken = fmt.Errorf("it is damaged: %v", p)
		err = f.broken
	})()

	return f.bolt.Update(fn)
}

// unwritten converts the error of a failed commit to a message with a hint.
func (f *file) unwritten(err error) error {
	e := volume.Errorf(err, "cannot write the state database in %s: %v", f.dir, err)
	var foreign *Foreign
	switch {
	case errors.As(err, &foreign):
		return foreign.refusal()
	case f.broken != nil:
		return e.WithHint("stop the agent, move state.db aside and start the agent again: it adopts the mounted volumes")
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return e.WithHint("free space there, then try again: %s", suggest.Command("df -h %s", f.dir))
	case errors.Is(err, syscall.EROFS):
		return e.WithHint("mount it for writing, then try again: %s", suggest.Command("findmnt -T %s", f.dir))
	default:
		return e.WithHint("check the disk under %s, then try again: %s; dmesg", f.dir, suggest.Command("df -h %s", f.dir))
	}
}
