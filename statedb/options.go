package statedb

import (
	"errors"
	"time"
)

var (
	// ErrLocked is the error of Open if another process has locked the directory or the file.
	ErrLocked = errors.New("another volagent uses this data dir")
	// ErrClosed is the error of a change after Close.
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
	// The writer calls Tap, if it is set, at each Point. Tests use Tap to kill or stop the process
	// at this moment.
	Tap func(Point)
	// LockTimeout limits the wait for the locks. 0 means one second.
	LockTimeout time.Duration
	// Warn, if it is set, receives a message when another process has changed a file of the open
	// database, or when the database could not copy a file. Warn must not use the database.
	Warn func(message string)
}
