package statedb

// Queued is how many changes wait for the writer.
func (db *DB) Queued() int { return len(db.queue) }
