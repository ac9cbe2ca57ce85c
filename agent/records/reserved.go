package records

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// Reservations are the places on this host that moves have reserved for shared volumes. They count for the limits
// of the plugins, so that no other claim takes a place until the volume arrives. They exist only in memory, because
// a move ends soon, and its key is in the cluster. The methods of a nil value reserve nothing.
type Reservations struct {
	mu  sync.Mutex
	all map[string]volume.Volume
}

// Put reserves a place for a volume.
func (r *Reservations) Put(v volume.Volume) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.all == nil {
		r.all = map[string]volume.Volume{}
	}
	r.all[v.ID] = v
}

// Drop ends the reservation for a volume.
func (r *Reservations) Drop(id string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()

	delete(r.all, id)
}

// volumes returns the volumes that have a reserved place.
func (r *Reservations) volumes() []volume.Volume {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()

	return slices.Collect(maps.Values(r.all))
}

// Reserve reserves a place for a shared volume that another host gives up. It returns an error if this host already
// has as many volumes of the plugin as it may have. The database makes one change at a time, so a claim and a
// reservation never get the same place.
func (s Store) Reserve(ctx context.Context, v volume.Volume, p plugin.Info) error {
	err := s.Update(ctx, func(tx *statedb.Tx) error {
		if err := volume.Room(volume.Record{Volume: v}, p, tx.Volumes(), Leftovers(tx), s.Reserved.volumes()); err != nil {
			return err
		}
		s.Reserved.Put(v)
		return nil
	})
	if err != nil {
		s.Reserved.Drop(v.ID)
	}
	return err
}
