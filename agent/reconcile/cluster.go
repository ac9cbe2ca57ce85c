package reconcile

import (
	"cmp"
	"fmt"

	"github.com/volagent/volagent/volmgr/volume"
)

// addCluster adds the state of the cluster to an observation of a shared volume.
func (w *worker) addCluster(obs *volume.Observed, r volume.Record) {
	if w.q.o.Cluster == nil {
		obs.Halt = cmp.Or(obs.Halt, fmt.Sprintf("volume %q is shared by the hosts of a cluster, and the configuration of this host has no section cluster", r.Volume.ID))
		return
	}
	obs.Cluster = w.q.o.Cluster(r)
	if w.q.o.Borrow != nil && r.Volume.Shared {
		obs.Plugin = w.q.o.Borrow(r.Volume, obs.Plugin)
	}
}

// forgetIdle deletes the record of a shared volume that this host no longer uses.
func (w *worker) forgetIdle(a volume.Action, r volume.Record) {
	if a.Kind != volume.Settled || !r.Idle() || w.q.o.Idle == nil {
		return
	}
	if err := w.q.o.Idle(w.q.ctx, r); err != nil {
		w.q.o.Log.Warn("cannot forget the record of a shared volume that this host no longer uses", "volume", w.id, "error", err)
	}
}
