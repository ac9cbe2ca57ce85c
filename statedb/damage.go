package statedb

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// Damage is returned by Open for a file that can be read and makes no sense. A
// newer schema, a file that another process holds, and storage that answers
// with errors are none: what is in such a file may be all right.
type Damage struct {
	Path string
	Why  error

	file os.FileInfo // of the file that was found damaged
}

// Error implements error.
func (d *Damage) Error() string { return fmt.Sprintf("%s is damaged: %v", d.Path, d.Why) }

// Unwrap returns what is wrong with the file.
func (d *Damage) Unwrap() error { return d.Why }

// SetAside renames the damaged file, beside which a new one can then be made,
// and returns its new name. The file itself is not changed. It returns
// ErrLocked, and renames nothing, if somebody else dealt with it meanwhile.
func (d *Damage) SetAside() (kept string, err error) {
	f, err := os.OpenFile(d.Path, os.O_RDWR, 0)
	if err != nil {
		return "", fmt.Errorf("cannot set the damaged state database aside: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return "", fmt.Errorf("cannot set %s aside: %w", d.Path, ErrLocked)
	}
	if now, err := os.Stat(d.Path); err != nil || !os.SameFile(now, d.file) {
		return "", fmt.Errorf("cannot set %s aside: %w", d.Path, ErrLocked)
	}
	if kept, err = setAside(d.Path, "damaged"); err != nil {
		return "", fmt.Errorf("cannot set the damaged state database aside: %w", err)
	}
	return kept, syncDir(filepath.Dir(d.Path))
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, os.ErrNotExist)
}

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("cannot open the directory of the state database: %w", err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("cannot write the directory of the state database: %w", err)
	}
	return nil
}

// nonsense is an error about what a file holds, as against how it is had.
type nonsense struct{ error }

func (n nonsense) Unwrap() error { return n.error }

// judge tells damage from storage that cannot be read: bbolt reports both as an
// invalid file, and a page that cannot be had looks like one that was lost.
func judge(path string, file os.FileInfo, err error) error {
	var n nonsense
	if file == nil || !errors.As(err, &n) {
		return err
	}
	f, oerr := os.Open(path)
	if oerr != nil {
		return fmt.Errorf("cannot open the state database: %w", oerr)
	}
	_, rerr := io.Copy(io.Discard, f)
	if rerr = errors.Join(rerr, f.Close()); rerr != nil {
		return fmt.Errorf("cannot read the state database: %w", rerr)
	}
	return &Damage{Path: path, Why: n.error, file: file}
}

// opened is an open bbolt file.
type opened struct {
	*bbolt.DB
	file     *os.File    // bbolt's own, which it does not give up when it panics
	info     os.FileInfo // of it
	readOnly bool        // because the file system is
}

// abandon lets go of a file that bbolt panicked over and may wait for for ever
// if it is asked to. What is mapped of the file would keep its lock.
func (o opened) abandon() error {
	return errors.Join(syscall.Flock(int(o.file.Fd()), syscall.LOCK_UN), o.file.Close())
}

// prepare opens and locks the file, and checks its pages.
func (o *opened) prepare(path string, wait time.Duration) (err error) {
	// A FIFO or a device would block, or be changed.
	o.file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NONBLOCK, 0o600)
	if o.readOnly = errors.Is(err, syscall.EROFS); o.readOnly {
		o.file, err = os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	}
	if err != nil {
		return fmt.Errorf("cannot open the state database: %w", err)
	}
	if o.info, err = o.file.Stat(); err == nil && !o.info.Mode().IsRegular() {
		err = errors.New("it is not a regular file")
	}
	if err == nil {
		if err = lock(o.file, syscall.LOCK_EX, wait); errors.Is(err, syscall.EWOULDBLOCK) {
			err = ErrLocked
		}
	}
	if err != nil {
		return errors.Join(fmt.Errorf("cannot open %s: %w", path, err), o.file.Close())
	}
	if o.info.Size() == 0 { // it is new
		return nil
	}
	if err := checkPages(o.file, o.info.Size()); err != nil {
		return errors.Join(err, o.file.Close())
	}
	return nil
}

// openBolt opens the file. An error that is nonsense comes with the info of the
// file that it is about.
func openBolt(path string, wait time.Duration) (o opened, err error) {
	defer guard(func(p any) {
		err = errors.Join(nonsense{fmt.Errorf("it cannot be opened: %v", p)}, o.abandon())
	})()
	if err := o.prepare(path, wait); err != nil {
		return o, err
	}
	// The list of free pages is written with each commit, a page of it: without
	// it (NoFreelistSync) Open would look for them in a goroutine of bbolt's own,
	// which no guard is around, so a damaged file would end the process.
	o.DB, err = bbolt.Open(path, 0o600, &bbolt.Options{
		Timeout: wait, InitialMmapSize: initialMmap, FreelistType: bbolt.FreelistMapType, ReadOnly: o.readOnly,
		OpenFile: func(string, int, os.FileMode) (*os.File, error) { return o.file, nil },
	})
	switch {
	case err == nil:
		return o, nil
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrVersionMismatch), errors.Is(err, berrors.ErrChecksum),
		o.info.Size() > 0 && o.info.Size() < 2*int64(os.Getpagesize()): // bbolt has no name for this
		return o, nonsense{err}
	default:
		return o, fmt.Errorf("cannot open the state database %s: %w", path, err)
	}
}

// guard is deferred around what reads the file's pages, as in defer guard(f)():
// bbolt panics over damage, and a page that the file has lost is a fault in its
// memory map, which is a panic only in a goroutine that asked for it.
func guard(damaged func(panicked any)) (end func()) {
	before := debug.SetPanicOnFault(true)
	return func() {
		debug.SetPanicOnFault(before)
		if p := recover(); p != nil {
			damaged(worded(p))
		}
	}
}

// worded says in a person's words what reading a page came to, and for whoever has to find
// a mistake in this program what Go calls it.
func worded(panicked any) any {
	if _, is := panicked.(interface{ Addr() uintptr }); is { // see debug.SetPanicOnFault
		return fmt.Sprintf("a part of it is missing (%v)", panicked)
	}
	if _, is := panicked.(runtime.Error); is {
		return fmt.Sprintf("a page of it makes no sense (%v)", panicked)
	}
	return panicked
}
