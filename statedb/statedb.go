// Package statedb keeps what the agent must remember in one bbolt file. It is
// the only user of bbolt.
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
//	  <plugin id>                 volume.PluginRecord; of a further part as <id>/controller/<instance>
//	registered
//	  <plugin id> 0x00 <type> 0x00 <instance>   volume.PluginDefinition of a plugin that was
//	                              registered at run time; the first one makes the bucket
//	snapshots
//	  <driver> 0x00 <snapshot or group> 0x00 <name>   volume.SnapshotIntent: one that was to be
//	                              made and has not been seen to be finished; the first one makes the bucket
//	runtimes
//	  <runtime> 0x00 <name>       volume.RuntimeVolume: a volume that a container runtime knows by
//	                              that name, and who uses it; the first one makes the bucket
//	debts
//	  <driver> 0x00 <external id> Debt: what a forced deregister left undone
//
// Beside the file lies a log of what was told to people and is not committed yet;
// see log.go.
//
// All of it is also held in memory; reads never touch the file. One writer
// goroutine takes whatever mutations are queued, runs them one after the other
// on a copy, and commits those that succeed together: concurrent changes share
// a commit with no delay added, a refused one writes nothing and fails nobody
// else.
package statedb

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// initialMmap keeps a growing file from having to wait for readers. It is
// address space, not memory.
const initialMmap = 256 << 20

var (
	// ErrLocked is returned by Open when another process has the file open.
	ErrLocked = errors.New("another volagent uses this data dir")
	// ErrClosed is returned by changes after Close.
	ErrClosed = errors.New("state database is closed")
)

// Point is where Options.Tap is called.
type Point string

// Points around a commit, and in the migration of an older file.
const (
	BeforeCommit Point = "before-commit"
	AfterCommit  Point = "after-commit"

	Kept            Point = "kept"
	BeforeMigration Point = "before-migration"
	AfterMigration  Point = "after-migration"
)

// Options tune a DB. The zero value is right outside tests.
type Options struct {
	// Tap, if set, is called by the writer around each commit. It is a seam
	// for tests that die or stall there.
	Tap func(Point)
	// LockTimeout bounds the wait for the file's lock; 0 means one second.
	LockTimeout time.Duration
}

// Node is what is remembered of the host itself.
type Node struct {
	ID        string `json:"id"`       // CSI node id, given at the first start
	Boot      string `json:"boot"`     // boot id when mounts were last made
	Namespace uint64 `json:"ns"`       // mount namespace they were made in
	DataDir   string `json:"data_dir"` // where the stored paths lie
	// Clean is set by an agent that stopped in order, and cleared when the next
	// one starts: only then is what is recorded all that was done.
	Clean bool `json:"clean,omitempty"`
	// Draining is set while the host is to be emptied: no new claim is taken.
	Draining bool `json:"draining,omitempty"`
	Loss     Loss `json:"loss,omitzero"`
}

// Loss is what is remembered of a state database before this one.
type Loss struct {
	At      time.Time `json:"at"`   // when this one was made in its place
	Kept    string    `json:"kept"` // where the damaged file is; empty if it was not there
	Why     string    `json:"why"`
	Volumes int       `json:"volumes"` // that were adopted
	Claims  int       `json:"claims"`
}

// Debt is what a forced deregister left on the host: the record as it was. It
// is paid when the plugin is ready.
type Debt struct {
	Record volume.Record  `json:"record"`
	Claims []volume.Claim `json:"claims"`
	Since  time.Time      `json:"since"`
}

// Whole is the record with its claims.
func (d Debt) Whole() volume.Record {
	r := whole(d.Record, d.Claims)
	r.Debt = true
	return r
}

func whole(r volume.Record, claims []volume.Claim) volume.Record {
	r.Claims = make(map[string]volume.Claim, len(claims))
	for _, c := range claims {
		r.Claims[c.Alloc] = c
	}
	return r
}

// DB is an open state database. It is safe for concurrent use.
type DB struct {
	bolt opened
	log  *logFile
	dir  string // of the file
	tap  func(Point)

	queue   chan *request
	begin   chan struct{} // holds a token: there is something to commit
	quit    chan struct{}
	done    chan struct{}
	closing sync.Once
	copying sync.Mutex // held while a copy has a name

	mu  sync.RWMutex
	mem state
	// commits counts those made since Open, failures those that failed; guarded by mu.
	commits, failures uint64
	// fault is why the last commit failed; nil if it did not. Guarded by mu.
	fault error

	// turn is held by whoever runs a mutation and puts its outcome into mem. It
	// is not held while a commit writes.
	turn  sync.Mutex
	dirty changes // what memory has and the file may not have; guarded by turn
	busy  changes // what a commit is writing and memory has not; guarded by turn
	ended bool    // the last commit was made; guarded by turn
	// recalled is set while the log has lines of an earlier agent that are not
	// committed; guarded by turn.
	recalled bool

	// Of the writer goroutine alone.
	disk   map[string]map[string]volume.Claim // volumes' claims as last committed
	values values                             // of the commit in hand
	// broken is set once bbolt has panicked in a commit: it may hold locks.
	broken error
}

// Open opens or creates the file, migrates an older one, and loads it. It
// returns ErrLocked if another process holds it, *Damage if it makes no sense,
// and an error that names both schemas if it was written by a newer release;
// the file is then left as it is.
func Open(path string, o Options) (*DB, error) { return open(path, o, migrations) }

func open(path string, o Options, steps []migration) (*DB, error) {
	if o.LockTimeout == 0 {
		o.LockTimeout = time.Second
	}
	fresh := !exists(path)
	forgetTemp(path)
	b, err := openBolt(path, o.LockTimeout)
	if err != nil {
		return nil, judge(path, b.info, err)
	}
	db := &DB{
		bolt: b, dir: filepath.Dir(path), tap: o.Tap,
		queue: make(chan *request, 1024), begin: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
		dirty: newChanges(),
	}
	if err = db.load(path, steps); err == nil && fresh {
		err = syncDir(db.dir)
	}
	if err != nil {
		if err = judge(path, b.info, err); !isDamage(err) {
			err = fmt.Errorf("cannot read %s: %w", path, err)
		}
		return nil, errors.Join(err, b.Close())
	}
	db.disk = make(map[string]map[string]volume.Claim, len(db.mem.volumes))
	for id, r := range db.mem.volumes {
		db.disk[id] = r.Claims
	}
	if err := db.recall(path); err != nil {
		return nil, errors.Join(err, b.Close(), db.log.close())
	}
	go db.write()
	return db, nil
}

func isDamage(err error) bool {
	var d *Damage
	return errors.As(err, &d)
}

// Close commits what is queued or not yet on disk, and closes the file.
func (db *DB) Close() error {
	db.closing.Do(func() { close(db.quit) })
	<-db.done
	if db.broken != nil {
		return errors.Join(db.broken, db.bolt.abandon(), db.log.close())
	}
	return errors.Join(db.bolt.Close(), db.log.close())
}

// recall takes up what an agent that died told and had no time to commit.
func (db *DB) recall(path string) error {
	var lines []volume.Record
	db.log, lines = openLog(path)
	if len(db.mem.volumes) == 0 {
		return db.log.forget()
	}
	news := replay(&db.mem, lines)
	if news.empty() {
		db.log.committed(0)
		return nil
	}
	db.mem.apply(news)
	db.dirty.add(news)
	db.recalled = true
	db.Begin()
	return nil
}

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

// Fault returns why the last commit failed, nil if it did not.
func (db *DB) Fault() error {
	db.mu.RLock()
	defer db.mu.RUnlock()
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
