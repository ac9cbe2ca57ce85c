package statedb

import (
	"maps"

	"github.com/volagent/volagent/volmgr/volume"
)

// state is everything in memory. Records are values that nobody writes
// through, so they are shared freely.
type state struct {
	volumes  map[string]volume.Record
	external map[string]string // storage key → volume id
	staging  map[string]string // staging path → id of the volume that holds it
	plugins  map[string]volume.PluginRecord
	debts    map[string]Debt
	node     Node
	// registered are definitions by registeredKey.
	registered map[string]volume.PluginDefinition
	snapshots  map[string]volume.SnapshotIntent // by their keys
	names      map[string]volume.SnapshotName   // by their keys
	runtimes   map[string]volume.RuntimeVolume  // by their keys
}

// changes is a set of changed keys with their new values; nil is a deletion.
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

// add lays later changes over c.
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

// storageKey is what a storage volume is unique by on a host; empty while the
// plugin has not named it yet.
func storageKey(driver, external string) string {
	if external == "" {
		return ""
	}
	return driver + "\x00" + external
}

// registeredKey is what a definition is registered under. Of its parts only the
// last can be any text.
func registeredKey(d *volume.PluginDefinition) string {
	return d.ID + "\x00" + d.Type + "\x00" + d.Instance
}

// apply makes changes part of the state.
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

// hold notes that a volume has its staging path, if it has one in use.
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

// Tx is what one mutation sees and changes. It is valid only inside the
// function it was given to.
type Tx struct {
	base *state  // as committed or checkpointed
	past changes // by earlier mutations of the same commit
	own  changes // by this one
}

// Volume returns a record.
func (tx *Tx) Volume(id string) (volume.Record, bool) {
	return value(id, tx.base.volumes, tx.past.volumes, tx.own.volumes)
}

// value is that of a key after two sets of changes.
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

// Volumes returns all records, in no order.
func (tx *Tx) Volumes() []volume.Record {
	return merged(tx.base.volumes, tx.past.volumes, tx.own.volumes)
}

// Debts returns all that is owed, in no order.
func (tx *Tx) Debts() []Debt { return merged(tx.base.debts, tx.past.debts, tx.own.debts) }

// merged are the values of a map after two sets of changes.
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

// PutVolume stores a record and counts its generation.
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
	// A hit may have been deleted, or given another name, since.
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

// HolderOf returns the volume that a staging path is in use by, if it is another
// than but. The path of a target differs where that of the staging does.
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

// Plugin returns a plugin's record.
func (tx *Tx) Plugin(id string) (volume.PluginRecord, bool) {
	return value(id, tx.base.plugins, tx.past.plugins, tx.own.plugins)
}

// Plugins returns all records of plugins, in no order.
func (tx *Tx) Plugins() []volume.PluginRecord {
	return merged(tx.base.plugins, tx.past.plugins, tx.own.plugins)
}

// PutPlugin stores what is remembered of a plugin.
func (tx *Tx) PutPlugin(id string, p volume.PluginRecord) { tx.own.plugins[id] = &p }

// DeletePlugin forgets a plugin.
func (tx *Tx) DeletePlugin(id string) { tx.own.plugins[id] = nil }

// PutRegistered stores the definition of a plugin that is registered at run time,
// in place of one with the same id, type and instance.
func (tx *Tx) PutRegistered(d volume.PluginDefinition) {
	tx.own.registered[registeredKey(&d)] = &d
}

// DeleteRegistered forgets one, known by its id, type and instance.
func (tx *Tx) DeleteRegistered(d volume.PluginDefinition) {
	tx.own.registered[registeredKey(&d)] = nil
}

// Snapshot returns the intent of a snapshot that has not been seen to be finished.
func (tx *Tx) Snapshot(key string) (volume.SnapshotIntent, bool) {
	return value(key, tx.base.snapshots, tx.past.snapshots, tx.own.snapshots)
}

// PutSnapshot stores one.
func (tx *Tx) PutSnapshot(s volume.SnapshotIntent) { tx.own.snapshots[s.Key()] = &s }

// DeleteSnapshot forgets one.
func (tx *Tx) DeleteSnapshot(key string) { tx.own.snapshots[key] = nil }

// SnapshotNames returns all names of snapshots, in no order.
func (tx *Tx) SnapshotNames() []volume.SnapshotName {
	return merged(tx.base.names, tx.past.names, tx.own.names)
}

// PutSnapshotName stores one.
func (tx *Tx) PutSnapshotName(n volume.SnapshotName) { tx.own.names[n.Key()] = &n }

// DeleteSnapshotName forgets one.
func (tx *Tx) DeleteSnapshotName(key string) { tx.own.names[key] = nil }

// RuntimeVolume returns a volume as a container runtime knows it.
func (tx *Tx) RuntimeVolume(runtime, name string) (volume.RuntimeVolume, bool) {
	return value(volume.RuntimeKey(runtime, name), tx.base.runtimes, tx.past.runtimes, tx.own.runtimes)
}

// RuntimeVolumes returns those of all runtimes, in no order.
func (tx *Tx) RuntimeVolumes() []volume.RuntimeVolume {
	return merged(tx.base.runtimes, tx.past.runtimes, tx.own.runtimes)
}

// PutRuntimeVolume stores one.
func (tx *Tx) PutRuntimeVolume(v volume.RuntimeVolume) { tx.own.runtimes[v.Key()] = &v }

// DeleteRuntimeVolume forgets one.
func (tx *Tx) DeleteRuntimeVolume(runtime, name string) {
	tx.own.runtimes[volume.RuntimeKey(runtime, name)] = nil
}

// Debt returns what is owed for a storage volume.
func (tx *Tx) Debt(driver, external string) (Debt, bool) {
	return value(storageKey(driver, external), tx.base.debts, tx.past.debts, tx.own.debts)
}

// PutDebt stores what is owed for a storage volume.
func (tx *Tx) PutDebt(d Debt) {
	tx.own.debts[storageKey(d.Record.Volume.Driver, d.Record.Volume.ExternalID)] = &d
}

// DeleteDebt forgets what was owed.
func (tx *Tx) DeleteDebt(driver, external string) { tx.own.debts[storageKey(driver, external)] = nil }

// Node returns what is remembered of the host.
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

// PutNode stores what is remembered of the host.
func (tx *Tx) PutNode(n Node) { tx.own.node = &n }
