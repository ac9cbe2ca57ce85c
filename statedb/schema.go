package statedb

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/volagent/volagent/volmgr/volume"
)

var (
	bucketMeta    = []byte("meta")
	bucketVolumes = []byte("volumes")
	bucketClaims  = []byte("claims")
	bucketPlugins = []byte("plugins")
	bucketDebts   = []byte("debts")

	keySchema = []byte("schema")
	keyNode   = []byte("node")
)

var buckets = [][]byte{bucketMeta, bucketVolumes, bucketClaims, bucketPlugins, bucketDebts}

func claimKey(id, alloc string) []byte { return []byte(id + "\x00" + alloc) }

// load reads all of a file, makes the buckets of a new one, and migrates an
// older one. A file that it refuses was not written to.
func (db *DB) load(path string, steps []migration) (err error) {
	defer guard(func(p any) { err = nonsense{fmt.Errorf("it cannot be read: %v", p)} })()
	known, found := schemaOf(steps), 0
	look := func(tx *bbolt.Tx) (err error) {
		if found, err = schema(tx, known); err != nil || found < known {
			return err
		}
		if db.mem, err = read(tx); err != nil {
			return nonsense{err}
		}
		return nil
	}
	if err := db.bolt.View(look); err != nil || found == known {
		return err
	}
	if found == 0 {
		err = db.bolt.Update(func(tx *bbolt.Tx) error { return prepare(tx, known) })
	} else {
		err = db.migrate(path, found, steps)
	}
	if err != nil {
		return err
	}
	return db.bolt.View(look)
}

// prepare makes what a new file lacks.
func prepare(tx *bbolt.Tx, version int) error {
	for _, name := range buckets {
		if _, err := tx.CreateBucketIfNotExists(name); err != nil {
			return err
		}
	}
	return setSchema(tx, version)
}

func cut(key string) (id, alloc string, ok bool) {
	a, b, ok := bytes.Cut([]byte(key), []byte{0})
	return string(a), string(b), ok
}

// save writes changes. Of a volume's claims only those that differ from what
// is on disk are written: records are never written through, so a claim that
// compares equal is the same.
func (db *DB) save(tx *bbolt.Tx, c changes) error {
	var errs []error
	note := func(err error) { errs = append(errs, err) }
	for id, r := range c.volumes {
		note(db.saveClaims(tx.Bucket(bucketClaims), id, r))
		note(set(tx.Bucket(bucketVolumes), []byte(id), r))
	}
	for id, p := range c.plugins {
		note(set(tx.Bucket(bucketPlugins), []byte(id), p))
	}
	for key, d := range c.debts {
		note(set(tx.Bucket(bucketDebts), []byte(key), d))
	}
	if c.node != nil {
		note(set(tx.Bucket(bucketMeta), keyNode, c.node))
	}
	return errors.Join(errs...)
}

func (db *DB) saveClaims(b *bbolt.Bucket, id string, r *volume.Record) error {
	old := db.disk[id]
	var now map[string]volume.Claim
	if r != nil {
		now = r.Claims
	}
	for alloc := range old {
		if _, ok := now[alloc]; !ok {
			if err := b.Delete(claimKey(id, alloc)); err != nil {
				return err
			}
		}
	}
	for alloc, c := range now {
		if was, ok := old[alloc]; ok && was == c {
			continue
		}
		if err := set(b, claimKey(id, alloc), &c); err != nil {
			return err
		}
	}
	return nil
}

// set stores a value, or deletes the key for nil.
func set[V any](b *bbolt.Bucket, key []byte, v *V) error {
	if v == nil {
		return b.Delete(key)
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return b.Put(key, raw)
}
