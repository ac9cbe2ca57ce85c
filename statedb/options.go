package statedb

import (
	"errors"
	"time"
)

var (
	// ErrLocked is returned by Open when another process has locked the directory or the file.
	ErrLocked = errors.New("another volagent uses this data dir")
	// ErrClosed is returned by changes after Close.
	ErrClosed = errors.New("state database is closed")
)

// Point names a moment at which the database calls Options.Tap.
type Point string

// These are the points before and after a commit, and the points in the migration of an older file.
const (
	BeforeCommit Point = "before-commit"
	AfterCommit  Point = "after-commit"

	Kept            Point = "kept"
	BeforeMigration Point = "before-migration"
	AfterMigration  Point = "after-migration"
)

// Options configures a DB. Only tests change an option from its zero value.
type Options struct {
	// Tap, if set, is called by the writer at each Point. Tests use it to kill or to stop the
	// process there.
	Tap func(Point)
	// LockTimeout limits the wait for the locks. 0 means one second.
	LockTimeout time.Duration
	// Warn, if set, receives a message when another process changed a file while the database was
	// open, or when the database could not copy a file. It must not use the database.
	Warn func(message string)
}
