package agent

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/cluster"
	"github.com/volagent/volagent/agent/config"
	"github.com/volagent/volagent/agent/hold"
	"github.com/volagent/volagent/agent/hold/clean"
	"github.com/volagent/volagent/agent/hold/task"
	"github.com/volagent/volagent/agent/identity"
	"github.com/volagent/volagent/agent/provision"
	"github.com/volagent/volagent/agent/reconcile"
	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/agent/secret"
	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/volmgr"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// connectCluster makes the host a member of the configured cluster. Without a configured cluster, it
// does nothing. It does not wait for etcd.
func (a *Agent) connectCluster(ctx context.Context, steps *volmgr.Manager) error {
	c := a.c.Cluster
	if !c.Enabled() || a.halt != "" {
		return nil
	}

	store, err := cluster.Open(ctx, cluster.Options{
		Endpoints: c.Endpoints, CA: c.CA, Cert: c.Cert, Key: c.Key, User: c.User, Password: a.clusterPassword,
		Prefix: c.Prefix, Log: a.log.Named("cluster"), Tap: a.seams.Transaction,
	})
	if err != nil {
		return fmt.Errorf("cannot use etcd at %s: %w", strings.Join(c.Endpoints, ", "), err)
	}

	a.clusterStore = store
	a.holds = hold.New(hold.Options{
		Store: store, Endpoints: strings.Join(c.Endpoints, ", "), Node: a.node.ID, Boot: a.node.Boot, Machine: identity.Machine(),
		Records: records.Shared{Store: a.db}, Host: steps, StagingPath: steps.StagingPath, Wake: func(id string) { a.queue.Wake(id) },
		Info: a.nodeInfo, TrustLocal: c.Boot == config.BootTrustLocal, Events: a.events.Add, Log: a.log.Named("cluster"),
	})
	return a.connectTasks(store)
}

// connectTasks creates the services by which hosts make controller calls for each other, and end what
// hosts that are gone have left unfinished.
func (a *Agent) connectTasks(store shared.Store) error {
	box, err := secret.OpenBox(filepath.Join(a.c.DataDir, "task.key"))
	if err != nil {
		return err
	}

	a.box = box
	a.tasks = task.New(task.Options{
		Store: store, Node: a.node.ID, Asker: a.holds.Asker, View: a.plugins.View, Plugin: a.plugins.ForStep, Secrets: a.secrets.Of,
		Box: box, PeersChanged: a.wakeShared, Log: a.log.Named("cluster"),
	})
	a.cleaner = clean.New(clean.Options{
		Store: store, Node: a.node.ID, Asker: a.holds.Asker, View: a.plugins.View, Plugin: a.plugins.ForStep, Secrets: a.secrets.Of,
		Log: a.log.Named("cluster"),
	})
	a.changes.subscribe(func(supervisor.Change) { a.holds.PluginsChanged() })
	return nil
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
	if a.tasks != nil && v.Shared && k.Service() == call.Controller && task.Needed(a.plugins.View(v.PluginID)) {
		return task.Remote{Service: a.tasks, Volume: v}, nil
	}
	return a.plugins.ForStep(v, k)
}

// clusterPassword reads the password for etcd.
func (a *Agent) clusterPassword() (string, error) {
	value, err := a.secrets.One(a.c.Cluster.Password)
	if err != nil {
		return "", err
	}

	return value.Reveal(), nil
}

// nodeInfo describes the plugins of this host to the other hosts.
func (a *Agent) nodeInfo() shared.NodeInfo {
	info := shared.NodeInfo{Version: api.Version, Schema: shared.Schema, Plugins: map[string]shared.NodePlugin{}, Key: a.box.PublicKey()}
	for _, id := range a.plugins.IDs() {
		view := a.plugins.View(id)
		p := view.Info
		info.Plugins[id] = shared.NodePlugin{
			Driver: p.Driver, Version: p.Version, NodeID: p.NodeID, Topology: p.Topology, MaxVolumes: p.MaxVolumes,
			Controller: p.HasController, Caps: p.Caps, ControllerTimeout: view.ControllerTimeout,
		}
	}
	return info
}

// joinQueue adds the cluster to the options of the queue.
func (a *Agent) joinQueue(o *reconcile.Options) {
	if a.holds != nil {
		o.Host, o.Cluster, o.Idle = hold.Steps{Service: a.holds}, a.holds.Cluster, a.holds.Idle
		o.Borrow = a.tasks.Borrow
	}
}

// sharedDefinitions returns the definitions of the cluster, or nil without a cluster.
func (a *Agent) sharedDefinitions() provision.Definitions {
	if a.holds == nil {
		return nil
	}
	return a.holds
}

// fetchShared returns the function that brings the definition of a shared volume to this host, or
// nil without a cluster.
func (a *Agent) fetchShared() func(context.Context, string) error {
	if a.holds == nil {
		return nil
	}
	return a.holds.Fetch
}

// leaveCluster tells the other hosts that the agent stops in order.
func (a *Agent) leaveCluster(ctx context.Context) {
	if a.holds == nil {
		return
	}
	if err := a.holds.Leave(ctx); err != nil {
		a.log.Warn("cannot tell the cluster that the agent stops; the other hosts see that its lease ends", "error", err)
	}
}
