package agent

import (
	"context"
	"path/filepath"
	"time"

	"github.com/volagent/volagent/agent/hold/clean"
	"github.com/volagent/volagent/agent/hold/fence"
	"github.com/volagent/volagent/agent/hold/task"
	"github.com/volagent/volagent/agent/provision"
	"github.com/volagent/volagent/agent/secret"
	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// connectTasks creates the services by which hosts make controller calls for each other, and end the
// unfinished calls of hosts that are gone.
func (a *Agent) connectTasks(store shared.Store) error {
	box, err := secret.OpenBox(filepath.Join(a.c.DataDir, "task.key"))
	if err != nil {
		return err
	}

	a.box = box
	a.tasks = task.New(task.Options{
		Store: store, Node: a.node.ID, Asker: a.holds.Asker, View: a.plugins.View, Plugin: a.plugins.ForStep, Secrets: a.secrets.Of,
		Box: box, PeersChanged: a.wakeShared, Overtaken: func(id, node, nodeID string, wait time.Duration) { a.cleaner.Overtaken(id, node, nodeID, wait) },
		Detached: func(ctx context.Context, v volume.Volume, nodeID string) error {
			return a.fencer.Unlisted(ctx, v, nodeID)
		},
		Log: a.log.Named("cluster"),
	})
	a.fencer = fence.New(fence.Options{
		Store: store, Node: a.node.ID, Detacher: a.tasks.Detacher,
		Published: func(ctx context.Context, v volume.Volume) ([]string, bool, error) { return a.cleaner.Published(ctx, v) },
		Hooks:     a.hooks(), Wake: func() { a.cleaner.Wake() }, Events: a.events.Add, Log: a.log.Named("cluster"),
	})
	a.cleaner = clean.New(clean.Options{
		Store: store, Node: a.node.ID, Asker: a.holds.Asker, View: a.plugins.View, Plugin: a.plugins.ForStep, Secrets: a.secrets.Of,
		Fencer: a.fencer, Log: a.log.Named("cluster"),
	})
	a.connectMoves(store)
	a.changes.subscribe(func(supervisor.Change) { a.holds.PluginsChanged() })
	return nil
}

// controllers returns the controllers of other hosts, or nil if no cluster is configured.
func (a *Agent) controllers() provision.Controllers {
	if a.tasks == nil {
		return nil
	}
	return task.Controllers{Service: a.tasks}
}

// wakeShared makes the queue look at all shared volumes again.
func (a *Agent) wakeShared() {
	for _, r := range a.db.Volumes() {
		if r.Volume.Shared {
			a.queue.Wake(r.Volume.ID)
		}
	}
}

// forStep returns the client that makes the call of one step. Another host makes the controller
// calls for a shared volume if the plugin of this host has no controller.
func (a *Agent) forStep(v volume.Volume, k call.Method) (call.Caller, error) {
	if a.tasks != nil && v.Shared && k.Service() == call.Controller && a.plugins.View(v.PluginID).LacksController() {
		return task.Remote{Service: a.tasks, Volume: v}, nil
	}
	return a.plugins.ForStep(v, k)
}
