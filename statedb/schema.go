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
	// bucketRegistered is created with the first registration. Older files lack it.
	bucketRegistered = []byte("registered")
	// bucketSnapshots is created with the first snapshot. Older files lack it.
	bucketSnapshots = []byte("snapshots")
	// bucketNames is created when the first snapshot gets an id.
	bucketNames = []byte("snapshot-names")
	// bucketRuntimes is created with the first volume of a container runtime. Older files lack it.
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

// load reads the whole file, creates the buckets of a new one, and migrates an older one. If it
// refuses a file, it has not written to it.
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

// prepare creates the missing buckets of a new file and stores the schema.
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

// save writes changes in the order of their keys, so that keys on the same page are written
// together. It writes only those claims of a volume that differ from the file. A stored record is
// never modified in place, so claims that compare equal are the same.
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

// setLate stores values in a bucket, and creates the bucket if it is missing.
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

// set stores a value. A nil value deletes the key.
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

// values holds the encoded values of one commit. bbolt does not copy values, so they must not
// change before the transaction ends.
type values struct {
	buf bytes.Buffer
	to  *json.Encoder
}

// mostKept limits the buffer, in bytes, that is kept for the next commit.
const mostKept = 256 << 10

// reset begins a commit. No open transaction may use the values that were encoded before.
func (v *values) reset() {
	if v.to == nil || v.buf.Cap() > mostKept {
		v.buf = bytes.Buffer{}
		v.to = json.NewEncoder(&v.buf)
	}
	v.buf.Reset()
}

// encode returns a value as JSON. If the buffer has to grow, earlier results stay valid in the old
// memory.
func (v *values) encode(value any) ([]byte, error) {
	first := v.buf.Len()
	if err := v.to.Encode(value); err != nil {
		return nil, err
	}
	end := v.buf.Len() - 1 // without the newline at its end
	return v.buf.Bytes()[first:end:end], nil
}
