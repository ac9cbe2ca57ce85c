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

// read decodes the whole file. What it cannot make sense of is an error: to go
// on without a record would mean to forget a mount.
func read(tx *bbolt.Tx) (state, error) {
	s := state{
		volumes: map[string]volume.Record{}, external: map[string]string{}, staging: map[string]string{},
		plugins: map[string]volume.PluginRecord{}, debts: map[string]Debt{},
	}
	var errs []error
	note := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	shared := interned{}
	note(each(tx, bucketVolumes, func(key string, r volume.Record) error {
		if r.Volume.ID != key {
			return fmt.Errorf("volume %q is stored under %q", r.Volume.ID, key)
		}
		r.Claims = map[string]volume.Claim{}
		shared.record(&r)
		s.volumes[key] = r
		if k := storageKey(r.Volume.Driver, r.Volume.ExternalID); k != "" {
			if other, ok := s.external[k]; ok {
				return fmt.Errorf("volumes %q and %q are one storage volume", other, key)
			}
			s.external[k] = key
		}
		return nil
	}))
	note(each(tx, bucketClaims, func(key string, c volume.Claim) error {
		id, alloc, ok := cut(key)
		r, known := s.volumes[id]
		if !ok || !known || alloc != c.Alloc {
			return fmt.Errorf("claim %q belongs to no volume", key)
		}
		shared.claim(&c)
		r.Claims[c.Alloc] = c // the map is this function's own until it returns
		return nil
	}))
	note(each(tx, bucketPlugins, func(key string, p volume.PluginRecord) error {
		s.plugins[key] = p
		return nil
	}))
	note(each(tx, bucketDebts, func(key string, d Debt) error {
		s.debts[key] = d
		return nil
	}))
	for id, r := range s.volumes {
		s.hold(id, r)
	}
	if meta := tx.Bucket(bucketMeta); meta == nil {
		note(fmt.Errorf("bucket %q is missing", bucketMeta))
	} else if raw := meta.Get(keyNode); raw != nil {
		note(json.Unmarshal(raw, &s.node))
	}
	return s, errors.Join(errs...)
}

// interned keeps one copy of each string that is the same in most records, as
// long as a file is read: beside thousands of claims they would weigh more than
// all the rest.
type interned map[string]string

func (in interned) all(ss ...*string) {
	for _, s := range ss {
		if one, ok := in[*s]; ok {
			*s = one
		} else {
			in[*s] = *s
		}
	}
}

func (in interned) record(r *volume.Record) {
	in.all(&r.Volume.PluginID, &r.Volume.Driver, &r.Volume.Reclaim, &r.Node.Boot, &r.Node.NodeID)
	for i := range r.Volume.Capabilities {
		in.capability(&r.Volume.Capabilities[i])
	}
	if r.Node.Mode != nil {
		in.capability(&r.Node.Mode.Capability)
	}
	in.mount(r.Node.Mount)
}

func (in interned) claim(c *volume.Claim) {
	in.all(&c.Alloc, &c.Owner.Kind)
	in.capability(&c.Mode)
	in.mount(c.Mount)
	in.mount(c.BoundMount)
}

func (in interned) capability(c *volume.Capability) {
	in.all((*string)(&c.Access), (*string)(&c.Attachment))
}

func (in interned) mount(m *volume.MountIdentity) {
	if m != nil {
		in.all(&m.Boot, &m.Device, &m.FSType)
	}
}

func cut(key string) (id, alloc string, ok bool) {
	a, b, ok := bytes.Cut([]byte(key), []byte{0})
	return string(a), string(b), ok
}

// each decodes every value of a bucket.
func each[V any](tx *bbolt.Tx, bucket []byte, fn func(key string, v V) error) error {
	b := tx.Bucket(bucket)
	if b == nil {
		return fmt.Errorf("bucket %q is missing", bucket)
	}
	return b.ForEach(func(k, raw []byte) error {
		var v V
		if err := json.Unmarshal(raw, &v); err != nil {
			return fmt.Errorf("%s %q: %w", bucket, k, err)
		}
		return fn(string(k), v)
	})
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
