package hold

import (
	"context"
	"time"

	"github.com/volagent/volagent/volmgr/shared"
)

// pluginPatience is how long a host delays its registration until the plugins of its holds have answered.
// Together with the restart of an agent, it is shorter than the lease, so the host does not look gone.
const pluginPatience = 5 * time.Second

// heldAs returns the CSI node ids under which this host holds volumes, as the cluster shows them. The
// records of a copied host may be older.
func (s *ownHolds) heldAs(ctx context.Context) (held []shared.HeldAs, err error) {
	holds, err := s.readHolds(ctx)
	if err != nil {
		return nil, err
	}

	for id, h := range holds {
		plugin, err := s.pluginOf(ctx, id)
		if err != nil {
			return nil, err
		}
		if plugin != "" {
			held = append(held, shared.HeldAs{Plugin: plugin, NodeID: h.Value.NodeID})
		}
	}
	return held, nil
}

// pluginOf returns the plugin of a shared volume, or an empty text if the volume does not exist.
func (s *ownHolds) pluginOf(ctx context.Context, id string) (string, error) {
	if r, ok := s.holder(id); ok && r.Volume.Shared {
		return r.Volume.PluginID, nil
	}
	sit, err := s.read(ctx, id)
	return sit.Volume.Value.Volume.PluginID, err
}

// checkNodeIDs returns an error if this host holds a volume under another CSI node id than its plugin has
// now. It first waits for these plugins. A plugin that answers later is compared then.
func (s *ownHolds) checkNodeIDs(ctx context.Context) error {
	held, err := s.heldAs(ctx)
	if err != nil {
		return err
	}

	wait, cancel := context.WithTimeout(ctx, pluginPatience)
	defer cancel()
	awaited := map[string]bool{}
	for _, h := range held {
		if awaited[h.Plugin] {
			continue
		}
		awaited[h.Plugin] = true
		if err := s.AwaitPlugin(wait, h.Plugin); err != nil {
			s.Log.Debug("a plugin does not answer yet; its CSI node id is compared later", "plugin", h.Plugin, "error", err)
		}
	}
	return shared.CheckNodeIDs(s.Node, s.Info(), held)
}
