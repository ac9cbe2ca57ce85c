package statedb

import (
	"maps"

	"github.com/volagent/volagent/volmgr/volume"
)

// state is the entire state in memory. Records are never modified in place, so they can be shared.
type state struct {
	volumes  map[string]volume.Record
	external map[string]string // storage key → volume id
	staging  map[string]string // staging path → id of the volume that holds it
	plugins  map[string]volume.PluginRecord
	debts    map[string]Debt
	node     Node
	// registered holds definitions by registeredKey.
	registered map[string]volume.PluginDefinition
	snapshots  map[string]volume.SnapshotIntent // by their keys
	names      map[string]volume.SnapshotName   // by their keys
	runtimes   map[string]volume.RuntimeVolume  // by their keys
}

// changes maps changed keys to their new values. A nil value is a deletion.
type changes struct {
	volumes map[string]*volume.Record
	plugins map[string]*volume.PluginRecord
	debts   map[string]*Debt
	node    *Node

	registered map[string]*volume.PluginDefinition
	snapshots  map[string]*volume.SnapshotIntent
	names      map[string]*volume.SnapshotName
	runtimes   map[string]*volume.RuntimeVolume
}

func newChanges() changes {
	return changes{
		volumes: map[string]*volume.Record{},
		plugins: map[string]*volume.PluginRecord{},
		debts:   map[string]*Debt{},

		registered: map[string]*volume.PluginDefinition{},
		snapshots:  map[string]*volume.SnapshotIntent{},
		names:      map[string]*volume.SnapshotName{},
		runtimes:   map[string]*volume.RuntimeVolume{},
	}
}

func (c *changes) empty() bool {
	return len(c.volumes)+len(c.plugins)+len(c.debts)+len(c.registered)+len(c.snapshots)+len(c.names)+len(c.runtimes) == 0 && c.node == nil
}

// add applies later changes on top of c.
func (c *changes) add(later changes) {
	maps.Copy(c.volumes, later.volumes)
	maps.Copy(c.plugins, later.plugins)
	maps.Copy(c.debts, later.debts)
	maps.Copy(c.registered, later.registered)
	maps.Copy(c.snapshots, later.snapshots)
	maps.Copy(c.names, later.names)
	maps.Copy(c.runtimes, later.runtimes)
	if later.node != nil {
		c.node = later.node
	}
}

// storageKey returns the key that identifies a storage volume on a host. It is empty while the
// plugin has not yet named the volume.
func storageKey(driver, external string) string {
	if external == "" {
		return ""
	}
	return driver + "\x00" + external
}

// registeredKey returns the key of a definition. Only its last component may contain any text.
func registeredKey(d *volume.PluginDefinition) string {
	return d.ID + "\x00" + d.Type + "\x00" + d.Instance
}

// apply applies changes to the state.
func (s *state) apply(c changes) {
	for id, r := range c.volumes {
		if old, ok := s.volumes[id]; ok {
			delete(s.external, storageKey(old.Volume.Driver, old.Volume.ExternalID))
			if s.staging[old.Node.StagingPath] == id {
				delete(s.staging, old.Node.StagingPath)
			}
		}

		if r == nil {
			delete(s.volumes, id)
			continue
		}
		s.volumes[id] = *r
	}

	for id, r := range c.volumes {
		if r == nil {
			continue
		}
		if key := storageKey(r.Volume.Driver, r.Volume.ExternalID); key != "" {
			s.external[key] = id
		}
		s.hold(id, *r)
	}

	put(s.plugins, c.plugins)
	put(s.debts, c.debts)
	put(s.registered, c.registered)
	put(s.snapshots, c.snapshots)
	put(s.names, c.names)
	put(s.runtimes, c.runtimes)
	if c.node != nil {
		s.node = *c.node
	}
}

// hold records the staging path of a volume, if the volume uses one.
func (s *state) hold(id string, r volume.Record) {
	if r.Held() && r.Node.StagingPath != "" {
		s.staging[r.Node.StagingPath] = id
	}
}

