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

// migration takes a file from one schema to the next.
type migration struct {
	what string // it does, for the error
	run  func(*bbolt.Tx) error
}

// migrations in order: the first takes schema 1 to 2. There is one schema yet.
var migrations []migration

// schemaOf is the schema that a row of migrations ends in.
func schemaOf(steps []migration) int { return 1 + len(steps) }

// schema returns the schema of a file, 0 for a new one. One that is newer than
// what is known is refused.
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

// setSchema notes the schema that a file has.
func setSchema(tx *bbolt.Tx, v int) error {
	return tx.Bucket(bucketMeta).Put(keySchema, []byte(strconv.Itoa(v)))
}

// migrate brings a file from an older schema to the newest:
//
//  1. the file as it is goes to <file>.schema-N, and is on disk before
//  2. each migration runs in a transaction of its own, which also notes the
//     schema that it ends in.
//
// A crash between two of these loses nothing and repeats nothing; a migration
// that fails leaves the file as the one before it did.
func (db *DB) migrate(path string, from int, steps []migration) error {
	if err := keep(db.bolt.DB, path, from); err != nil {
		return fmt.Errorf("cannot keep a copy before the migration from schema %d; free %d bytes beside it: %w", from, db.size(), err)
	}
	if err := db.rotate(); err != nil {
		db.warn(fmt.Sprintf("cannot make a copy of %s before its migration: %v", path, err)) // there is the one that was just kept
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

// size is how large the file is, in bytes; 0 if that cannot be told.
func (db *DB) size() (n int64) {
	_ = db.bolt.View(func(tx *bbolt.Tx) error { n = tx.Size(); return nil }) // it is for a message
	return n
}

// keep copies the open file to <path>.schema-N, durably. A copy that is there
// already is never written over: the same content is not kept twice, another
// one gets a name of its own.
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
	w := bufio.NewWriter(f) // it keeps the cause of an error, bbolt does not
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
