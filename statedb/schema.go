package statedb

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"go.etcd.io/bbolt"

	"github.com/volagent/volagent/volmgr/volume"
)

var (
	bucketMeta    = []byte("meta")
	bucketVolumes = []byte("volumes")
	bucketClaims  = []byte("claims")
	bucketPlugins = []byte("plugins")
	bucketDebts   = []byte("debts")
	// bucketRegistered is made by the first registration: a file without it has none.
	bucketRegistered = []byte("registered")
	// bucketSnapshots is made by the first snapshot: a file without it knows of none.
	bucketSnapshots = []byte("snapshots")
	// bucketNames is made by the first snapshot that gets an id.
	bucketNames = []byte("snapshot-names")
	// bucketRuntimes is made by the first volume of a container runtime: a file without it
	// knows of none.
	bucketRuntimes = []byte("runtimes")

	keySchema = []byte("schema")
	keyNode   = []byte("node")
)

var buckets = [][]byte{bucketMeta, bucketVolumes, bucketClaims, bucketPlugins, bucketDebts}

func claimKey(id, alloc string) []byte {
	key := make([]byte, 0, len(id)+1+len(alloc))
	key = append(append(key, id...), 0)
	return append(key, alloc...)
}

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

// save writes changes, in the order of their keys, so that those which share a
// page come one after the other. Of a volume's claims only those that differ
// from what is on disk are written: records are never written through, so a
// claim that compares equal is the same.
func (db *DB) save(tx *bbolt.Tx, c changes) error {
	var errs []error
	note := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	db.values.reset()
	ids, claims, volumes := slices.Sorted(maps.Keys(c.volumes)), tx.Bucket(bucketClaims), tx.Bucket(bucketVolumes)
	for _, id := range ids {
		note(db.saveClaims(claims, id, c.volumes[id]))
	}
	for _, id := range ids {
		note(set(&db.values, volumes, []byte(id), c.volumes[id]))
	}
	for id, p := range c.plugins {
		note(set(&db.values, tx.Bucket(bucketPlugins), []byte(id), p))
	}
	for key, d := range c.debts {
		note(set(&db.values, tx.Bucket(bucketDebts), []byte(key), d))
	}
	note(setLate(&db.values, tx, bucketRegistered, c.registered))
	note(setLate(&db.values, tx, bucketSnapshots, c.snapshots))
	note(setLate(&db.values, tx, bucketNames, c.names))
	note(setLate(&db.values, tx, bucketRuntimes, c.runtimes))
	if c.node != nil {
		note(set(&db.values, tx.Bucket(bucketMeta), keyNode, c.node))
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
		if err := set(&db.values, b, claimKey(id, alloc), &c); err != nil {
			return err
		}
	}
	return nil
}

// setLate stores values in a bucket that the first of them makes.
func setLate[V any](to *values, tx *bbolt.Tx, bucket []byte, changed map[string]*V) error {
	if len(changed) == 0 {
		return nil
	}
	b, err := tx.CreateBucketIfNotExists(bucket)
	if err != nil {
		return err
	}
	var errs []error
	for key, v := range changed {
		errs = append(errs, set(to, b, []byte(key), v))
	}
	return errors.Join(errs...)
}

// set stores a value, or deletes the key for nil.
func set[V any](to *values, b *bbolt.Bucket, key []byte, v *V) error {
	if v == nil {
		return b.Delete(key)
	}
	raw, err := to.encode(v)
	if err != nil {
		return err
	}
	return b.Put(key, raw)
}

// values holds what one commit writes: bbolt keeps no copy of a value, so it
// must stay as it is until the transaction has ended.
type values struct {
	buf bytes.Buffer
	to  *json.Encoder
}

// mostKept is how much of the memory of one commit is kept for the next.
const mostKept = 256 << 10

// reset begins a commit. No transaction uses what was encoded before.
func (v *values) reset() {
	if v.to == nil || v.buf.Cap() > mostKept {
		v.buf = bytes.Buffer{}
		v.to = json.NewEncoder(&v.buf)
	}
	v.buf.Reset()
}

// encode returns a value as JSON. Where the buffer has to grow, it leaves what
// was returned before in the memory that it had.
func (v *values) encode(value any) ([]byte, error) {
	first := v.buf.Len()
	if err := v.to.Encode(value); err != nil {
		return nil, err
	}
	end := v.buf.Len() - 1 // without the line's end
	return v.buf.Bytes()[first:end:end], nil
}
