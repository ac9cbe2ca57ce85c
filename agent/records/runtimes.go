package records

import (
	"context"

	"github.com/volagent/volagent/agent/dockervol"
	"github.com/volagent/volagent/statedb"
)

// Runtimes adapts the state database for dockervol.
type Runtimes struct{ Store }

// Update makes one change. Either all of it is on disk, or none.
func (s Runtimes) Update(ctx context.Context, fn func(dockervol.Tx) error) error {
	return s.DB.Update(ctx, func(tx *statedb.Tx) error { return fn(tx) })
}
