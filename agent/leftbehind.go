package agent

import (
	"context"

	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr"
	"github.com/volagent/volagent/volmgr/volume"
)

// tidy removes leftovers of an earlier boot below the mount directories, and repairs directory
// modes from earlier versions of the agent.
func (a *agent) tidy(ctx context.Context, was statedb.Node, steps *volmgr.Manager) {
	if was.Boot != "" && was.Boot != a.node.Boot {
		if err := steps.Tidy(); err != nil {
			a.log.Warn("something was left where volumes are mounted, from before this boot", "error", err)
		}
	}

	if a.halt == "" {
		a.repairModes(ctx, steps)
	}
}

// repairModes closes mount directories that an earlier version left open to every user.
func (a *agent) repairModes(ctx context.Context, steps *volmgr.Manager) {
	if err := steps.RepairModes(ctx, records.WithLeftovers{Store: a.db}.Volumes()); err != nil {
		a.log.Warn("cannot set the modes of directories that volumes are mounted in; other users may reach paths that are meant for root alone, or miss their volumes", "error", err)
	}
}

// leftoverUndone forgets the leftovers of a forced deregister after they are undone.
func (a *agent) leftoverUndone(r volume.Record) {
	waiting := a.dropLeftover(r)
	a.plugins.Released(r.Volume.PluginID)
	if waiting != "" {
		a.queue.Wake(waiting)
	}
}

// dropLeftover deletes a leftover record that is completely undone, and first makes its directories
// writable again. It returns a volume of the same storage that may be waiting for that.
func (a *agent) dropLeftover(r volume.Record) (waiting string) {
	if err := a.places.undone(r); err != nil {
		a.log.Warn("a directory still refuses writes although no volume is mounted there any more; to make it writable: chattr -i DIRECTORY", "volume", r.Volume.ID, "error", err)
	}
	waiting, err := a.db.Settle(context.Background(), r)
	if err != nil {
		a.log.Error("cannot drop the record of a forced deregister, whose calls are all made; it is tried again", "volume", r.Volume.ID, "error", err)
	}

	return waiting
}
