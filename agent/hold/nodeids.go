package hold

import (
	"context"
	"time"

	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// pluginPatience is how long a host waits with its first registration for its plugins. Before they
// answer, it does not know whether their CSI node ids are as recorded.
const pluginPatience = 10 * time.Second

// awaitPlugins waits until the plugins of a host that was registered before have answered. A plugin that
// answers later is checked then.
func (s *publisher) awaitPlugins(ctx context.Context) {
	if s.Records.Membership().ClusterID == "" {
		return
	}

	ctx, cancel := context.WithTimeout(ctx, pluginPatience)
	defer cancel()
	for id := range s.Info().Plugins {
		if err := s.AwaitPlugin(ctx, id); err != nil {
			s.Log.Debug("a plugin does not answer yet; its CSI node id is compared later", "plugin", id, "error", err)
		}
	}
}

// checkNodeIDs returns an error if a plugin has another CSI node id than recorded, and this host has a
// volume of the plugin. Without such a volume, no attachment belongs to the recorded id.
func (s *publisher) checkNodeIDs(ctx context.Context, now, recorded shared.NodeInfo) error {
	moved := now.Moved(recorded)
	if len(moved) == 0 {
		return nil
	}

	used, err := s.usedPlugins(ctx)
	if err != nil {
		return err
	}
	for _, id := range moved {
		if used[id] {
			return shared.NodeIDMoved(s.Node, id, recorded.Plugins[id].NodeID, now.Plugins[id].NodeID)
		}
	}
	return nil
}

// usedPlugins returns the plugins of the volumes that this host may hold, as its records and the cluster
// show them. The records of a copied host may be older than the cluster's keys.
func (s *publisher) usedPlugins(ctx context.Context) (map[string]bool, error) {
	used := map[string]bool{}
	for _, r := range s.Records.Volumes() {
		if r.Volume.Shared && r.Node.Hold.State != volume.Absent && !r.Node.Hold.Lost {
			used[r.Volume.PluginID] = true
		}
	}

	holds, err := s.readHolds(ctx)
	if err != nil {
		return nil, err
	}
	for id := range holds {
		v, ok, err := s.Definition(ctx, id)
		if err != nil {
			return nil, err
		}
		if ok {
			used[v.PluginID] = true
		}
	}
	return used, nil
}
