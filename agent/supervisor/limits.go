package supervisor

import (
	"context"

	"github.com/volagent/volagent/volmgr/csiclient"
	"github.com/volagent/volagent/volmgr/volume"
)

// askLimits makes the node part of a plugin report the limits and the topology of this host again,
// because its controller found the host to be full.
func (s *Supervisor) askLimits(id string) {
	for _, p := range s.parts(id) {
		p.mu.Lock()
		p.limits = p.rec.Info.HasNode
		p.mu.Unlock()
		p.poke()
	}
}

// askNode calls NodeGetInfo again while the plugin serves. Limits and topology may change. The node
// id may not change, because volumes are connected under it.
func (w *worker) askNode(ctx context.Context, def *volume.PluginDefinition, client *csiclient.Client) {
	asking, cancel := context.WithTimeout(ctx, def.ProbeTimeout)
	defer cancel()

	info, err := client.NodeInfo(asking)
	if err != nil {
		w.logger.Warn("cannot ask the plugin for this host's limits; those that it gave before stay in force", "error", err)
		return
	}

	had := w.record().Info
	w.tellNodeID(info)
	err = w.save(ctx, func(r *volume.PluginRecord) { r.Info.Topology, r.Info.MaxVolumes = info.Topology, info.MaxVolumes })
	if err != nil {
		w.logger.Warn("cannot store what the plugin says of this host", "error", err)
	}

	if had.MaxVolumes != info.MaxVolumes {
		w.logger.Info("the plugin gives this host another limit of volumes", "was", had.MaxVolumes, "now", info.MaxVolumes)
	}
}

// tellNodeID warns of a plugin that reports another node id than before while volumes are in use
// through it. Those volumes stay connected under the id in their records, and are disconnected
// under it.
func (w *worker) tellNodeID(info volume.PluginInfo) {
	had := w.record().Info.NodeID
	if had == "" || had == info.NodeID {
		return
	}
	if ids := w.inUse(); len(ids) > 0 {
		w.logger.Warn("the plugin calls this host by another node id; volumes in use keep the one under which they are attached",
			"was", had, "now", info.NodeID, "volumes", ids)
	}
}
