package statedb

import (
	"maps"
	"slices"

	"github.com/volagent/volagent/volmgr/volume"
)

// Volume returns the record of one volume as of the last change.
func (db *DB) Volume(id string) (volume.Record, bool) {
	db.mu.RLock()
	defer db.mu.RUnlock()
	r, ok := db.mem.volumes[id]
	return r, ok
}

// Volumes returns all records, in no particular order.
func (db *DB) Volumes() []volume.Record {
	db.mu.RLock()
	defer db.mu.RUnlock()
	all := make([]volume.Record, 0, len(db.mem.volumes))
	for _, r := range db.mem.volumes {
		all = append(all, r)
	}
	return all
}

// AnyVolume returns a record for which is returns true. It copies only that record. The function is
// must not block or use the database.
func (db *DB) AnyVolume(is func(volume.Record) bool) (volume.Record, bool) {
	db.mu.RLock()
	defer db.mu.RUnlock()
	for _, r := range db.mem.volumes {
		if is(r) {
			return r, true
		}
	}

	return volume.Record{}, false
}

// Plugins returns the records of all plugins, in no particular order.
func (db *DB) Plugins() []volume.PluginRecord {
	db.mu.RLock()
	defer db.mu.RUnlock()
	all := make([]volume.PluginRecord, 0, len(db.mem.plugins))
	for _, p := range db.mem.plugins {
		all = append(all, p)
	}
	return all
}

// Registered returns the definitions of plugins that were registered at run time, in no particular
// order.
func (db *DB) Registered() []volume.PluginDefinition {
	db.mu.RLock()
	defer db.mu.RUnlock()
	return slices.Collect(maps.Values(db.mem.registered))
}

// Snapshots returns the intents of snapshots that were not seen to finish, in no particular order.
func (db *DB) Snapshots() []volume.SnapshotIntent {
	db.mu.RLock()
	defer db.mu.RUnlock()
	return slices.Collect(maps.Values(db.mem.snapshots))
}

// SnapshotNames returns the names of snapshots whose ids are known, in no particular order.
func (db *DB) SnapshotNames() []volume.SnapshotName {
	db.mu.RLock()
	defer db.mu.RUnlock()
	return slices.Collect(maps.Values(db.mem.names))
}

// RuntimeVolume returns a volume that a container runtime knows by name.
func (db *DB) RuntimeVolume(runtime, name string) (volume.RuntimeVolume, bool) {
	db.mu.RLock()
	defer db.mu.RUnlock()
	v, ok := db.mem.runtimes[volume.RuntimeKey(runtime, name)]
	return v, ok
}

// RuntimeVolumes returns the volumes of all container runtimes, in no particular order.
func (db *DB) RuntimeVolumes() []volume.RuntimeVolume {
	db.mu.RLock()
	defer db.mu.RUnlock()
	return slices.Collect(maps.Values(db.mem.runtimes))
}

// Debt returns the pending calls that a forced deregister left for a storage volume.
func (db *DB) Debt(driver, external string) (Debt, bool) {
	db.mu.RLock()
	defer db.mu.RUnlock()
	d, ok := db.mem.debts[storageKey(driver, external)]
	return d, ok
}

// Debts returns the pending calls of all forced deregisters, in no particular order.
func (db *DB) Debts() []Debt {
	db.mu.RLock()
	defer db.mu.RUnlock()
	all := make([]Debt, 0, len(db.mem.debts))
	for _, d := range db.mem.debts {
		all = append(all, d)
	}
	return all
}

// Node returns the stored state of the host.
func (db *DB) Node() Node {
	db.mu.RLock()
	defer db.mu.RUnlock()
	return db.mem.node
}

// Fault returns the reason why the last commit failed or the next one will fail, as far as it is
// known, or nil. It is a *Foreign if a file was replaced.
func (db *DB) Fault() error {
	if f := db.Foreign(); f != nil {
		return f
	}

	db.mu.RLock()
	defer db.mu.RUnlock()
	if db.fault == nil {
		return db.misplaced
	}
	return db.fault
}

// NoLog returns the reason why the database has no log, or nil if it has one. Without a log nothing
// is lost, but each reported change waits for a commit.
func (db *DB) NoLog() error { return db.log.fault }

// Commits returns the number of commits since Open.
func (db *DB) Commits() uint64 {
	db.mu.RLock()
	defer db.mu.RUnlock()
	return db.commits
}

// Failures returns the number of failed commits since Open.
func (db *DB) Failures() uint64 {
	db.mu.RLock()
	defer db.mu.RUnlock()
	return db.failures
}