func put[V any](m map[string]V, changed map[string]*V) {
	for k, v := range changed {
		if v == nil {
			delete(m, k)
		} else {
			m[k] = *v
		}
	}
}

// Tx is the view of one mutation. It is valid only during the call of the mutation's function.
type Tx struct {
	base *state  // state as committed or checkpointed
	past changes // changes by earlier mutations of the same commit
	own  changes // changes by this mutation
}

// Volume returns the record of a volume.
func (tx *Tx) Volume(id string) (volume.Record, bool) {
	return value(id, tx.base.volumes, tx.past.volumes, tx.own.volumes)
}

// value returns the value of a key after two sets of changes.
func value[V any](key string, base map[string]V, past, own map[string]*V) (v V, ok bool) {
	for _, changed := range []map[string]*V{own, past} {
		switch to, is := changed[key]; {
		case is && to == nil:
			return v, false
		case is:
			return *to, true
		}
	}

	v, ok = base[key]
	return v, ok
}

// Volumes returns all records, in no particular order.
func (tx *Tx) Volumes() []volume.Record {
	return merged(tx.base.volumes, tx.past.volumes, tx.own.volumes)
}

// Debts returns the pending calls of all forced deregisters, in no particular order.
func (tx *Tx) Debts() []Debt { return merged(tx.base.debts, tx.past.debts, tx.own.debts) }

// merged returns the values of a map after two sets of changes.
func merged[V any](base map[string]V, past, own map[string]*V) []V {
	all := make([]V, 0, len(base)+len(past)+len(own))
	for k, v := range base {
		if !has(own, k) && !has(past, k) {
			all = append(all, v)
		}
	}

	for k, v := range past {
		if v != nil && !has(own, k) {
			all = append(all, *v)
		}
	}

	for _, v := range own {
		if v != nil {
			all = append(all, *v)
		}
	}

	return all
}

func has[V any](m map[string]*V, key string) bool {
	_, ok := m[key]
	return ok
}

// PutVolume stores a record and increments its generation.
func (tx *Tx) PutVolume(r volume.Record) {
	r.Generation++
	tx.own.volumes[r.Volume.ID] = &r
}

// DeleteVolume deletes a record with its claims.
func (tx *Tx) DeleteVolume(id string) { tx.own.volumes[id] = nil }

// VolumeOf returns the id under which a storage volume is registered.
func (tx *Tx) VolumeOf(driver, external string) (string, bool) {
	key := storageKey(driver, external)
	if key == "" {
		return "", false
	}

	// A volume found by its key may have been deleted, or have another storage key, since.
	is := func(id string) bool {
		r, ok := tx.Volume(id)
		return ok && storageKey(r.Volume.Driver, r.Volume.ExternalID) == key
	}

	for _, c := range []changes{tx.own, tx.past} {
		for id := range c.volumes {
			if is(id) {
				return id, true
			}
		}
	}

	if id, ok := tx.base.external[key]; ok && is(id) {
		return id, true
	}

	return "", false
}

// HolderOf returns the volume that uses a staging path, unless that volume is but. Target paths
// need no such search: if the staging paths of two volumes differ, their target paths do, too.
func (tx *Tx) HolderOf(path, but string) (string, bool) {
	holds := func(id string) bool {
		r, ok := tx.Volume(id)
		return ok && id != but && r.Held() && r.Node.StagingPath == path
	}

	for _, c := range []changes{tx.own, tx.past} {
		for id := range c.volumes {
			if holds(id) {
				return id, true
			}
		}
	}

	id, ok := tx.base.staging[path]
	return id, ok && holds(id)
}

// Plugin returns the record of a plugin.
func (tx *Tx) Plugin(id string) (volume.PluginRecord, bool) {
	return value(id, tx.base.plugins, tx.past.plugins, tx.own.plugins)
}

// Plugins returns the records of all plugins, in no particular order.
func (tx *Tx) Plugins() []volume.PluginRecord {
	return merged(tx.base.plugins, tx.past.plugins, tx.own.plugins)
}

