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
// Two things lie beside the file. The log (see log.go) holds changes that were already reported but
// not yet committed. The two automatic copies (see copies.go) are needed if the file is lost or
// damaged.
//
// All state is also in memory, and reads never touch the file. One writer goroutine takes the
// queued mutations, runs them one after the other on a copy, and commits the successful ones
// together. Concurrent changes therefore share a commit without added delay. A refused mutation
// writes nothing and does not fail the others.
package statedb

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// initialMmap is large so that a growing file rarely has to be mapped again, which waits for
// readers. It is address space, not memory.
const initialMmap = 256 << 20

var (
	// ErrLocked is returned by Open when another process has locked the directory or the file.
	ErrLocked = errors.New("another volagent uses this data dir")
	// ErrClosed is returned by changes that are made after Close.
	ErrClosed = errors.New("state database is closed")
)

// Point names a moment at which the database calls Options.Tap.
type Point string

// The points around a commit, and in the migration of an older file.
const (
	BeforeCommit Point = "before-commit"
	AfterCommit  Point = "after-commit"

	Kept            Point = "kept"
	BeforeMigration Point = "before-migration"
	AfterMigration  Point = "after-migration"
)

// Options configures a DB. Outside tests the zero value is right.
type Options struct {
	// Tap, if set, is called by the writer around each commit. Tests use it to die or to stall at
	// that point.
	Tap func(Point)
	// LockTimeout bounds the wait for the locks; 0 means one second.
	LockTimeout time.Duration
	// Warn, if set, receives a message when a file was changed or could not be copied while it was
	// open. It must not use the database.
	Warn func(message string)
}

// Node is the stored state of the host itself.
type Node struct {
	ID        string `json:"id"`       // CSI node id, chosen at the first start
	Boot      string `json:"boot"`     // boot id when mounts were last made
	Namespace uint64 `json:"ns"`       // mount namespace in which those mounts were made
	DataDir   string `json:"data_dir"` // data dir in which the stored paths lie
	// Clean is set by an agent that shuts down properly, and cleared at the next start. Only if it
	// is set, the records are known to contain every step that was done.
	Clean bool `json:"clean,omitempty"`
	// Draining is set while the host is being emptied: new claims are refused.
	Draining bool `json:"draining,omitempty"`
	Loss     Loss `json:"loss,omitzero"`
}

// Loss describes the state database that this one replaced.
type Loss struct {
	At      time.Time `json:"at"`   // when this database was made
	Kept    string    `json:"kept"` // path of the damaged file; empty if the file was missing
	Why     string    `json:"why"`
	Volumes int       `json:"volumes"` // number of volumes that were adopted
	Claims  int       `json:"claims"`
	// Time of the copy that supplied the other records; zero without a copy.
	Copy time.Time `json:"copy,omitzero"`
}

// Debt holds the pending calls of a volume after a forced deregister: the record as it was then.
// The agent makes the calls once the plugin is ready.
type Debt struct {
	Record volume.Record  `json:"record"`
	Claims []volume.Claim `json:"claims"`
	Since  time.Time      `json:"since"`
}

// Whole returns the record with its claims.
func (d Debt) Whole() volume.Record {
	r := whole(d.Record, d.Claims)
	r.Leftover = true
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
	swap sync.RWMutex // held by the writer while it exchanges bolt, by others while they use bolt
	log  *logFile
	path string
	dir  string // directory of the file
	home home
	tap  func(Point)
	warn func(string)

	queue   chan *request
	begin   chan struct{} // holds a token while a commit is requested
	tending chan struct{} // asks the writer to check the files
	quit    chan struct{}
	done    chan struct{}
	closing sync.Once
	copying sync.Mutex // held while a copy has a name

	mu  sync.RWMutex
	mem state
	// commits counts the commits since Open, failures the failed ones. Guarded by mu.
	commits, failures uint64
	// fault is the error of the last commit, or nil. Guarded by mu.
	fault error
	// misplaced is the reason why the file at the path may not be the open one. Guarded by mu.
	misplaced error
	// foreign is the file that was found in place of the open one. Guarded by mu.
	foreign *Foreign

	// turn is held while a mutation runs and its result is put into mem. A commit releases it while
	// it writes to disk, unless the log is full.
	turn  sync.Mutex
	dirty changes // changes that memory has and the file may lack; guarded by turn
	busy  changes // changes that a commit is writing and memory lacks; guarded by turn
	ended bool    // the last commit was made; guarded by turn
	// recalled is set while the log has uncommitted lines of an earlier agent. Guarded by turn.
	recalled bool

	// The following fields belong to the writer goroutine.
	disk   map[string]map[string]volume.Claim // claims of the volumes as last committed
	values values                             // encoded values of the current commit
	copies copier
	// broken is set once bbolt has panicked in a commit, because bbolt may still hold locks.
	broken error
}

// Open opens or creates the file, migrates an older one, and loads it. It returns ErrLocked if
// another process has the file open, and *Damage if the content makes no sense. If a newer release
// wrote the file, the error names both schemas. In all these cases the file stays unchanged.
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

// openIn opens the database in a directory that is already locked.
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

// Close commits all queued and unsaved changes, and closes the file.
func (db *DB) Close() error {
	db.closing.Do(func() { close(db.quit) })
	<-db.done
	if db.broken != nil {
		return errors.Join(db.broken, db.bolt.abandon(), db.log.close(), db.home.unlock())
	}
	return errors.Join(db.bolt.Close(), db.log.close(), db.home.unlock())
}

// recall loads the changes that an earlier agent reported and logged, but did not commit.
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
