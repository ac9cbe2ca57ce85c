package chaos_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// ledger records all writes to one storage volume, and the acknowledged writes among them.
type ledger struct {
	mu      sync.Mutex
	raw     bool
	entries map[string]*ledgerEntry // keyed by the writer's name
}

// ledgerEntry describes all writes of one writer. Each write has a sequence number. The written
// bytes follow from this number, the name of the storage and the name of the writer.
type ledgerEntry struct {
	slot    int    // index of the writer's region on a raw device
	acked   uint64 // number of the last acknowledged write, or 0
	last    uint64 // number of the last write that was started
	unknown bool   // after a failed write, a raw region may contain anything
}

const (
	rawRegion = 16 << 10 // size of each writer's region on a raw device
	rawSlots  = 40
)

// pattern returns the content of a write: its sequence number, pseudo-random bytes, and a checksum.
func pattern(storage, writer string, seq uint64, size int) []byte {
	sum := crc32.ChecksumIEEE([]byte(storage + "\x00" + writer))
	dice := rand.NewChaCha8([32]byte{byte(seq), byte(seq >> 8), byte(seq >> 16), byte(sum), byte(sum >> 8), byte(sum >> 16), byte(sum >> 24)})
	b := make([]byte, size)
	_, _ = dice.Read(b) // Read never fails
	binary.LittleEndian.PutUint64(b, seq)
	binary.LittleEndian.PutUint32(b[size-4:], crc32.ChecksumIEEE(b[:size-4]))
	return b
}

// patternSize returns the size of a file, which depends on the sequence number of the write.
func patternSize(seq uint64) int { return 512 + int(seq*7919%30000) }

// begin starts a write. It returns the sequence number of the write and the slot of the writer.
func (l *ledger) begin(writer string) (seq uint64, slot int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[writer]
	if e == nil {
		e = &ledgerEntry{slot: len(l.entries)}
		l.entries[writer] = e
	}
	e.last++
	return e.last, e.slot
}

// end records the result of a write.
func (l *ledger) end(writer string, seq uint64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[writer]
	e.unknown = err != nil
	if err == nil {
		e.acked = seq
	}
}

// holds returns an error unless the bytes in got are this writer's last acknowledged write or a
// later write.
func (l *ledger) holds(storage, writer string, got []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[writer]
	if e == nil || e.acked == 0 || l.raw && e.unknown {
		return nil
	}
	if len(got) < 16 {
		return fmt.Errorf("%q: write %d of %q is gone: there are %d bytes", storage, e.acked, writer, len(got))
	}
	seq := binary.LittleEndian.Uint64(got)
	if seq < e.acked || seq > e.last {
		return fmt.Errorf("%q holds write %d of %q, and %d was acknowledged", storage, seq, writer, e.acked)
	}
	if !bytes.Equal(got, pattern(storage, writer, seq, len(got))) || !l.raw && len(got) != patternSize(seq) {
		return fmt.Errorf("%q: the bytes of write %d of %q differ", storage, seq, writer)
	}
	return nil
}

// writers returns the names of all writers, sorted.
func (l *ledger) writers() (all []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for w := range l.entries {
		all = append(all, w)
	}
	slices.Sort(all)
	return all
}

// opened is a volume that a client uses. Its root directory or its device stays open, as in a real
// client process.
type opened struct {
	s    *chaosStorage
	path string
	file *os.File
}

// openClaimed opens the root directory or the device of a claimed volume at the given path.
func openClaimed(s *chaosStorage, path string) (*opened, error) {
	flags := os.O_RDONLY | syscall.O_DIRECTORY
	if s.raw {
		flags = os.O_RDWR
	}
	f, err := os.OpenFile(path, flags|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	return &opened{s: s, path: path, file: f}, nil
}

func (o *opened) close() { _ = o.file.Close() } // every write was synced, so Close loses no data

// at returns the path of a file in the volume, relative to the open root directory.
func (o *opened) at(name string) string {
	return filepath.Join(fmt.Sprintf("/proc/self/fd/%d", o.file.Fd()), name)
}

// write writes the next pattern of a writer and syncs it. A successful sync counts as the
// acknowledgement.
func (o *opened) write(writer string) error {
	seq, slot := o.s.ledger.begin(writer)
	var err error
	if o.s.raw {
		err = o.writeRegion(slot, pattern(o.s.name, writer, seq, rawRegion))
	} else {
		err = o.writeFile(writer, pattern(o.s.name, writer, seq, patternSize(seq)))
	}
	o.s.ledger.end(writer, seq, err)
	o.s.log("%s wrote %d: %v", writer, seq, err)
	return err
}

func (o *opened) writeRegion(slot int, b []byte) error {
	if slot >= rawSlots {
		return errors.New("the raw volume has too many writers")
	}
	_, err := o.file.WriteAt(b, int64(slot*rawRegion))
	return errors.Join(err, o.file.Sync())
}

func (o *opened) writeFile(writer string, b []byte) error {
	next := o.at(writer + ".next")
	f, err := os.Create(next)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(next, o.at(writer))
}

// verify reads back and checks the data of the given writers.
func (o *opened) verify(writers ...string) error {
	var errs []error
	for _, w := range writers {
		got, err := o.read(w)
		if err == nil {
			err = o.s.ledger.holds(o.s.name, w, got)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (o *opened) read(writer string) ([]byte, error) {
	if !o.s.raw {
		b, err := os.ReadFile(o.at(writer))
		if errors.Is(err, os.ErrNotExist) {
			return nil, nil // the caller compares the missing file with the ledger
		}
		return b, err
	}
	o.s.ledger.mu.Lock()
	e := o.s.ledger.entries[writer]
	o.s.ledger.mu.Unlock()
	if e == nil {
		return nil, nil // this writer has written nothing to the device
	}
	b := make([]byte, rawRegion)
	_, err := o.file.ReadAt(b, int64(e.slot*rawRegion))
	return b, err
}

// chaosStorage is one storage volume. During a run, it can be registered under different volume
// ids.
type chaosStorage struct {
	name   string // the external id for the plugin "rec", and the volume id for other plugins
	plugin string
	raw    bool
	ledger ledger
	doomed atomic.Bool // a client has started to delete this volume

	mu      sync.Mutex
	id      string // the current volume id, or "" if the volume is not registered
	history []string
}

// privatePrefix is the prefix of the external ids of private volumes. Only one client uses a
// private volume.
const privatePrefix = "ext/p-"

func newStorage(name, plugin string, raw bool) *chaosStorage {
	return &chaosStorage{name: name, plugin: plugin, raw: raw, ledger: ledger{raw: raw, entries: map[string]*ledgerEntry{}}}
}

func (s *chaosStorage) now() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}

func (s *chaosStorage) rename(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.id = id
}

// isPrivate reports whether only one client registers and deregisters this volume.
func (s *chaosStorage) isPrivate() bool { return strings.HasPrefix(s.name, privatePrefix) }

// log appends a line to the volume's history and keeps the last 400 lines.
func (s *chaosStorage) log(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.history = append(s.history, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
	s.history = s.history[max(0, len(s.history)-400):]
}

func (s *chaosStorage) told() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.history, "\n")
}
