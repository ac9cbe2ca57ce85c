package agent

import (
	"context"
	"fmt"
	"strings"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/cluster"
	"github.com/volagent/volagent/agent/config"
	"github.com/volagent/volagent/agent/hold"
	"github.com/volagent/volagent/agent/identity"
	"github.com/volagent/volagent/agent/provision"
	"github.com/volagent/volagent/agent/reconcile"
	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/volmgr"
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
	a.secrets.Allows = c.Allows
	a.holds = hold.New(hold.Options{
		Store: store, Endpoints: strings.Join(c.Endpoints, ", "), Node: a.node.ID, Boot: a.node.Boot, Machine: identity.Machine(),
		Records: records.Shared{Store: a.db}, Host: steps, StagingPath: steps.StagingPath, Wake: func(id string) { a.queue.Wake(id) },
		Uses: func(driver, external string) string { return a.volumes.Uses(driver, external) }, Reachable: func() { a.files.Retry() },
		Info: a.nodeInfo, TrustLocal: c.Boot == config.BootTrustLocal, Events: a.events.Add, Log: a.log.Named("cluster"),
	})
	return nil
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
	info := shared.NodeInfo{Version: api.Version, Schema: shared.Schema, Plugins: map[string]shared.NodePlugin{}}
	for _, id := range a.plugins.IDs() {
		p := a.plugins.View(id).Info
		info.Plugins[id] = shared.NodePlugin{
			Driver: p.Driver, Version: p.Version, NodeID: p.NodeID, Topology: p.Topology, MaxVolumes: p.MaxVolumes, Controller: p.HasController,
		}
	}
	return info
}

// joinQueue adds the cluster to the options of the queue.
func (a *Agent) joinQueue(o *reconcile.Options) {
	if a.holds != nil {
		o.Host, o.Cluster, o.Idle = hold.Steps{Service: a.holds}, a.holds.Cluster, a.holds.Idle
	}
}

// sharedVolumes returns the volumes of the cluster, or nil without a cluster.
func (a *Agent) sharedVolumes() provision.Cluster {
	if a.holds == nil {
		return nil
	}
	return hold.NewDefinitions(a.holds)
}

// fetchShared returns the function that brings the definition of a shared volume to this host, or
// nil without a cluster.
func (a *Agent) fetchShared() func(context.Context, string) error {
	if a.holds == nil {
		return nil
	}

	return func(ctx context.Context, id string) error {
		if err := a.holds.Fetch(ctx, id); err != nil {
			return err
		}
		r, ok := a.db.Volume(id)
		if !ok || !r.Volume.Shared || r.Held() {
			return nil
		}

		if _, err := a.secrets.Of(r.Volume); err != nil {
			return volume.Errorf(volume.ErrRefused, "this host cannot use shared volume %q: %v", id, err).
				WithHint("does secrets in the cluster section of this host's configuration allow it?")
		}
		return nil
	}
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
