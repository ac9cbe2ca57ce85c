package statedb

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// A backup is a copy of the committed file, followed by a seal. The seal is a block with the time
// of the backup and a checksum of the pages. A backup can replace the database file, because bbolt
// knows where its pages end and ignores the seal.
const (
	seal     = "volagent state backup\n"
	sealSize = 4096
	// backupMost is the maximum size, in bytes, of a backup that ReadBackup accepts.
	backupMost = 4 << 30
)

// tempName is the name of a temporary copy between its creation and its unlinking. The agent
// unlinks the file before it writes to the file. If the agent is killed between these two steps,
// only an empty file remains.
const tempName = "state.db.copy"

// Backup is an open copy of the database file.
type Backup struct {
	// The file is positioned at its beginning. It has no name, so the kernel removes it when it is
	// closed.
	*os.File
	Size int64
}

// backups makes backups of the file and reads them.
type backups struct {
	file *file
	// copying is held while a temporary copy has a name.
	copying sync.Mutex
}

// backup makes a backup of the committed file.
func (b *backups) backup() (*Backup, error) {
	f, err := b.temp()
	if err != nil {
		return nil, b.uncopied(err)
	}

	size, err := b.write(f)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(b.uncopied(err), f.Close())
	}

	return &Backup{File: f, Size: size}, nil
}

// write writes the committed pages and the seal, and returns the number of bytes.
func (b *backups) write(to io.Writer) (size int64, err error) {
	sum := sha256.New()
	err = b.file.view(func(tx *bbolt.Tx) (err error) {
		size, err = tx.WriteTo(io.MultiWriter(to, sum))
		return err
	})
	if err != nil {
		return 0, err
	}

	n, err := to.Write(sealOf(time.Now().UTC(), size, sum.Sum(nil)))
	return size + int64(n), err
}

func sealOf(at time.Time, size int64, sum []byte) []byte {
	block := make([]byte, sealSize)
	copy(block, fmt.Sprintf("%staken %s\nbytes %d\nsha256 %x\n", seal, at.Format(time.RFC3339), size, sum))
	return block
}

// temp creates a file without a name in the directory of the database. The kernel removes the file
// when it is closed.
func (b *backups) temp() (*os.File, error) {
	b.copying.Lock()
	defer b.copying.Unlock()
	path := filepath.Join(b.file.dir, tempName)
	f, err := createNew(path)
	if err != nil {
		return nil, err
	}
	if err := remove(path); err != nil {
		return nil, errors.Join(err, f.Close())
	}

	return f, nil
}

func (b *backups) uncopied(err error) error {
	return volume.Errorf(err, "cannot make a copy of the state database in %s: %v", b.file.dir, err).WithHint("free space there, then try again: %s", suggest.Command("df -h %s", b.file.dir))
}

// Restorable is the content of a backup.
type Restorable struct {
	View
	// Taken is the time of the backup. It is zero for a plain copy of a database, which has no
	// seal.
	Taken time.Time
}

// ReadBackup reads a backup, or a plain copy of a database, and checks all its content. If the
// schema is older, ReadBackup migrates a copy, so the source does not change. The error is an
// ErrInvalid if the data is damaged or is not a database, and an ErrRefused if the schema is newer.
func (b *backups) ReadBackup(r io.Reader) (out Restorable, err error) {
	return b.read(r, migrations)
}

func (b *backups) read(r io.Reader, steps []migration) (out Restorable, err error) {
	f, err := b.temp()
	if err != nil {
		return out, b.uncopied(err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()

	// The type reading stores errors of the source, which distinguishes them from errors of the
	// local disk.
	in := &reading{r: io.LimitReader(r, backupMost+1)}
	size, err := io.Copy(f, in)
	switch {
	case in.err != nil:
		return out, volume.Errorf(volume.ErrInvalid, "the backup was cut short: %v", in.err)
	case err != nil:
		return out, b.uncopied(err)
	case size == 0:
		return out, volume.Errorf(volume.ErrInvalid, "the file is empty, so it is not a backup")
	case size > backupMost:
		return out, volume.Errorf(volume.ErrInvalid, "the file has more than %d bytes, so it is not a backup", int64(backupMost))
	}
	if out.Taken, err = checkSeal(f, size); err != nil {
		return out, err
	}
	mem, err := readCopy("/proc/self/fd/"+strconv.Itoa(int(f.Fd())), steps)
	if err == nil {
		out.View = View{mem}
	}
	return out, err
}

// reading is a reader that stores the error of its source.
type reading struct {
	r   io.Reader
	err error
}

func (r *reading) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}

// checkSeal compares the content of a file with its seal. It accepts a file without a seal as a
// plain copy.
func checkSeal(f *os.File, size int64) (taken time.Time, err error) {
	block := make([]byte, sealSize)
	if size < sealSize {
		return taken, nil
	}
	if _, err := f.ReadAt(block, size-sealSize); err != nil {
		return taken, fmt.Errorf("cannot read the copy again: %w", err)
	}
	if !bytes.HasPrefix(block, []byte(seal)) {
		return taken, nil
	}
	var at, sum string
	var pages int64
	if _, err := fmt.Sscanf(string(block[len(seal):]), "taken %s\nbytes %d\nsha256 %s\n", &at, &pages, &sum); err != nil || pages != size-sealSize {
		return taken, damaged("its seal belongs to another file")
	}
	if taken, err = time.Parse(time.RFC3339, at); err != nil {
		return taken, damaged("its seal belongs to another file")
	}
	is := sha256.New()
	if _, err := io.Copy(is, io.NewSectionReader(f, 0, pages)); err != nil {
		return taken, fmt.Errorf("cannot read the copy again: %w", err)
	}
	if hex.EncodeToString(is.Sum(nil)) != sum {
		return taken, damaged("its content does not match its checksum")
	}

	return taken, nil
}

func damaged(why string) error {
	return volume.Errorf(volume.ErrInvalid, "the backup is damaged: %s", why).WithHint("take another backup")
}

// readCopy opens a writable copy of a database and checks it against the rules of the domain. It
// checks only the pages that it reads. It does not run bbolt's own check of all pages. That check
// would panic over damage in another goroutine, where guard does not recover it. The seal already
// covers every page.
func readCopy(path string, steps []migration) (s *state, err error) {
	defer guard(func(p any) { err = damaged(fmt.Sprintf("it cannot be read: %v", p)) })()
	b, err := openBolt(path, time.Second)
	var n contentError
	if errors.As(err, &n) {
		return s, volume.Errorf(volume.ErrInvalid, "the file is not a backup, or it is damaged: %v", n.error)
	}
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	known, found := schemaOf(steps), 0
	err = b.View(func(tx *bbolt.Tx) (err error) {
		if found, err = schema(tx, known); err != nil && found > known {
			return volume.Errorf(volume.ErrRefused, "the backup cannot be restored: %v", err)
		} else if err != nil {
			return damaged(err.Error())
		}

		return nil
	})
	if err != nil {
		return s, err
	}
	if found == 0 {
		return s, volume.Errorf(volume.ErrInvalid, "the file contains no state, so it is not a backup")
	}
	for v := found; v < known; v++ {
		if err := b.Update(steps[v-1].run); err != nil {
			return s, damaged(fmt.Sprintf("it cannot be migrated from schema %d to %d: %v", v, v+1, err))
		}
	}

	err = b.View(func(tx *bbolt.Tx) error {
		if s, err = read(tx); err == nil {
			err = s.check()
		}
		if err != nil {
			return damaged(err.Error())
		}
		return nil
	})

	return s, err
}
