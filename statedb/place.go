package statedb

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// The agent keeps its files open. An operator or a program may still remove or replace the files.
// Changes that the agent then writes to the open files would be lost at its next start. The lock is
// therefore on the directory, which outlives the files in it. Before each commit and each line of
// the log, the agent compares the file at the path with the open file:
//
//	the same      the agent does nothing
//	missing       the agent writes the file again, with the content of the open file
//	another one   the agent renames the other file to <file>.foreign-<UTC time> and writes its
//	              own file again. The agent then refuses intents until it is restarted, because
//	              an operator must decide which of the two files is right
//
// An idle agent makes the same comparison every tendEvery.

// Foreign is the error of a database whose file or log was replaced by another file while the
// database was open. The agent refuses intents until it is restarted.
type Foreign struct {
	Path string // path of the agent's own file
	Kept string // new path of the other file
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
// the database, even if its files are removed or replaced. The kernel closes the descriptor on
// exec, so plugins do not inherit the lock. If the file system cannot lock directories (NFS), only
// the lock on the file protects the database.
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

// locked reports whether another process has locked a directory.
func locked(dir string) bool {
	f, err := os.Open(dir)
	if err != nil {
		return false
	}

	err = lock(f, syscall.LOCK_SH, 0)
	_ = f.Close() // the directory was only read, so closing it can lose no data
	return errors.Is(err, syscall.EWOULDBLOCK)
}

// standing is the result of comparing an open file with the file at its path.
type standing int

const (
	inPlace standing = iota
	missing
	replaced
)

// look checks whether the file at a path in the directory is still the open file.
func (h home) look(path string, open os.FileInfo) (standing, error) {
	dir := filepath.Dir(path)
	if now, err := os.Stat(dir); err != nil || !os.SameFile(now, h.info) {
		return missing, errors.Join(fmt.Errorf("%s was moved or replaced while the agent used it", dir), err)
	}

	switch now, err := os.Stat(path); {
	case errors.Is(err, os.ErrNotExist):
		return missing, nil
	case err != nil:
		return missing, fmt.Errorf("cannot inspect %s: %w", path, err)
	case !os.SameFile(now, open):
		return replaced, nil
	}

	return inPlace, nil
}

// place is an open file with the path at which the file must remain.
type place struct {
	path string
	home home
	warn func(string)

	mu sync.Mutex
	// foreign is the error if another file has replaced the open file, or nil.
	foreign *Foreign
}

// Foreign returns an error if another file has replaced the open file. Otherwise it returns nil.
func (p *place) Foreign() *Foreign {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.foreign
}

// keep ensures that the file at the path is the open file. If the file at the path is missing or is
// a different file, keep calls rewrite, which writes the content of the open file to the path
// again.
func (p *place) keep(open os.FileInfo, rewrite func() error) (was standing, err error) {
	was, err = p.home.look(p.path, open)
	switch {
	case err != nil, was == inPlace:
		return was, err
	case was == replaced && p.Foreign() != nil:
		return was, fmt.Errorf("%s was replaced again while the agent used it", p.path)
	case was == replaced:
		if err := p.disown(); err != nil {
			return was, err
		}
	}
	if err := rewrite(); err != nil {
		return was, fmt.Errorf("%s is missing, and the agent cannot write it again: %w", p.path, err)
	}
	if was == missing {
		p.warn(p.path + " was removed while the agent used it, and is written again")
	}

	return was, nil
}

// disown renames the other file that has replaced the open file.
func (p *place) disown() error {
	kept, err := setAside(p.path, "foreign")
	if err != nil {
		return fmt.Errorf("%s was replaced while the agent used it, and the agent cannot rename the other file: %w", p.path, err)
	}

	f := &Foreign{p.path, kept}
	p.mu.Lock()
	p.foreign = f
	p.mu.Unlock()
	p.warn(f.Error())
	return nil
}
