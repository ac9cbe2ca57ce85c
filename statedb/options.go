package statedb

import (
	"errors"
	"time"
)

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
