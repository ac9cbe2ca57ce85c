package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/cluster"
	"github.com/volagent/volagent/agent/doctor"
	"github.com/volagent/volagent/agent/event"
	"github.com/volagent/volagent/agent/facts"
	"github.com/volagent/volagent/agent/hold"
	"github.com/volagent/volagent/agent/machine"
	"github.com/volagent/volagent/agent/metrics"
	"github.com/volagent/volagent/agent/overview"
	"github.com/volagent/volagent/agent/provision"
	"github.com/volagent/volagent/agent/reconcile"
	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/agent/service"
	"github.com/volagent/volagent/volmgr"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// connectCluster makes the host a member of the configured cluster. Without a configured cluster, it
// does nothing. It does not wait for etcd.
func (a *Agent) connectCluster(ctx context.Context, steps *volmgr.Manager) error {
	c := a.c.Cluster
	if !c.Enabled() && a.halt == "" {
		a.warnOfHolds()
	}
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
		Store: store, Endpoints: a.etcdAddresses, Node: a.node.ID, Boot: a.node.Boot, Machine: machine.Identity(), DataDir: machine.Directory(a.c.DataDir),
		Records: records.Shared{Store: a.db}, Host: steps, StagingPath: steps.StagingPath, Wake: func(id string) { a.queue.Wake(id) },
		Uses: func(driver, external string) string { return a.volumes.Uses(driver, external) }, Reachable: func() { a.files.Retry(); a.cleaner.Wake() },
		Status: a.sharedStatus, Draining: a.db.Draining, Concerned: a.concerned, Admitted: a.metrics.Admitted,
		Info: a.nodeInfo, AwaitPlugin: a.plugins.AwaitNode, Events: a.events.Add, Log: a.log.Named("cluster"),
	})
	a.volumeEvents.subscribe(func([]volume.Event) { a.holds.StatusChanged() })
	return a.connectTasks(store)
}

// warnOfHolds logs that this host has holds in a cluster that the configuration does not name.
func (a *Agent) warnOfHolds() {
	var held []string
	for _, r := range a.db.Volumes() {
		if r.Volume.Shared && r.Held() {
			held = append(held, r.Volume.ID)
		}
	}
	if len(held) == 0 {
		return
	}
	a.log.Error("the configuration has no section cluster, and this host holds shared volumes; the agent leaves them as they are and refuses their use", "holds", len(held), "first", held[0],
		"remedy", "add the section again and restart the agent; to leave the cluster, detach the volumes first")
}

// overview returns the view of the cluster, or nil without a cluster.
func (a *Agent) overview() service.Overview {
	if a.holds == nil {
		return nil
	}
	return a.reader()
}

// reader returns the reader of the cluster's keys.
func (a *Agent) reader() *overview.Service {
	return &overview.Service{
		Store: a.clusterStore, Endpoints: a.etcdAddresses, Node: a.node.ID, Member: a.holds, Now: time.Now, Replaced: func() { a.cleaner.Wake() },
		TakeProven: a.fencer.TakeProven, Hooks: a.hooks(),
	}
}

// clusterFacts returns the doctor's access to the cluster, or nil without a cluster.
func (a *Agent) clusterFacts() *facts.Cluster {
	if a.holds == nil {
		return nil
	}

	return &facts.Cluster{
		Overview: a.reader(), Compare: a.holds.CompareAgain,
		Member: func() doctor.Cluster {
			f := a.holds.Figures()
			return doctor.Cluster{
				Joined: true, Endpoints: f.Endpoints, Away: f.Away, Since: f.Since, Lag: f.Lag, Contradictions: a.cleaner.Findings(),
			}
		},
	}
}

// concerned reports whether the removal of a shared volume concerns this host. The host has a record
// or a recent event of the volume then, or a container runtime has a name for it.
func (a *Agent) concerned(id string) bool {
	if _, ok := a.db.Volume(id); ok {
		return true
	}
	if slices.ContainsFunc(records.Runtimes{Store: a.db}.RuntimeVolumes(), func(v volume.RuntimeVolume) bool { return v.VolumeID == id }) {
		return true
	}

	lately, _ := a.events.After(0)
	return slices.ContainsFunc(lately, func(e event.Event) bool { return e.Volume == id })
}

