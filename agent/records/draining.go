package records

import (
	"context"

	"github.com/volagent/volagent/statedb"
)

// Draining adapts the state database for package drain.
type Draining struct{ WithLeftovers }

// SetDraining stores whether the host is being drained.
func (s Draining) SetDraining(ctx context.Context, draining bool) (changed bool, err error) {
	err = s.Update(ctx, func(tx *statedb.Tx) error {
		n := tx.Node()
		if changed = n.Draining != draining; changed {
			n.Draining = draining
			tx.PutNode(n)
		}

		return nil
	})

	return changed && err == nil, err
}
