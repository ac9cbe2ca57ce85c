package statedb

import (
	"maps"

	"github.com/volagent/volagent/volmgr/volume"
)

// Tx is the state that one mutation sees. A Tx is valid only while the function of the mutation
// runs.
type Tx struct {
	View
	base *state  // the state in memory
	past changes // changes by earlier mutations of the same commit
	own  changes // changes by this mutation

	// Changes that a running commit writes. The mutation must not depend on them.
	busy  changes
	stale bool // the mutation depends on a change in busy
}

func newTx(base *state, past, busy changes) *Tx {
	tx := &Tx{base: base, past: past, own: changes{}, busy: busy}
	tx.View = View{tx}
	return tx
}

func (tx *Tx) get(at address) (any, bool) {
	if _, busy := tx.busy[at]; busy {
		tx.stale = true
	}

	for _, c := range []changes{tx.own, tx.past} {
		if v, ok := c[at]; ok {
			return v, v != nil
		}
	}

	return tx.base.get(at)
}

func (tx *Tx) each(bucket string, fn func(key string, v any)) {
	tx.stale = tx.stale || len(tx.busy) > 0
	news := changes{}
	maps.Copy(news, tx.past)
	maps.Copy(news, tx.own)
	tx.base.each(bucket, func(key string, v any) {
		if _, changed := news[address{bucket, key}]; !changed {
			fn(key, v)
		}
	})

	for at, v := range news {
		if at.bucket == bucket && v != nil {
			fn(at.key, v)
		}
	}
}

func (tx *Tx) put(at address, v any) {
	if _, busy := tx.busy[at]; busy {
		tx.stale = true
	}
	tx.own[at] = v
}

// PutVolume stores a record and increments its generation. The generation of a new record is higher
// than that of each deleted record.
func (tx *Tx) PutVolume(r volume.Record) {
	if _, ok := tx.Volume(r.Volume.ID); !ok {
		r.Generation = max(r.Generation, tx.base.newest)
	}
	r.Generation++
	volumes.Put(tx, r)
}

// DeleteVolume deletes a record with its claims.
func (tx *Tx) DeleteVolume(id string) {
	if r, ok := tx.Volume(id); ok {
		tx.base.newest = max(tx.base.newest, r.Generation)
	}
	volumes.Delete(tx, id)
}

// PutNode stores the state of the host.
func (tx *Tx) PutNode(n Node) { nodes.Put(tx, n) }

// VolumeOf returns the id under which a storage volume is registered.
func (tx *Tx) VolumeOf(driver, external string) (string, bool) {
	key := StorageKey(driver, external)
	return tx.find(tx.base.external[key], func(r volume.Record) bool {
		return key != "" && StorageKey(r.Volume.Driver, r.Volume.ExternalID) == key
	})
}

// HolderOf returns the volume that uses a staging path. It ignores the volume whose id is except.
// No similar search is needed for target paths, because volumes with different staging paths have
// different target paths.
func (tx *Tx) HolderOf(path, except string) (string, bool) {
	return tx.find(tx.base.staging[path], func(r volume.Record) bool {
		return r.Volume.ID != except && r.Held() && r.Node.StagingPath == path
	})
}

// find returns a volume for which is returns true. It checks the volumes that this commit changes,
// and the volume whose id is indexed, which may have changed after it was indexed.
func (tx *Tx) find(indexed string, is func(volume.Record) bool) (string, bool) {
	tx.stale = tx.stale || len(tx.busy) > 0
	for _, c := range []changes{tx.own, tx.past} {
		for at := range c {
			if r, ok := tx.Volume(at.key); ok && at.bucket == volumes.bucket && is(r) {
				return at.key, true
			}
		}
	}

	if r, ok := tx.Volume(indexed); ok && is(r) {
		return indexed, true
	}

	return "", false
}
