// Package statedb stores the agent's state in one bbolt file. No other package uses bbolt.
//
// The buckets, their keys and values (JSON unless said otherwise):
//
//	meta
//	  schema                      decimal number, see migrations
//	  node                        Node: the CSI node id, boot, mount namespace, data dir, how the
//	                              last agent ended, whether it is being drained, loss
//	volumes
//	  <volume id>                 volume.Record without its claims
//	claims
//	  <volume id> 0x00 <alloc>    volume.Claim
//	plugins
//	  <plugin id>                 volume.PluginRecord; the key of an additional part is <id>/controller/<instance>
//	registered
//	  <plugin id> 0x00 <type> 0x00 <instance>   volume.PluginDefinition of a plugin that was
//	                              registered at run time; the first one makes the bucket
//	snapshots
//	  <driver> 0x00 <snapshot or group> 0x00 <name>   volume.SnapshotIntent: the intent to make
//	                              a snapshot, until its result is known; the first one makes the bucket
//	snapshot-names
//	  <driver> 0x00 <snapshot or group> 0x00 <name> 0x00 <id>   volume.SnapshotName: the name that
//	                              was given to a snapshot of that id; the first one makes the bucket
//	runtimes
//	  <runtime> 0x00 <name>       volume.RuntimeVolume: a volume that a container runtime knows by
//	                              that name, and its users; the first one makes the bucket
//	cluster
//	  membership                  shared.Membership: this host's part in a cluster; the first
//	                              registration makes the bucket
//	debts
//	  <driver> 0x00 <external id> Leftover: the pending calls after a forced deregister
//
// There are other files beside it. The log (see log.go) holds changes that were already reported but
// not yet committed. The two automatic copies (see copies.go) are needed if the file is lost or
// damaged.
//
// All state is also in memory, and reads never touch the file. One writer goroutine takes the
// queued mutations, runs them one after the other on a copy, and commits the successful ones
// together. Concurrent changes therefore share a commit without added delay. A refused mutation
// writes nothing and does not fail the others.
package statedb

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// DB is an open state database. It is safe for concurrent use.
type DB struct {
	View
	*writer
	*backups
	closing sync.Once
}

// Open opens or creates the file, migrates an older one, and loads it. It returns ErrLocked if
// another process has the file open, and *Damage if the content is invalid. If a newer release
// wrote the file, the error names both schemas. In all these cases the file does not change.
func Open(path string, o Options) (*DB, error) { return open(path, o, migrations) }

func open(path string, o Options, steps []migration) (*DB, error) {
	if o.LockTimeout == 0 {
		o.LockTimeout = time.Second
	}

	if o.Warn == nil {
		o.Warn = func(string) {}
	}

	if o.Tap == nil {
		o.Tap = func(Point) {}
	}

	h, err := lockHome(path, o.LockTimeout)
	if err != nil {
		return nil, err
	}
	db, err := openIn(h, path, o, steps)
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}

	return db, nil
}

// openIn opens the database in a directory that the caller has locked.
func openIn(h home, path string, o Options, steps []migration) (*DB, error) {
	fresh := !exists(path)
	forgetTemp(path)
	bolt, err := openBolt(path, o.LockTimeout)
	if err != nil {
		return nil, judge(path, bolt.info, err)
	}

	b := &backups{file: newFile(path, bolt, h, o.Warn)}
	mem, err := load(b, o, steps)
	if err == nil && fresh {
		err = syncDir(b.file.dir)
	}
	if err != nil {
		var d *Damage
		if err = judge(path, bolt.info, err); !errors.As(err, &d) {
			err = fmt.Errorf("cannot read %s: %w", path, err)
		}
		return nil, errors.Join(err, bolt.Close())
	}

	log, lines := openLog(path, h, o.Warn)
	w := newWriter(b, mem, log, o.Tap)
	if err := recall(w, lines); err != nil {
		return nil, errors.Join(err, bolt.Close(), log.close())
	}
	go w.write()
	return &DB{View: View{w.mem}, writer: w, backups: b}, nil
}

// recall applies the logged changes that an earlier agent reported but did not commit.
func recall(w *writer, lines []volume.Record) error {
	if len(w.stored) == 0 {
		return w.log.forget()
	}

	for _, r := range lines {
		w.mem.newest = max(w.mem.newest, r.Generation)
	}
	w.dirty = replay(w.mem.state, lines)
	if len(w.dirty) == 0 {
		w.log.committed(0)
		return nil
	}
	w.mem.publish(w.dirty)
	w.recalled = true
	w.commitSoon()
	return nil
}

// Close commits all queued and uncommitted changes, and closes the file.
func (db *DB) Close() error {
	db.closing.Do(func() { close(db.quit) })
	<-db.done
	return errors.Join(db.writer.file.close(), db.log.close(), db.writer.file.home.unlock())
}

// NoLog returns the reason why the database has no log, or nil if the database has a log. Without a
// log, no change is lost, but each reported change waits for a commit.
func (db *DB) NoLog() error { return db.log.fault }

// Backup commits the state in memory and copies the file. It leaves no transaction open, so a slow
// reader of the copy does not block the database.
func (db *DB) Backup(ctx context.Context) (*Backup, error) {
	if err := db.sync(ctx); err != nil {
		return nil, err
	}
	return db.backup()
}