// drainChanged tells the cluster that this host drains, or no longer does.
func (a *Agent) drainChanged() {
	if a.holds != nil {
		a.holds.DrainChanged()
	}
}

// sharedStatus describes the shared volumes of this host to people on other hosts.
func (a *Agent) sharedStatus() shared.Status {
	s := shared.Status{At: time.Now().UTC(), Volumes: map[string]shared.VolumeStatus{}}
	for _, r := range a.db.Volumes() {
		if !r.Volume.Shared || !r.Held() {
			continue
		}

		v := shared.VolumeStatus{Claims: len(r.Claims), State: volume.InBrief(r, a.queue.Last(r))}
		last := a.volumes.LastReport(r)
		if last.Stats != nil && last.Stats.Bytes != nil && last.Stats.Bytes.Total > 0 {
			used := int(last.Stats.Bytes.Used * 100 / last.Stats.Bytes.Total)
			v.Used = &used
		}
		s.Volumes[r.Volume.ID] = v
	}
	return s
}

// clusterStatus describes the part of this host in the cluster. It returns nil without a cluster.
func (a *Agent) clusterStatus() *api.NodeCluster {
	if a.holds == nil {
		return nil
	}

	f := a.holds.Figures()
	out := &api.NodeCluster{Endpoints: f.Endpoints, Reachable: f.Away == "", Reason: f.Away, Since: f.Since, Incarnation: f.Incarnation, Holds: f.Holds}
	for _, r := range a.db.Volumes() {
		at := a.queue.Last(r)
		if r.Volume.Shared && at != nil && at.Action.Cause == volume.CauseCluster {
			out.Pending = append(out.Pending, fmt.Sprintf("volume %q waits for the cluster", r.Volume.ID))
		}
	}
	for _, l := range f.Lanes {
		if l.Length > 0 {
			out.Pending = append(out.Pending, fmt.Sprintf("%d writes wait in the lane %s, the oldest for %s", l.Length, l.Name, l.Age.Round(time.Millisecond)))
		}
	}
	slices.Sort(out.Pending)
	return out
}

// clusterMetrics returns the source of the metrics of the cluster, or nil without a cluster.
func (a *Agent) clusterMetrics() func() metrics.Cluster {
	if a.holds == nil {
		return nil
	}

	return func() metrics.Cluster {
		f := a.holds.Figures()
		m := metrics.Cluster{Reachable: f.Away == "", Holds: f.Holds, Calls: f.Calls, Lag: f.Lag}
		m.Live, _ = a.cleaner.Live()
		m.Takeovers, m.TakeoverFailures = a.fencer.Figures()
		for _, l := range f.Lanes {
			m.Lanes = append(m.Lanes, metrics.Lane(l))
		}
		return m
	}
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
	info := shared.NodeInfo{Version: api.Version, Schema: shared.Schema, Plugins: map[string]shared.NodePlugin{}, Key: a.box.PublicKey(), Hooks: a.hooks().usable()}
	for _, id := range a.plugins.IDs() {
		view := a.plugins.View(id)
		p := view.Info
		info.Plugins[id] = shared.NodePlugin{
			Driver: p.Driver, Version: p.Version, NodeID: p.NodeID, Topology: p.Topology, MaxVolumes: p.MaxVolumes,
			Controller: p.HasController, Caps: p.Caps, ControllerTimeout: view.ControllerTimeout, Fence: view.Fence,
		}
	}
	return info
}

// joinQueue adds the cluster to the options of the queue.
func (a *Agent) joinQueue(o *reconcile.Options) {
	if a.holds != nil {
		o.Host, o.Cluster, o.Idle = a.holds.Steps(), a.holds.Cluster, a.holds.Idle
		o.Borrow = a.tasks.Borrow
	}
}

// sharedVolumes returns the volumes of the cluster, or nil without a cluster.
func (a *Agent) sharedVolumes() provision.Cluster {
	if a.holds == nil {
		return nil
	}
	return a.holds.Definitions()
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
