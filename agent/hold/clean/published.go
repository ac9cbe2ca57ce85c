package clean

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// listWithin limits the requests to one plugin for the attachments of its volumes. A plugin whose list
// has no end, or more than mostPages pages, must not keep the elected host from its other work.
const (
	listWithin = 2 * time.Minute
	mostPages  = 1000
)

// attachments is the part of a pass that compares the attachments with the holds.
type attachments struct{ *Cleaner }

// start starts to compare the attachments of some plugins with the holds.
func (c attachments) start(ctx context.Context, who shared.Asker, mine func(pluginID string) bool) {
	c.jobs.start(comparing, func() {
		if err := c.compare(ctx, who, mine); err != nil && ctx.Err() == nil {
			c.Log.Warn("cannot compare the attachments with the holds; the next pass tries again", "error", err)
		}
	})
}

// compare compares the nodes to which the drivers say that volumes are attached with the
// holds. It detaches a host without a hold, and tells a host whose attachment is missing. It does
// nothing for plugins that are not mine, and for drivers that do not list such nodes or have no
// controller on this host.
func (c attachments) compare(ctx context.Context, who shared.Asker, mine func(pluginID string) bool) error {
	byPlugin := map[string][]volume.Volume{}
	if err := each(ctx, c.Store, shared.Volumes(), func(e shared.Entry[shared.Definition]) error {
		v := e.Value.Volume
		if v.Shared = true; e.Value.Attach && v.Provision == volume.Provisioned && mine(v.PluginID) && c.lists(v) {
			byPlugin[v.PluginID] = append(byPlugin[v.PluginID], v)
		}
		return nil
	}); err != nil || len(byPlugin) == 0 {
		return err
	}

	for pluginID, volumes := range byPlugin {
		nodes, err := c.nodeIDs(ctx, pluginID)
		if err != nil {
			return err
		}
		holders, err := c.holders(ctx)
		if err != nil {
			return err
		}
		listed, err := c.listPublished(ctx, volumes)
		if err != nil {
			c.Log.Warn("cannot list the nodes to which volumes are attached; the next pass tries again", "plugin", pluginID, "error", err)
			continue
		}

		for _, v := range volumes {
			ids, ok := listed[v.ExternalID]
			if !ok {
				continue
			}
			extra, missing := shared.Published{Listed: ids, Nodes: nodes, Holds: holders[v.ID]}.Differences()
			c.correct(ctx, who, v, extra, missing)
		}
	}
	return ctx.Err()
}

// delegate asks hosts with a controller to compare the attachments of the plugins that have none on this
// host. For each plugin, it chooses the first live host whose driver lists the nodes of a volume.
func (c attachments) delegate(ctx context.Context, live map[string]shared.Live) error {
	hosts := map[string]string{}
	if err := each(ctx, c.Store, shared.NodeInfos(), func(e shared.Entry[shared.NodeInfo]) error {
		node, _ := shared.LastID(e.Key)
		for id, plugin := range e.Value.Plugins {
			able := plugin.Controller && plugin.Caps.PublishedNodes && (plugin.Caps.List || plugin.Caps.Get)
			first := hosts[id] == "" || node < hosts[id]
			own := c.View(id)
			_, alive := live[node]
			needed := !own.Info.HasController || !own.ReadyFor(call.ControllerUnpublish)
			if able && alive && node != c.Node && first && needed {
				hosts[id] = node
			}
		}
		return nil
	}); err != nil {
		return err
	}

	c.publish(ctx, func(l *leader) bool {
		same := maps.Equal(l.Compare, hosts)
		l.Compare = hosts
		return !same
	})
	return ctx.Err()
}

// lists reports whether the driver of a volume lists the nodes to which the volume is attached, and has
// a controller on this host.
func (c attachments) lists(v volume.Volume) bool {
	view := c.View(v.PluginID)
	caps := view.Info.Caps
	return caps.PublishedNodes && (caps.List || caps.Get) && view.Info.HasController && view.Info.Driver == v.Driver &&
		view.ReadyFor(call.ControllerUnpublish)
}

// nodeIDs returns the hosts of the cluster by their CSI node ids.
func (c attachments) nodeIDs(ctx context.Context, pluginID string) (map[string]string, error) {
	ids := map[string]string{}
	err := each(ctx, c.Store, shared.NodeInfos(), func(e shared.Entry[shared.NodeInfo]) error {
		node, _ := shared.LastID(e.Key)
		if id := e.Value.Plugins[pluginID].NodeID; id != "" {
			ids[id] = node
		}
		return nil
	})
	return ids, err
}

// holders returns the hosts that have a hold, by volume.
func (c attachments) holders(ctx context.Context) (map[string][]shared.Holder, error) {
	all := map[string][]shared.Holder{}
	err := each(ctx, c.Store, shared.Holds(), func(e shared.Entry[shared.Hold]) error {
		node, id, _ := shared.HoldIDs(e.Key)
		all[id] = append(all[id], shared.Holder{Node: node, Hold: e.Value, Mod: e.Mod})
		return nil
	})
	return all, err
}

