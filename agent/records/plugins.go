package records

import (
	"context"

	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/plugin"
)

// Plugins adapts the state database for the supervisor.
type Plugins struct{ Store }

// LoadPlugins returns all records.
func (s Plugins) LoadPlugins() ([]plugin.Record, error) { return statedb.Plugins.All(s), nil }

// SavePlugin stores a record durably.
func (s Plugins) SavePlugin(ctx context.Context, rec plugin.Record) error {
	return s.Happened(ctx, func(tx *statedb.Tx) error {
		statedb.Plugins.Put(tx, rec)
		return nil
	})
}

// LoadRegistered returns the definitions that were registered at run time.
func (s Plugins) LoadRegistered() ([]plugin.Definition, error) {
	return statedb.Registered.All(s), nil
}

// Register stores a definition. After an error, nothing has changed.
func (s Plugins) Register(ctx context.Context, def plugin.Definition) error {
	return s.Update(ctx, func(tx *statedb.Tx) error {
		statedb.Registered.Put(tx, def)
		return nil
	})
}

// Deregister deletes definitions. After an error, it has deleted none of them.
func (s Plugins) Deregister(ctx context.Context, defs []plugin.Definition) error {
	return s.Update(ctx, func(tx *statedb.Tx) error {
		for _, def := range defs {
			statedb.Registered.Remove(tx, def)
		}
		return nil
	})
}
