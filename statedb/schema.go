package statedb

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.etcd.io/bbolt"

	"github.com/volagent/volagent/volmgr/volume"
)

// buckets lists the buckets that a new file contains. Every other bucket is created when its first
// value is stored.
var buckets = []string{bucketMeta, "volumes", bucketClaims, "plugins", "debts"}

// schemaShared is the schema of a file that contains a shared volume. It differs from schema 1 only in
// that. The agent raises the schema when it stores the first shared volume, because an older agent
// would use the volume without the cluster's permission. It never lowers the schema.
const schemaShared = 2

// migration converts a file from one schema to the next.
type migration struct {
	what string // purpose of the migration, for error messages
	run  func(*bbolt.Tx) error
}

// migrations lists all migrations in order. The first one would convert schema 1 to 2. The list is
// empty, because the agent itself raises schema 1 to schemaShared.
var migrations []migration

// schemaOf returns the schema of a file after all steps.
func schemaOf(steps []migration) int { return 1 + len(steps) }

// raise sets the schema of a file that gets a shared volume.
func raise(tx *bbolt.Tx, c changes) error {
	isShared := false
	for at := range c {
		if at.bucket == volumes.bucket {
			r := c.volume(at)
			isShared = isShared || r != nil && (r.Volume.Shared || r.Rescoping)
		}
	}
	if !isShared {
		return nil
	}

	found, err := schema(tx, schemaOf(migrations))
	if err != nil || found >= schemaShared {
		return err
	}
	return setSchema(tx, schemaShared)
}

// schema returns the schema of a file, or 0 for a new file. It returns an error if the schema is
// greater than known and greater than schemaShared.
func schema(tx *bbolt.Tx, known int) (int, error) {
	known = max(known, schemaShared)
	if k, _ := tx.Cursor().First(); k == nil {
		return 0, nil
	}

	meta := tx.Bucket([]byte(bucketMeta))
	if meta == nil {
		return 0, contentError{fmt.Errorf("bucket %q is missing", bucketMeta)}
	}

	raw := meta.Get([]byte(keySchema))
	v, err := strconv.Atoi(string(raw))
	switch {
	case err != nil || v < 1:
		return 0, contentError{fmt.Errorf("schema version %q is not a number from 1", raw)}
	case v > known:
		return v, fmt.Errorf("it was written by a newer release (schema %d, this one knows %d); install that release again", v, known)
	}

	return v, nil
}

// setSchema stores the schema number of a file.
func setSchema(tx *bbolt.Tx, v int) error {
	return tx.Bucket([]byte(bucketMeta)).Put([]byte(keySchema), []byte(strconv.Itoa(v)))
}

// prepare creates the buckets of a new file and stores its schema number.
func prepare(tx *bbolt.Tx, version int) error {
	for _, name := range buckets {
		if _, err := tx.CreateBucketIfNotExists([]byte(name)); err != nil {
			return err
		}
	}
	return setSchema(tx, version)
}

// read decodes the whole file. It returns an error for any data that it cannot decode, because the
// agent would otherwise forget a mount.
func read(tx *bbolt.Tx) (*state, error) {
	s := newState()
	var errs []error
	for _, k := range kinds {
		bucket := k.name()
		errs = append(errs, each(tx, bucket, func(key string, raw []byte) error {
			if bucket == bucketMeta && key == keySchema {
				return nil
			}
			v, err := k.read(raw)
			if err != nil {
				return fmt.Errorf("%s %q: %w", bucket, key, err)
			}
			if r, ok := v.(volume.Record); ok {
				return s.addVolume(key, r)
			}
			s.values[bucket][key] = v
			return nil
		}))
	}

	errs = append(errs, each(tx, bucketClaims, func(key string, raw []byte) error {
		var c volume.Claim
		if err := decode(raw, &c); err != nil {
			return fmt.Errorf("%s %q: %w", bucketClaims, key, err)
		}
		id, alloc, ok := strings.Cut(key, "\x00")
		r, known := volumes.Get(s, id)
		if !ok || !known || alloc != c.Alloc {
			return fmt.Errorf("claim %q belongs to no volume", key)
		}
		r.Claims[alloc] = c // read has not returned the map yet, so no other code uses it
		return nil
	}))

	for _, v := range s.values[volumes.bucket] {
		s.index(v.(volume.Record))
	}

	return s, errors.Join(errs...)
}

