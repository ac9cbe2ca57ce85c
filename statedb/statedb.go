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
//	snapshot-names
//	  <driver> 0x00 <snapshot or group> 0x00 <name> 0x00 <id>   volume.SnapshotName: the name that
//	                              was given to a snapshot of that id; the first one makes the bucket
//	runtimes
//	  <runtime> 0x00 <name>       volume.RuntimeVolume: a volume that a container runtime knows by
//	                              that name, and who uses it; the first one makes the bucket
//	debts
//	  <driver> 0x00 <external id> Debt: what a forced deregister left undone
//
// Beside the file lie a log of what was told to people and is not committed yet (see
// log.go), and two automatic copies (see copies.go).
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
	"path/filepath"
	"sync"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// initialMmap keeps a growing file from having to wait for readers. It is
// address space, not memory.
const initialMmap = 256 << 20

var (
	// ErrLocked is returned by Open when another process has the directory, or the file.
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
	// LockTimeout bounds the wait for the locks; 0 means one second.
	LockTimeout time.Duration
	// Warn, if set, is told what happened to the files while they were open. It must
	// not use the database.
	Warn func(message string)
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
	Copy    time.Time `json:"copy,omitzero"` // when the copy was made that the rest comes from; zero if there was none
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
	swap sync.RWMutex // held by the writer while it exchanges bolt, by others while they read it
	log  *logFile
	path string
	dir  string // of the file
	home home
	tap  func(Point)
	warn func(string)

	queue   chan *request
	begin   chan struct{} // holds a token: there is something to commit
	tending chan struct{} // asks the writer to look after the files
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
	// misplaced is why the open file may not be the one at the path. Guarded by mu.
	misplaced error
	// foreign is the file that was found in place of the open one. Guarded by mu.
	foreign *Foreign

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
	copies copier
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
	if o.Warn == nil {
		o.Warn = func(string) {}
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

// openIn is open in a directory that is locked.
func openIn(h home, path string, o Options, steps []migration) (*DB, error) {
	fresh := !exists(path)
	forgetTemp(path)
	b, err := openBolt(path, o.LockTimeout)
	if err != nil {
		return nil, judge(path, b.info, err)
	}
	db := &DB{
		bolt: b, path: path, dir: filepath.Dir(path), home: h, tap: o.Tap, warn: o.Warn,
		queue: make(chan *request, 1024), begin: make(chan struct{}, 1), tending: make(chan struct{}), quit: make(chan struct{}), done: make(chan struct{}),
		dirty: newChanges(), misplaced: b.unwritable(path),
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
	if err := db.recall(); err != nil {
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
		return errors.Join(db.broken, db.bolt.abandon(), db.log.close(), db.home.unlock())
	}
	return errors.Join(db.bolt.Close(), db.log.close(), db.home.unlock())
}

// recall takes up what an agent that died told and had no time to commit.
func (db *DB) recall() error {
	var lines []volume.Record
	db.log, lines = openLog(db)
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
