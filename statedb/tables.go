package statedb

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	jsonv1 "github.com/go-json-experiment/json/v1"

	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// address identifies a stored value.
type address struct{ bucket, key string }

// changes maps addresses to their new values. A nil value is a deletion.
type changes map[address]any

// volume returns the new record of a volume, or nil if it is deleted.
func (c changes) volume(at address) *volume.Record {
	if r, ok := c[at].(volume.Record); ok {
		return &r
	}
	return nil
}

// Table is one kind of stored value. It has its own bucket, with one JSON value for each key.
type Table[V any] struct {
	bucket string
	key    func(V) string
	check  func(V) error // checks that a value follows the rules of the domain
}

// The tables of all kinds of values. A new kind needs one line here, and its bucket in the list of
// the package comment.
var (
	volumes = newTable("volumes", recordKey, unchecked[volume.Record]) // without the claims, which have their own bucket
	nodes   = newTable(bucketMeta, func(Node) string { return keyNode }, unchecked[Node])

	Memberships    = newTable("cluster", func(shared.Membership) string { return keyMembership }, unchecked[shared.Membership])
	Plugins        = newTable("plugins", func(p plugin.Record) string { return p.ID }, func(p plugin.Record) error { return volume.CheckPluginID(p.Of()) })
	Leftovers      = newTable("debts", Leftover.key, func(d Leftover) error { return d.Whole().Check() })
	Registered     = newTable("registered", registeredKey, func(d plugin.Definition) error { return volume.CheckPluginID(d.ID) })
	Snapshots      = newTable("snapshots", volume.SnapshotIntent.Key, volume.SnapshotIntent.Check)
	SnapshotNames  = newTable("snapshot-names", volume.SnapshotName.Key, volume.SnapshotName.Check)
	RuntimeVolumes = newTable("runtimes", volume.RuntimeVolume.Key, volume.RuntimeVolume.Check)
)

// kinds holds all tables. newTable adds them.
var kinds []kind

// kind is a table without the type of its values.
type kind interface {
	name() string
	read(raw []byte) (any, error)
	checkStored(key string, v any) error
}

func newTable[V any](bucket string, key func(V) string, check func(V) error) *Table[V] {
	t := &Table[V]{bucket: bucket, key: key, check: check}
	kinds = append(kinds, t)
	return t
}

// Reader is implemented by DB, Tx and View.
type Reader interface {
	get(at address) (any, bool)
	each(bucket string, fn func(key string, v any))
}

// Writer is implemented by Tx.
type Writer interface{ put(at address, v any) }

// Get returns the value of a key.
func (t *Table[V]) Get(from Reader, key string) (v V, ok bool) {
	if got, ok := from.get(address{t.bucket, key}); ok {
		return got.(V), true // Put and read store only values of this type
	}
	return v, false
}

// All returns all values, sorted by key.
func (t *Table[V]) All(from Reader) []V {
	found := map[string]V{}
	from.each(t.bucket, func(key string, v any) { found[key] = v.(V) })
	all := make([]V, 0, len(found))
	for _, key := range slices.Sorted(maps.Keys(found)) {
		all = append(all, found[key])
	}
	return all
}

// Put stores a value, and replaces the previous value with the same key.
func (t *Table[V]) Put(to Writer, v V) { to.put(address{t.bucket, t.key(v)}, v) }

// Delete deletes the value of a key.
func (t *Table[V]) Delete(to Writer, key string) { to.put(address{t.bucket, key}, nil) }

// Remove deletes the value that has the key of v.
func (t *Table[V]) Remove(to Writer, v V) { t.Delete(to, t.key(v)) }

func (t *Table[V]) name() string { return t.bucket }

func (t *Table[V]) read(raw []byte) (any, error) {
	var v V
	err := decode(raw, &v)
	return v, err
}

func (t *Table[V]) checkStored(key string, v any) error {
	value := v.(V)
	err := t.check(value)
	if is := t.key(value); is != key {
		err = errors.Join(err, fmt.Errorf("it is stored under %q", key))
	}
	if err != nil {
		return fmt.Errorf("%s %q: %w", t.bucket, t.key(value), err)
	}
	return nil
}

// unchecked is the check function of tables that need none. Another function, state.check, checks
// records.
func unchecked[V any](V) error { return nil }

// decode decodes a stored value in the same way as encoding/json. Open decodes thousands of values.
// This implementation is the future encoding/json/v2, which needs half the time and less memory.
func decode(raw []byte, v any) error { return jsonv1.Unmarshal(raw, v) }
