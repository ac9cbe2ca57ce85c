package statedb

import "go.etcd.io/bbolt"

// Queued is how many changes wait for the writer.
func (db *DB) Queued() int { return len(db.queue) }

// Step is a migration for tests.
type Step = func(*bbolt.Tx) error

// OpenMigrating opens a file with migrations that this release does not have.
func OpenMigrating(path string, o Options, steps ...Step) (*DB, error) {
	var row []migration
	for _, run := range steps {
		row = append(row, migration{what: "test", run: run})
	}
	return open(path, o, row)
}