// listPublished asks a driver for the nodes to which its volumes are attached. The key of the result is
// the external id.
func (c attachments) listPublished(ctx context.Context, volumes []volume.Volume) (map[string][]string, error) {
	ctx, cancel := context.WithTimeout(ctx, listWithin)
	defer cancel()

	listed := map[string][]string{}
	if !c.View(volumes[0].PluginID).Info.Caps.List {
		for _, v := range volumes {
			p, err := c.Plugin(v, call.ControllerGetVolume)
			if err != nil {
				return nil, err
			}
			one, err := call.Do(ctx, p, call.GetVolumeRequest{ExternalID: v.ExternalID})
			var ce *volume.CallError
			if errors.As(err, &ce) && ce.Code == volume.CodeNotFound {
				continue // a claim of the volume reports that
			}
			if err != nil {
				return nil, err
			}
			listed[v.ExternalID] = one.PublishedNodes
		}
		return listed, nil
	}

	p, err := c.Plugin(volumes[0], call.ListVolumes)
	if err != nil {
		return nil, err
	}
	ours := map[string]bool{}
	for _, v := range volumes {
		ours[v.ExternalID] = true
	}
	for token, pages := "", 0; pages < mostPages; pages++ {
		page, err := call.Do(ctx, p, call.ListVolumesRequest{Token: token})
		if err != nil {
			return nil, err
		}
		for _, one := range page.Entries {
			if ours[one.ExternalID] {
				listed[one.ExternalID] = one.PublishedNodes
			}
		}
		if page.Next == "" {
			return listed, nil
		}
		if page.Next == token {
			return nil, errors.New("the plugin repeats a page of its list of volumes")
		}
		token = page.Next
	}
	return nil, fmt.Errorf("the list of volumes has more than %d pages", mostPages)
}

// Published returns the nodes to which the driver of a volume says that the volume is attached. It is not
// known if the driver does not list such nodes, or has no controller on this host.
func (c *Cleaner) Published(ctx context.Context, v volume.Volume) (nodes []string, known bool, err error) {
	a := attachments{c}
	if !a.lists(v) {
		return nil, false, nil
	}
	listed, err := a.listPublished(ctx, []volume.Volume{v})
	return listed[v.ExternalID], err == nil, err
}

// correct ends the attachments without a hold, and tells the hosts whose attachment is missing. Each
// transaction compares the hold and the call in flight, so an outdated list does no harm.
func (c attachments) correct(ctx context.Context, who shared.Asker, v volume.Volume, extra, missing []shared.PublishedNode) {
	if _, err := c.Secrets(v); err != nil && len(extra) > 0 {
		c.Log.Warn("a volume is attached to a host that has no hold on it, and this host cannot read the secrets to detach it", "volume", v.ID, "host", extra[0].Node, "error", err)
		extra = nil
	}
	for _, n := range extra {
		c.decideOrphan(ctx, v, n, func(o shared.Orphan) (shared.Txn, error) {
			return o.BeginUnpublish(who, n.NodeID, c.View(v.PluginID).ControllerTimeout, time.Now().UTC())
		}, func() {
			c.Log.Warn("a volume is attached to a host that has no hold on it; it is detached", "volume", v.ID, "host", n.Node)
			c.finish(ctx, who, v.ID, shared.Call{
				Executor: c.Node, Target: n.Node, NodeID: n.NodeID, Taken: true, Deadline: c.View(v.PluginID).ControllerTimeout,
			})
		})
	}
	for _, n := range missing {
		c.decideOrphan(ctx, v, n, func(o shared.Orphan) (shared.Txn, error) { return o.MarkMissing(who, n) }, func() {
			c.Log.Warn("a volume is not attached to the host that holds it; the host attaches it again", "volume", v.ID, "host", n.Node)
		})
	}
}

// decideOrphan executes one decision about the attachment of a host, and then calls done. If the keys
// have changed, the next pass looks again.
func (c attachments) decideOrphan(ctx context.Context, v volume.Volume, n shared.PublishedNode, by func(shared.Orphan) (shared.Txn, error), done func()) {
	o, err := c.orphanOf(ctx, v.ID, shared.Call{Executor: c.Node, Target: n.Node})
	if err != nil {
		return // the next pass tries again
	}
	txn, err := by(o)
	if errors.Is(err, shared.ErrNotOrphan) {
		return
	}

	var res shared.Result
	if err == nil {
		res, err = c.Store.Do(ctx, txn)
	}
	switch {
	case err != nil:
		c.Log.Warn("cannot correct an attachment; the next pass tries again", "volume", v.ID, "host", n.Node, "error", err)
	case res.Done:
		done()
	}
}
