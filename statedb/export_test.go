package statedb

import (
	"context"
	"io"
	"time"

	"go.etcd.io/bbolt"

	"github.com/volagent/volagent/volmgr/volume"
)

// Queued is how many changes wait for the writer.
func (db *DB) Queued() int { return len(db.queue) }

// CloseFile makes every further commit fail.
func (db *DB) CloseFile() { _ = db.bolt.Close() }

// Step is a migration for tests.
type Step = func(*bbolt.Tx) error

// OpenMigrating opens a file with migrations that this release does not have.
func OpenMigrating(path string, o Options, steps ...Step) (*DB, error) {
	return open(path, o, row(steps))
}

// ReadBackupMigrating reads a backup with such migrations.
func (db *DB) ReadBackupMigrating(r io.Reader, steps ...Step) (Restorable, error) {
	return db.readBackup(r, row(steps))
}

func row(steps []Step) (row []migration) {
	for _, run := range steps {
		row = append(row, migration{what: "test", run: run})
	}
	return row
}

// Written is what commits wrote since Open, as bbolt counts it.
type Written struct {
	Pages, Bytes int64
	Took         time.Duration // to write and sync
}

// Written tells it.
func (db *DB) Written() Written {
	db.swap.RLock()
	defer db.swap.RUnlock()
	s := db.bolt.Stats()
	return Written{s.TxStats.GetPageCount(), s.TxStats.GetPageAlloc(), s.TxStats.GetWriteTime()}
}

// Record and Claim decode one value as Open does.
func Record(raw []byte) (r volume.Record, err error) {
	err = decodeRecord(raw, interned{}, &r)
	return r, err
}

// Claim is Record for a claim.
func Claim(raw []byte) (c volume.Claim, err error) {
	err = decodeClaim(raw, interned{}, &c)
	return c, err
}

// Spoil changes the file behind the back of an open database.
func (db *DB) Spoil(change func(*bbolt.Tx) error) error { return db.bolt.Update(change) }

// Tend has the writer look after the files, as it does every now and then.
func (db *DB) Tend() {
	db.tending <- struct{}{}
	_ = db.Checkpoint(context.Background(), func(*Tx) error { return nil }) // when it is answered the writer has done so
}

// KeepCopy makes an automatic copy now.
func (db *DB) KeepCopy() error { return db.keepCopy() }

// CopyWait is how long after a commit the next automatic copy is made.
var CopyWait = copyWait

// ReadLog decodes a log as Open does.
func ReadLog(raw []byte) (records []volume.Record, size int64) { return readLog(raw) }
