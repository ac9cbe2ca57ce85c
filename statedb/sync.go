package statedb

import "context"

// Begin has what is in memory committed soon, and waits for nothing. A commit
// that fails is tried again.
func (db *DB) Begin() {
	select {
	case db.begin <- struct{}{}:
	default: // the writer has not come to the last one yet
	}
}

// Sync waits until all that was put into memory before is on disk.
func (db *DB) Sync(ctx context.Context) error {
	return db.send(ctx, effect, func(*Tx) error { return nil })
}