// addVolume adds a record from the file. read adds its claims later.
func (s *state) addVolume(key string, r volume.Record) error {
	if r.Volume.ID != key {
		return fmt.Errorf("volume %q is stored under %q", r.Volume.ID, key)
	}

	r.Claims = map[string]volume.Claim{}
	s.values[volumes.bucket][key] = r
	if k := StorageKey(r.Volume.Driver, r.Volume.ExternalID); k != "" {
		if other, ok := s.external[k]; ok {
			return fmt.Errorf("volumes %q and %q are one storage volume", other, key)
		}
		s.external[k] = key
	}

	return nil
}

// each calls fn for all values of a bucket, and joins the errors.
func each(tx *bbolt.Tx, bucket string, fn func(key string, raw []byte) error) error {
	b := tx.Bucket([]byte(bucket))
	switch {
	case b == nil && slices.Contains(buckets, bucket):
		return fmt.Errorf("bucket %q is missing", bucket)
	case b == nil:
		return nil
	}

	var errs []error
	err := b.ForEach(func(key, raw []byte) error {
		if err := fn(string(key), raw); err != nil {
			errs = append(errs, err)
		}
		return nil
	})

	return errors.Join(append(errs, err)...)
}

// stored holds the claims of each volume as the file contains them.
type stored map[string]map[string]volume.Claim

// storedIn returns the claims of a state that was just read from the file.
func storedIn(s *state) stored {
	on := make(stored, len(s.values[volumes.bucket]))
	s.each(volumes.bucket, func(id string, r any) { on[id] = r.(volume.Record).Claims })
	return on
}

// save writes changes in the order of their keys, so that changes to the same page are written
// together.
func (on stored) save(tx *bbolt.Tx, c changes) error {
	order := slices.SortedFunc(maps.Keys(c), func(a, b address) int {
		return cmp.Or(cmp.Compare(a.bucket, b.bucket), cmp.Compare(a.key, b.key))
	})

	errs := []error{raise(tx, c)}
	for _, at := range order {
		errs = append(errs, set(tx, at, c[at]))
		if at.bucket == volumes.bucket {
			errs = append(errs, on.saveClaims(tx, at.key, c.volume(at)))
		}
	}

	return errors.Join(errs...)
}

// saveClaims writes only those claims of a volume that differ from the file. The size of a commit
// therefore does not depend on the number of claims. Stored records are never modified in place, so
// a claim that compares equal has not changed.
func (on stored) saveClaims(tx *bbolt.Tx, id string, r *volume.Record) error {
	var now map[string]volume.Claim
	if r != nil {
		now = r.Claims
	}

	var errs []error
	for alloc := range on[id] {
		if _, ok := now[alloc]; !ok {
			errs = append(errs, set(tx, claimAddress(id, alloc), nil))
		}
	}

	for alloc, c := range now {
		if was, ok := on[id][alloc]; !ok || was != c {
			errs = append(errs, set(tx, claimAddress(id, alloc), &c))
		}
	}

	return errors.Join(errs...)
}

func claimAddress(id, alloc string) address { return address{bucketClaims, id + "\x00" + alloc} }

// written updates the claims in stored after a successful commit.
func (on stored) written(c changes) {
	for at := range c {
		if at.bucket != volumes.bucket {
			continue
		}
		if r := c.volume(at); r != nil {
			on[at.key] = r.Claims
		} else {
			delete(on, at.key)
		}
	}
}

// doubt updates the claims in stored after a commit that may or may not have written a record. It
// replaces them by empty claims, which differ from every claim in memory. The next commit therefore
// writes all claims of the record again.
func (on stored) doubt(id string, r *volume.Record) {
	claims := map[string]volume.Claim{}
	for alloc := range on[id] {
		claims[alloc] = volume.Claim{}
	}
	if r != nil {
		for alloc := range r.Claims {
			claims[alloc] = volume.Claim{}
		}
	}
	on[id] = claims
}

// set stores a value, and creates its bucket if it is missing. A nil value deletes the key.
func set(tx *bbolt.Tx, at address, v any) error {
	b, err := tx.CreateBucketIfNotExists([]byte(at.bucket))
	if err != nil {
		return err
	}
	if v == nil {
		return b.Delete([]byte(at.key))
	}

	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return b.Put([]byte(at.key), raw)
}
