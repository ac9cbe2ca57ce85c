package statedb

import (
	"maps"
	"slices"

	"github.com/volagent/volagent/volmgr/volume"
)

// Volume returns one volume's record as of the last change.
func (db *DB) Volume(id string) (volume.Record, bool) {
	db.mu.RLock()
	defer db.mu.RUnlock()
	r, ok := db.mem.volumes[id]
	return r, ok
}

// Volumes returns all records, in no order.
func (db *DB) Volumes() []volume.Record {
	db.mu.RLock()
	defer db.mu.RUnlock()
	all := make([]volume.Record, 0, len(db.mem.volumes))
	for _, r := range db.mem.volumes {
		all = append(all, r)
	}
	return all
}

// AnyVolume returns a record of which is says so. Nothing is copied for it but
// that one; is must not block, nor use the database.
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

// Plugins returns all plugins' records, in no order.
func (db *DB) Plugins() []volume.PluginRecord {
	db.mu.RLock()
	defer db.mu.RUnlock()
	all := make([]volume.PluginRecord, 0, len(db.mem.plugins))
	for _, p := range db.mem.plugins {
		all = append(all, p)
	}
	return all
}

// Registered returns the definitions of plugins that were registered at run time,
// in no order.
func (db *DB) Registered() []volume.PluginDefinition {
	db.mu.RLock()
	defer db.mu.RUnlock()
	return slices.Collect(maps.Values(db.mem.registered))
}

// Snapshots returns the intents of snapshots that have not been seen to be finished,
// in no order.
func (db *DB) Snapshots() []volume.SnapshotIntent {
	db.mu.RLock()
	defer db.mu.RUnlock()
	return slices.Collect(maps.Values(db.mem.snapshots))
}

// SnapshotNames returns the names of snapshots whose ids are known, in no order.
func (db *DB) SnapshotNames() []volume.SnapshotName {
	db.mu.RLock()
	defer db.mu.RUnlock()
	return slices.Collect(maps.Values(db.mem.names))
}

// RuntimeVolume returns a volume as a container runtime knows it.
func (db *DB) RuntimeVolume(runtime, name string) (volume.RuntimeVolume, bool) {
	db.mu.RLock()
	defer db.mu.RUnlock()
	v, ok := db.mem.runtimes[volume.RuntimeKey(runtime, name)]
	return v, ok
}

// RuntimeVolumes returns those of all runtimes, in no order.
func (db *DB) RuntimeVolumes() []volume.RuntimeVolume {
	db.mu.RLock()
	defer db.mu.RUnlock()
	return slices.Collect(maps.Values(db.mem.runtimes))
}

// Debt returns what a forced deregister left of a storage volume.
func (db *DB) Debt(driver, external string) (Debt, bool) {
	db.mu.RLock()
	defer db.mu.RUnlock()
	d, ok := db.mem.debts[storageKey(driver, external)]
	return d, ok
}

// Debts returns what forced deregisters left, in no order.
func (db *DB) Debts() []Debt {
	db.mu.RLock()
	defer db.mu.RUnlock()
	all := make([]Debt, 0, len(db.mem.debts))
	for _, d := range db.mem.debts {
		all = append(all, d)
	}
	return all
}

// Node returns what is remembered of the host.
func (db *DB) Node() Node {
	db.mu.RLock()
	defer db.mu.RUnlock()
	return db.mem.node
}

// Fault returns why the last commit failed, or the next one would; nil if neither
// is known. It is a *Foreign if a file was replaced.
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

// NoLog returns why there is no log beside the file, nil if there is one. Without
// it nothing is lost, but each change that is told waits for a commit.
func (db *DB) NoLog() error { return db.log.fault }

// Commits returns how many commits were made since Open.
func (db *DB) Commits() uint64 {
	db.mu.RLock()
	defer db.mu.RUnlock()
	return db.commits
}

// Failures returns how many commits failed since Open.
func (db *DB) Failures() uint64 {
	db.mu.RLock()
	defer db.mu.RUnlock()
	return db.failures
}
