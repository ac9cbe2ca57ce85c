package statedb

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"go.etcd.io/bbolt"
)

// migration converts a file from one schema to the next.
type migration struct {
	what string // purpose of the migration, for the error
	run  func(*bbolt.Tx) error
}

// migrations lists the migrations in order. The first converts schema 1 to 2. So far there is only
// one schema, so the list is empty.
var migrations []migration

// schemaOf returns the schema after the last of the migrations.
func schemaOf(steps []migration) int { return 1 + len(steps) }

// schema returns the schema of a file, or 0 for a new file. It refuses a schema newer than known.
func schema(tx *bbolt.Tx, known int) (int, error) {
	if k, _ := tx.Cursor().First(); k == nil {
		return 0, nil
	}

	meta := tx.Bucket(bucketMeta)
	if meta == nil {
		return 0, nonsense{fmt.Errorf("bucket %q is missing", bucketMeta)}
	}

	raw := meta.Get(keySchema)
	v, err := strconv.Atoi(string(raw))
	switch {
	case err != nil || v < 1:
		return 0, nonsense{fmt.Errorf("schema version %q is not a number from 1", raw)}
	case v > known:
		return v, fmt.Errorf("it was written by a newer release (schema %d, this one knows %d); install that release again", v, known)
	}

	return v, nil
}

// setSchema stores the schema of a file.
func setSchema(tx *bbolt.Tx, v int) error {
	return tx.Bucket(bucketMeta).Put(keySchema, []byte(strconv.Itoa(v)))
}

// migrate converts a file from an older schema to the newest:
//
//  1. It copies the unchanged file to <file>.schema-N and syncs the copy to disk.
//  2. It runs each migration in a transaction of its own. The transaction also stores the schema
//     in which the migration ends.
//
// A crash between these steps loses nothing and repeats nothing. A failed migration leaves the file
// as the previous one left it.
func (db *DB) migrate(path string, from int, steps []migration) error {
	if err := keep(db.bolt.DB, path, from); err != nil {
		return fmt.Errorf("cannot keep a copy before the migration from schema %d; free %d bytes beside it: %w", from, db.size(), err)
	}
	if err := db.rotate(); err != nil {
		// The migration can proceed, because keep has just made a copy.
		db.warn(fmt.Sprintf("cannot make a copy of %s before its migration: %v", path, err))
	}

	db.at(Kept)
	for v := from; v < schemaOf(steps); v++ {
		m := steps[v-1]
		db.at(BeforeMigration)
		err := db.bolt.Update(func(tx *bbolt.Tx) error {
			if err := m.run(tx); err != nil {
				return err
			}
			return setSchema(tx, v+1)
		})
		if err != nil {
			return fmt.Errorf("cannot migrate from schema %d to %d (%s): %w", v, v+1, m.what, err)
		}
		db.at(AfterMigration)
	}

	return nil
}

// size returns the size of the file in bytes, or 0 if it is unknown.
func (db *DB) size() (n int64) {
	_ = db.bolt.View(func(tx *bbolt.Tx) error { n = tx.Size(); return nil }) // only used in a message
	return n
}

// keep copies the open file to <path>.schema-N and syncs it. It never overwrites an existing copy.
// If a copy with the same content exists, keep makes no second one. Different content gets another
// name.
func keep(b *bbolt.DB, path string, n int) (err error) {
	name := fmt.Sprintf("%s.schema-%d", path, n)
	tmp := name + ".tmp"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := copyTo(b, tmp); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	defer func() { err = errors.Join(err, os.Remove(tmp), syncDir(filepath.Dir(path))) }()

	for i, to := 2, name; ; i, to = i+1, fmt.Sprintf("%s.%d", name, i) {
		err := os.Link(tmp, to)
		if !errors.Is(err, os.ErrExist) {
			return err
		}
		if same, err := equalFiles(tmp, to); err != nil || same {
			return err
		}
	}
}

// copyTo writes the database to a new file and waits until it is on disk.
func copyTo(b *bbolt.DB, path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}

	w := bufio.NewWriter(f) // the buffer keeps the cause of an error, bbolt does not
	err = b.View(func(tx *bbolt.Tx) error {
		_, err := tx.WriteTo(w)
		return err
	})

	return errors.Join(err, w.Flush(), f.Sync(), f.Close())
}

// equalFiles compares two files byte by byte.
func equalFiles(a, b string) (same bool, err error) {
	var r [2]*os.File
	for i, path := range []string{a, b} {
		if r[i], err = os.Open(path); err != nil {
			return false, err
		}
		defer func() { err = errors.Join(err, r[i].Close()) }()
	}

	var buf [2][64 << 10]byte
	for {
		n, aerr := io.ReadFull(r[0], buf[0][:])
		m, berr := io.ReadFull(r[1], buf[1][:])
		ended := func(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }
		switch {
		case aerr != nil && !ended(aerr):
			return false, aerr
		case berr != nil && !ended(berr):
			return false, berr
		case !bytes.Equal(buf[0][:n], buf[1][:m]):
			return false, nil
		case ended(aerr) || ended(berr):
			return ended(aerr) && ended(berr), nil
		}
	}
}
