package statedb

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"
)

// load reads the whole file. It first creates the buckets of a new file, or migrates an older file.
// If load refuses a file, the file is unchanged.
func load(b *backups, o Options, steps []migration) (s *state, err error) {
	defer guard(func(p any) { err = contentError{fmt.Errorf("it cannot be read: %v", p)} })()
	known, found := schemaOf(steps), 0
	look := func(tx *bbolt.Tx) (err error) {
		if found, err = schema(tx, known); err != nil || found < known {
			return err
		}
		if s, err = read(tx); err != nil {
			return contentError{err}
		}
		return nil
	}

	if err := b.file.view(look); err != nil || found >= known {
		return s, err
	}
	if found == 0 {
		err = b.file.bolt.Update(func(tx *bbolt.Tx) error { return prepare(tx, known) })
	} else {
		err = migrate(b, o, found, steps)
	}
	if err != nil {
		return nil, err
	}

	return s, b.file.view(look)
}

// migrate converts a file from an older schema to the newest:
//
//  1. It copies the unchanged file to <file>.schema-N and syncs the copy to disk.
//  2. It runs each migration in a transaction of its own. The transaction also stores the schema
//     number that the migration produces.
//
// A crash between these steps loses nothing and repeats nothing. A failed migration leaves the file
// as the previous migration left it.
func migrate(b *backups, o Options, from int, steps []migration) error {
	bolt, path := b.file.bolt, b.file.path
	if err := keep(bolt.DB, path, from); err != nil {
		return fmt.Errorf("cannot keep a copy before the migration from schema %d; free %d bytes beside it: %w", from, bolt.used(), err)
	}
	if err := b.rotate(); err != nil {
		// A failed automatic copy does not stop the migration, because keep has just made another
		// copy.
		o.Warn(fmt.Sprintf("cannot make a copy of %s before its migration: %v", path, err))
	}

	o.Tap(Kept)
	for v := from; v < schemaOf(steps); v++ {
		m := steps[v-1]
		o.Tap(BeforeMigration)
		err := bolt.Update(func(tx *bbolt.Tx) error {
			if err := m.run(tx); err != nil {
				return err
			}
			return setSchema(tx, v+1)
		})
		if err != nil {
			return fmt.Errorf("cannot migrate from schema %d to %d (%s): %w", v, v+1, m.what, err)
		}
		o.Tap(AfterMigration)
	}

	return nil
}

// keep copies the open file to <path>.schema-N and syncs the copy. It never overwrites a file. If a
// copy with the same content already exists, keep makes no second copy. If a copy with other
// content exists, the new copy gets another name.
func keep(b *bbolt.DB, path string, n int) (err error) {
	name := fmt.Sprintf("%s.schema-%d", path, n)
	tmp := name + ".tmp"
	if err := copyTo(b, tmp); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	defer func() { err = errors.Join(err, os.Remove(tmp), syncDir(filepath.Dir(path))) }()

	sum, err := sumOf(tmp)
	if err != nil {
		return err
	}
	for i, to := 2, name; ; i, to = i+1, fmt.Sprintf("%s.%d", name, i) {
		err := os.Link(tmp, to)
		if !errors.Is(err, os.ErrExist) {
			return err
		}
		kept, err := sumOf(to)
		if err != nil || kept == sum {
			return err
		}
	}
}

// sumOf returns the SHA-256 checksum of a file.
func sumOf(path string) (sum [sha256.Size]byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return sum, err
	}

	h := sha256.New()
	_, err = io.Copy(h, f)
	return [sha256.Size]byte(h.Sum(nil)), errors.Join(err, f.Close())
}
