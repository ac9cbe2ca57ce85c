package statedb

import (
	"bufio"
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

// initialMmap is the initial size of the memory map. If the file outgrows the map, bbolt must map
// it again, which waits for readers. A large map avoids this wait. It uses address space, but no
// memory.
const initialMmap = 256 << 20

// Damage is the error of Open for a file that can be read but has invalid content. A file is not
// damaged if it has a newer schema, if another process has locked it, or if the storage returns
// errors.
type Damage struct {
	Path string
	Why  error

	file os.FileInfo // identity of the damaged file
}

// Error implements error.
func (d *Damage) Error() string { return fmt.Sprintf("%s is damaged: %v", d.Path, d.Why) }

// Unwrap returns the reason.
func (d *Damage) Unwrap() error { return d.Why }

// SetAside renames the damaged file and returns its new name. The content does not change. If
// another process has locked or replaced the file in the meantime, SetAside renames nothing and
// returns ErrLocked.
func (d *Damage) SetAside() (kept string, err error) {
	f, err := os.OpenFile(d.Path, os.O_RDWR, 0)
	if err != nil {
		return "", fmt.Errorf("cannot rename the damaged state database: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()

	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return "", fmt.Errorf("cannot set %s aside: %w", d.Path, ErrLocked)
	}
	if now, err := os.Stat(d.Path); err != nil || !os.SameFile(now, d.file) {
		return "", fmt.Errorf("cannot set %s aside: %w", d.Path, ErrLocked)
	}
	if kept, err = setAside(d.Path, "damaged"); err != nil {
		return "", fmt.Errorf("cannot rename the damaged state database: %w", err)
	}

	return kept, syncDir(filepath.Dir(d.Path))
}

// contentError is an error about invalid content of a file. Errors about opening or reading a file
// have other types.
type contentError struct{ error }

func (n contentError) Unwrap() error { return n.error }

// judge returns a Damage error for a damaged file, and other errors for storage that cannot be
// read. It reads the whole file to distinguish the two cases, because bbolt reports both of them as
// an invalid file.
func judge(path string, file os.FileInfo, err error) error {
	var n contentError
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
	file     *os.File    // bbolt's descriptor, which bbolt leaves open after a panic
	info     os.FileInfo // attributes of file
	readOnly bool        // the file is on a read-only file system
}

// abandon closes a file after a panic of bbolt. It does not call bbolt's own Close, which might
// wait forever. It unlocks the file explicitly, because the memory map would otherwise keep the
// lock until the process ends.
func (o opened) abandon() error {
	return errors.Join(syscall.Flock(int(o.file.Fd()), syscall.LOCK_UN), o.file.Close())
}

// prepare opens and locks the file, and checks its pages.
func (o *opened) prepare(path string, wait time.Duration) (err error) {
	// Without O_NONBLOCK, opening a FIFO or a device could block, or change the device.
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
	if o.info.Size() == 0 { // the file is new
		return nil
	}
	if err := checkPages(o.file, o.info.Size()); err != nil {
		return errors.Join(err, o.file.Close())
	}

	return nil
}

// openBolt opens the file with bbolt. If it returns a contentError, o.info identifies the invalid
// file.
func openBolt(path string, wait time.Duration) (o opened, err error) {
	defer guard(func(p any) {
		err = errors.Join(contentError{fmt.Errorf("it cannot be opened: %v", p)}, o.abandon())
	})()
	if err := o.prepare(path, wait); err != nil {
		return o, err
	}

	// bbolt writes its list of free pages with each commit, which costs about one page. Without
	// that list (NoFreelistSync), Open would search for free pages in another goroutine. guard does
	// not recover a panic there, so a damaged file would end the process.
	o.DB, err = bbolt.Open(path, 0o600, &bbolt.Options{
		Timeout: wait, InitialMmapSize: initialMmap, FreelistType: bbolt.FreelistMapType, ReadOnly: o.readOnly,
		OpenFile: func(string, int, os.FileMode) (*os.File, error) { return o.file, nil },
	})
	switch {
	case err == nil:
		return o, nil
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrVersionMismatch), errors.Is(err, berrors.ErrChecksum),
		o.info.Size() > 0 && o.info.Size() < 2*int64(os.Getpagesize()): // the file is too short; bbolt has no specific error for this
		return o, contentError{err}
	default:
		return o, fmt.Errorf("cannot open the state database %s: %w", path, err)
	}
}

// guard recovers a panic of bbolt over a damaged file. Code that reads pages of the file uses it as
// defer guard(f)(). Access to a page that the file has lost causes a fault in the memory map. Go
// turns this fault into a panic only in a goroutine that has called debug.SetPanicOnFault.
func guard(damaged func(panicked any)) (end func()) {
	before := debug.SetPanicOnFault(true)
	return func() {
		debug.SetPanicOnFault(before)
		if p := recover(); p != nil {
			damaged(worded(p))
		}
	}
}

// worded describes a panic in plain words for the operator, and appends Go's own text for
// developers.
func worded(panicked any) any {
	if _, is := panicked.(interface{ Addr() uintptr }); is { // a memory fault, see debug.SetPanicOnFault
		return fmt.Sprintf("a part of it is missing (%v)", panicked)
	}
	if _, is := panicked.(runtime.Error); is {
		return fmt.Sprintf("it has an invalid page (%v)", panicked)
	}
	return panicked
}

// copyTo writes the database to a new file and syncs the file to disk.
func copyTo(b *bbolt.DB, path string) error {
	f, err := createNew(path)
	if err != nil {
		return err
	}

	w := bufio.NewWriter(f) // the buffer keeps the cause of an error, but bbolt does not
	err = b.View(func(tx *bbolt.Tx) error {
		_, err := tx.WriteTo(w)
		return err
	})

	return errors.Join(err, w.Flush(), f.Sync(), f.Close())
}

// unwritable returns the reason why a file that is open read-only cannot be opened for writing. It
// returns nil if opening the file for writing is possible.
func (o opened) unwritable(path string) error {
	if !o.readOnly {
		return nil
	}

	// access(2) does not detect that ext4 became read-only after a disk error. Only an attempt to
	// open the file for writing detects it.
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("the file system of %s can only be read: %w", path, err)
	}
	return f.Close()
}

// used returns how many bytes of its file the database uses, or 0 if the number is unknown.
func (o opened) used() (n int64) {
	_ = o.View(func(tx *bbolt.Tx) error { n = tx.Size(); return nil }) // an error is ignored, because the number appears only in a message
	return n
}
