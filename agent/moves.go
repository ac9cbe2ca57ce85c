package agent

import (
	"context"

	"github.com/volagent/volagent/agent/hold/move"
	"github.com/volagent/volagent/agent/service"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// connectMoves creates the service that moves shared volumes to and from this host.
func (a *Agent) connectMoves(store shared.Store) {
	a.moves = move.New(move.Options{
		Store: store, Node: a.node.ID, Asker: a.holds.Asker, Lease: a.holds.Lease, Accepts: a.accepts, Draining: a.db.Draining,
		Freed: a.db.Reserved.Drop, Release: func(ctx context.Context, id string) volume.Occupancy { return a.drainer.Release(ctx, id) },
		Events: a.events.Add, Log: a.log.Named("cluster"),
	})
}

// leaving returns the function that names the host to which a volume is being moved, or nil without a
// cluster.
func (a *Agent) leaving() func(id string) string {
	if a.moves == nil {
		return nil
	}
	return a.moves.Leaving
}

// mover returns the service that moves volumes, or nil without a cluster.
func (a *Agent) mover() service.Mover {
	if a.moves == nil {
		return nil
	}
	return a.moves
}

// accepts returns an error if no claim on this host could use a shared volume that another host gives up.
// The result claimed says whether a claim waits for the volume. Such a claim counts for the limit of the
// plugin already. For a volume without a claim, accepts reserves a place.
func (a *Agent) accepts(ctx context.Context, v volume.Volume) (claimed bool, err error) {
	if a.db.Draining() {
		return false, volume.Errorf(volume.ErrRefused, "it is draining").WithRemedy(remedy.Of(remedy.Undrain))
	}
	if err := a.acceptsPlugin(v); err != nil {
		return false, err
	}
	if _, err := a.secrets.Of(v); err != nil {
		return false, volume.Errorf(volume.ErrRefused, "it cannot read a secret of the volume: %v", err).WithHint("does secrets in the cluster section of that host's configuration allow it?")
	}

	r, known := a.db.Volume(v.ID)
	switch {
	case known && !r.Volume.Shared:
		return false, volume.Errorf(volume.ErrRefused, "it has a volume of its own with this id").WithRemedy(remedy.Of(remedy.ShowVolume, v.ID))
	case known && r.Held():
		for _, c := range r.Claims {
			if c.Wanted {
				return true, nil
			}
		}
		return false, volume.Errorf(volume.ErrRefused, "an earlier use of the volume there has not ended").WithRemedy(remedy.Of(remedy.ShowVolume, v.ID))
	}
	return false, a.db.Reserve(ctx, v, a.plugins.View(v.PluginID).Info)
}

// acceptsPlugin returns an error if the plugin of a volume cannot mount the volume on this host.
func (a *Agent) acceptsPlugin(v volume.Volume) error {
	view := a.plugins.View(v.PluginID)
	ready, lack := view.Ready, view.State
	if view.Apart != nil {
		ready, lack = view.Apart.Node.Ready, view.Apart.Node.Lack
	}

	switch {
	case !view.Known:
		return volume.Errorf(volume.ErrRefused, "it has no plugin %q", v.PluginID).WithHint("install the plugin on that host, or name a host that has it: volctl node list")
	case view.Info.Driver != "" && view.Info.Driver != v.Driver:
		return volume.Errorf(volume.ErrRefused, "its plugin %q has driver %s, and the volume needs driver %s", v.PluginID, view.Info.Driver, v.Driver).
			WithRemedy(remedy.Of(remedy.ShowPlugin, v.PluginID))
	case !ready:
		return volume.Errorf(volume.ErrRefused, "its plugin %q is not ready: %s", v.PluginID, lack).WithRemedy(remedy.Of(remedy.ShowPlugin, v.PluginID))
	default:
		return v.CheckHost(view.Info)
	}
}