// PutPlugin stores the record of a plugin.
func (tx *Tx) PutPlugin(id string, p volume.PluginRecord) { tx.own.plugins[id] = &p }

// DeletePlugin deletes the record of a plugin.
func (tx *Tx) DeletePlugin(id string) { tx.own.plugins[id] = nil }

// PutRegistered stores the definition of a plugin that is registered at run time. It replaces one
// with the same id, type and instance.
func (tx *Tx) PutRegistered(d volume.PluginDefinition) {
	tx.own.registered[registeredKey(&d)] = &d
}

// DeleteRegistered deletes the definition with the id, type and instance of d.
func (tx *Tx) DeleteRegistered(d volume.PluginDefinition) {
	tx.own.registered[registeredKey(&d)] = nil
}

// Snapshot returns the intent of a snapshot that was not seen to finish.
func (tx *Tx) Snapshot(key string) (volume.SnapshotIntent, bool) {
	return value(key, tx.base.snapshots, tx.past.snapshots, tx.own.snapshots)
}

// PutSnapshot stores the intent of a snapshot.
func (tx *Tx) PutSnapshot(s volume.SnapshotIntent) { tx.own.snapshots[s.Key()] = &s }

// DeleteSnapshot deletes the intent of a snapshot.
func (tx *Tx) DeleteSnapshot(key string) { tx.own.snapshots[key] = nil }

// SnapshotNames returns all names of snapshots, in no particular order.
func (tx *Tx) SnapshotNames() []volume.SnapshotName {
	return merged(tx.base.names, tx.past.names, tx.own.names)
}

// PutSnapshotName stores the name of a snapshot.
func (tx *Tx) PutSnapshotName(n volume.SnapshotName) { tx.own.names[n.Key()] = &n }

// DeleteSnapshotName deletes the name of a snapshot.
func (tx *Tx) DeleteSnapshotName(key string) { tx.own.names[key] = nil }

// RuntimeVolume returns a volume that a container runtime knows by name.
func (tx *Tx) RuntimeVolume(runtime, name string) (volume.RuntimeVolume, bool) {
	return value(volume.RuntimeKey(runtime, name), tx.base.runtimes, tx.past.runtimes, tx.own.runtimes)
}

// RuntimeVolumes returns the volumes of all container runtimes, in no particular order.
func (tx *Tx) RuntimeVolumes() []volume.RuntimeVolume {
	return merged(tx.base.runtimes, tx.past.runtimes, tx.own.runtimes)
}

// PutRuntimeVolume stores a volume of a container runtime.
func (tx *Tx) PutRuntimeVolume(v volume.RuntimeVolume) { tx.own.runtimes[v.Key()] = &v }

// DeleteRuntimeVolume deletes a volume of a container runtime.
func (tx *Tx) DeleteRuntimeVolume(runtime, name string) {
	tx.own.runtimes[volume.RuntimeKey(runtime, name)] = nil
}

// Debt returns the pending calls for a storage volume.
func (tx *Tx) Debt(driver, external string) (Debt, bool) {
	return value(storageKey(driver, external), tx.base.debts, tx.past.debts, tx.own.debts)
}

// PutDebt stores the pending calls for a storage volume.
func (tx *Tx) PutDebt(d Debt) {
	tx.own.debts[storageKey(d.Record.Volume.Driver, d.Record.Volume.ExternalID)] = &d
}

// DeleteDebt deletes the pending calls for a storage volume.
func (tx *Tx) DeleteDebt(driver, external string) { tx.own.debts[storageKey(driver, external)] = nil }

// Node returns the stored state of the host.
func (tx *Tx) Node() Node {
	switch {
	case tx.own.node != nil:
		return *tx.own.node
	case tx.past.node != nil:
		return *tx.past.node
	default:
		return tx.base.node
	}
}

// PutNode stores the state of the host.
func (tx *Tx) PutNode(n Node) { tx.own.node = &n }
