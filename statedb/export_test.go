package statedb

import (
	"io"
	"time"

	"go.etcd.io/bbolt"

	"github.com/volagent/volagent/volmgr/volume"
)

// Queued returns the number of changes that wait for the writer.
func (db *DB) Queued() int { return len(db.queue) }

// CloseFile makes every further commit fail.
func (db *DB) CloseFile() { _ = db.writer.file.bolt.Close() }

// Step is a migration for tests.
type Step = func(*bbolt.Tx) error

// OpenMigrating opens a file with migrations that exist only in tests.
func OpenMigrating(path string, o Options, steps ...Step) (*DB, error) {
	return open(path, o, row(steps))
}

// ReadBackupMigrating reads a backup with migrations that exist only in tests.
func (db *DB) ReadBackupMigrating(r io.Reader, steps ...Step) (Restorable, error) {
	return db.read(r, row(steps))
}

func row(steps []Step) (row []migration) {
	for _, run := range steps {
		row = append(row, migration{what: "test", run: run})
	}
	return row
}

// Written holds bbolt's statistics about the writes of all commits since Open.
type Written struct {
	Pages, Bytes int64
	Took         time.Duration // time spent in writes and syncs
}

// Written returns bbolt's statistics about the writes since Open.
func (db *DB) Written() Written {
	f := db.writer.file
	f.swap.RLock()
	defer f.swap.RUnlock()
	s := f.bolt.Stats()
	return Written{s.TxStats.GetPageCount(), s.TxStats.GetPageAlloc(), s.TxStats.GetWriteTime()}
}

// Record decodes one record in the same way as Open.
func Record(raw []byte) (r volume.Record, err error) {
	return r, decode(raw, &r)
}

// Claim decodes one claim in the same way as Open.
func Claim(raw []byte) (c volume.Claim, err error) {
	return c, decode(raw, &c)
}

// Spoil changes the file of an open database directly, so the state in memory does not change.
func (db *DB) Spoil(change func(*bbolt.Tx) error) error { return db.writer.file.bolt.Update(change) }

// Tend makes the writer check its files at once, and waits until the check has ended.
func (db *DB) Tend() {
	for range 2 {
		db.tending <- struct{}{} // the writer receives this second value only after its first check has ended
	}
}

// KeepCopy makes an automatic copy at once.
func (db *DB) KeepCopy() error { return db.keepCopy() }

// CopyWait returns the delay from a commit to the next automatic copy.
var CopyWait = copyWait

// ReadLog decodes a log in the same way as Open.
func ReadLog(raw []byte) (records []volume.Record, size int64) { return readLog(raw) }

// Buckets returns the buckets of all kinds.
func Buckets() (names []string) {
	for _, k := range kinds {
		names = append(names, k.name())
	}
	return names
}
