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

// file is the open bbolt file, which has to stay at its path.
type file struct {
	place
	dir  string
	bolt opened
	swap sync.RWMutex // held by the writer while it exchanges bolt, by others while they use bolt

	// misplaced is the reason why the file at the path may not be the open one. Guarded by place.mu.
	misplaced error
	// broken is set once bbolt has panicked in a commit, because bbolt may still hold locks. It
	// belongs to the writer.
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

// fault returns the reason why the next commit will fail, as far as it is known.
func (f *file) fault() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.misplaced
}

// keepPlace makes sure that the file at the path is the open one. The writer calls it before each
// commit.
func (f *file) keepPlace() (err error) {
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.misplaced = err
	}()

	if f.broken != nil {
		return nil // the commit reports it, and bbolt can no longer read the file
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

// rewrite copies the last committed content of the open file to a new file, which takes its place.
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

// reopen opens the file for writing as soon as its file system allows that. Until then the changes
// are kept in memory.
func (f *file) reopen() error {
	if err := f.bolt.unwritable(f.path); err != nil {
		return err
	}

	f.swap.Lock()
	defer f.swap.Unlock()
	if err := f.bolt.Close(); err != nil { // this drops its lock, which would block the next open
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

// view runs a read transaction. The lock makes it safe while the writer exchanges the file. The
// writer itself must not call it during that exchange.
func (f *file) view(fn func(*bbolt.Tx) error) error {
	f.swap.RLock()
	defer f.swap.RUnlock()
	return f.bolt.View(fn)
}

// update runs a transaction. After a panic in a transaction it starts no other.
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

// unwritten turns the error of a failed commit into a message with a hint.
func (f *file) unwritten(err error) error {
	e := volume.Errorf(err, "cannot write the state database in %s: %v", f.dir, err)
	var foreign *Foreign
	switch {
	case errors.As(err, &foreign):
		return foreign.refusal()
	case f.broken != nil:
		return e.WithHint("stop the agent, move state.db aside and start it again: it takes up what is mounted")
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return e.WithHint("free space there, then ask again: %s", suggest.Command("df -h %s", f.dir))
	case errors.Is(err, syscall.EROFS):
		return e.WithHint("mount it for writing, then ask again: %s", suggest.Command("findmnt -T %s", f.dir))
	default:
		return e.WithHint("look at the disk under %s, then ask again: %s; dmesg", f.dir, suggest.Command("df -h %s", f.dir))
	}
}
