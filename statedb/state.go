package statedb

import (
	"sync"

	"github.com/volagent/volagent/volmgr/volume"
)

// state is the complete state in memory. Its values are never modified in place, so readers can
// share them.
type state struct {
	values   map[string]map[string]any // all values, by bucket and key
	external map[string]string         // storage key → volume id
	staging  map[string]string         // staging path → id of the volume that uses it

	// newest is the highest generation of all deleted records and all lines of the log. A new record
	// continues after it, because the log may still have lines of an earlier record of the same
	// volume. Only a Tx and recall use it.
	newest uint64
}

func newState() *state {
	s := &state{values: map[string]map[string]any{}, external: map[string]string{}, staging: map[string]string{}}
	for _, k := range kinds {
		s.values[k.name()] = map[string]any{}
	}
	return s
}

func (s *state) get(at address) (any, bool) {
	v, ok := s.values[at.bucket][at.key]
	return v, ok
}

func (s *state) each(bucket string, fn func(key string, v any)) {
	for key, v := range s.values[bucket] {
		fn(key, v)
	}
}

// apply applies changes to the state.
func (s *state) apply(c changes) {
	for at := range c {
		if old, ok := volumes.Get(s, at.key); ok && at.bucket == volumes.bucket {
			delete(s.external, StorageKey(old.Volume.Driver, old.Volume.ExternalID))
			if s.staging[old.Node.StagingPath] == at.key {
				delete(s.staging, old.Node.StagingPath)
			}
		}
	}

	for at, v := range c {
		if v == nil {
			delete(s.values[at.bucket], at.key)
			continue
		}

		s.values[at.bucket][at.key] = v
		if r, ok := v.(volume.Record); ok {
			s.index(r)
		}
	}
}

// index adds the storage volume of a record, and its staging path if there is one, to the indexes.
func (s *state) index(r volume.Record) {
	if key := StorageKey(r.Volume.Driver, r.Volume.ExternalID); key != "" {
		s.external[key] = r.Volume.ID
	}
	if r.Held() && r.Node.StagingPath != "" {
		s.staging[r.Node.StagingPath] = r.Volume.ID
	}
}

// memory is the state as readers see it. Only the writer changes it.
type memory struct {
	mu sync.RWMutex
	*state
}

func (m *memory) get(at address) (any, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.state.get(at)
}

func (m *memory) each(bucket string, fn func(key string, v any)) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	m.state.each(bucket, fn)
}

// publish makes changes visible to readers.
func (m *memory) publish(c changes) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.apply(c)
}

// View provides read access to the stored values. A Table reads its kind of value from a View. The
// zero View is empty.
type View struct{ from Reader }

func (v View) get(at address) (any, bool) {
	if v.from == nil {
		return nil, false
	}
	return v.from.get(at)
}

func (v View) each(bucket string, fn func(key string, v any)) {
	if v.from != nil {
		v.from.each(bucket, fn)
	}
}

// Volume returns the record of one volume after the last change.
func (v View) Volume(id string) (volume.Record, bool) { return volumes.Get(v, id) }

// Volumes returns all records, in no particular order.
func (v View) Volumes() []volume.Record {
	all := []volume.Record{}
	v.each(volumes.bucket, func(_ string, r any) { all = append(all, r.(volume.Record)) })
	return all
}

// Node returns the stored state of the host.
func (v View) Node() Node {
	n, _ := nodes.Get(v, keyNode)
	return n
}
