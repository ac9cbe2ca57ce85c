package statedb

import (
	"errors"
	"syscall"

	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// doubt handles the changes of a failed commit. If only the last sync failed, they may be in the
// file after all, now or after the next commit. The next commit therefore writes the values from
// memory for all these keys. Memory also continues from the generations of the failed commit, so
// that later log lines are newer.
func (db *DB) doubt(c changes) {
	newer := newChanges()
	for id, r := range c.volumes {
		if m, ok := db.mem.volumes[id]; ok && r != nil && m.Generation < r.Generation {
			m.Generation = r.Generation
			newer.volumes[id] = &m
		}

		// Empty claims differ from every claim in memory, so all are written again.
		claims := map[string]volume.Claim{}
		for alloc := range db.disk[id] {
			claims[alloc] = volume.Claim{}
		}
		if r != nil {
			for alloc := range r.Claims {
				claims[alloc] = volume.Claim{}
			}
		}
		db.disk[id] = claims
	}

	db.publish(newer)
	again(db.dirty.volumes, c.volumes, db.mem.volumes)
	again(db.dirty.plugins, c.plugins, db.mem.plugins)
	again(db.dirty.debts, c.debts, db.mem.debts)
	again(db.dirty.registered, c.registered, db.mem.registered)
	again(db.dirty.snapshots, c.snapshots, db.mem.snapshots)
	again(db.dirty.names, c.names, db.mem.names)
	again(db.dirty.runtimes, c.runtimes, db.mem.runtimes)
	if c.node != nil {
		db.dirty.node = &db.mem.node
	}
}

// again marks keys so that the next commit writes their values from memory.
func again[V any](dirty, keys map[string]*V, mem map[string]V) {
	for k := range keys {
		if v, ok := mem[k]; ok {
			dirty[k] = &v
		} else {
			dirty[k] = nil
		}
	}
}

// unwritten turns the error of a failed commit into a message with a hint.
func (db *DB) unwritten(err error) error {
	e := volume.Errorf(err, "cannot write the state database in %s: %v", db.dir, err)
	var f *Foreign
	switch {
	case errors.As(err, &f):
		return f.refusal()
	case db.broken != nil:
		return e.WithHint("stop the agent, move state.db aside and start it again: it takes up what is mounted")
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return e.WithHint("free space there, then ask again: %s", suggest.Command("df -h %s", db.dir))
	case errors.Is(err, syscall.EROFS):
		return e.WithHint("mount it for writing, then ask again: %s", suggest.Command("findmnt -T %s", db.dir))
	default:
		return e.WithHint("look at the disk under %s, then ask again: %s; dmesg", db.dir, suggest.Command("df -h %s", db.dir))
	}
}
