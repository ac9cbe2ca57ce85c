package service

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// Overview reads the shared volumes and the hosts of a cluster.
type Overview interface {
	Volumes(ctx context.Context) ([]shared.VolumeView, error)
	Volume(ctx context.Context, id string) (v shared.VolumeView, ok bool, err error)
	Hosts(ctx context.Context) ([]shared.HostView, error)
	Host(ctx context.Context, name string) (shared.HostView, error)
	Replace(ctx context.Context, host, who, reason string) (dropped []string, err error)
	Fence(ctx context.Context, host, who, reason string) (p shared.Proof, taken []string, err error)
	Unfence(ctx context.Context, host string) (hooks []string, err error)
	FenceTest(ctx context.Context, host string, off bool) (answers []string, err error)
}

// Cluster answers requests about the cluster of this host. Without a configured cluster, overview is
// nil.
type Cluster struct {
	view
	overview Overview
	mover    Mover
	self     string
}

// check returns an error if no cluster is configured.
func (c Cluster) check() error {
	if c.overview != nil {
		return nil
	}
	return asAPI(volume.Errorf(volume.ErrRefused, "no cluster is configured on this host").WithHint("add the section cluster to the configuration, and restart the agent"))
}

// Volumes returns the volumes of this host, and all shared volumes of the cluster. If the cluster is
// not reachable, it returns the volumes of this host and a warning.
func (c Cluster) Volumes(ctx context.Context) (all []api.Volume, warning string) {
	all = c.describeAll(ctx)
	if c.overview == nil {
		return all, ""
	}

	views, err := c.overview.Volumes(ctx)
	if err != nil {
		warning = "the list shows only the volumes that this host knows: " + APIError(err).Message
	}

	at := map[string]int{}
	for i := range all {
		all[i].Scope = cmp.Or(all[i].Spec.Scope, api.ScopeHost)
		at[all[i].Spec.ID] = i
	}
	for _, v := range views {
		i, known := at[v.Volume.ID]
		if !known {
			all = append(all, c.elsewhere(v))
			continue
		}
		if all[i].Scope == api.ScopeShared {
			all[i].Holds = toHolds(v.Holds)
		}
	}
	for i := range all {
		if err != nil && all[i].Scope == api.ScopeShared {
			all[i].Holds = c.ownHold(all[i].Spec.ID)
		}
	}

	slices.SortFunc(all, func(a, b api.Volume) int { return strings.Compare(a.Spec.ID, b.Spec.ID) })
	return all, warning
}

// Volume adds to a volume of this host its holds in the cluster. It also finds a shared volume of
// which this host has no record. If the cluster is not reachable, it returns the volume as this
// host knows it, and a warning.
func (c Cluster) Volume(ctx context.Context, by Caller, id string) (out api.Volume, warning string, err error) {
	rec, err := c.record(id)
	known := err == nil
	if known {
		out = c.describe(ctx, by, rec)
	}
	if c.overview == nil {
		return out, "", err
	}

	out.Scope = cmp.Or(out.Spec.Scope, api.ScopeHost)
	if known && out.Scope == api.ScopeHost {
		return out, "", nil
	}
	if volume.CheckID("volume id", id) != nil {
		return out, "", err
	}

	v, found, rerr := c.overview.Volume(ctx, id)
	switch {
	case rerr != nil && known:
		out.Holds = c.ownHold(id)
		return out, "the holds of other hosts are unknown: " + APIError(rerr).Message, nil
	case rerr != nil:
		return out, "", asAPI(rerr)
	case !found:
		return out, "", err
	case !known:
		out = c.elsewhere(v)
	}

	out.Holds = toHolds(v.Holds)
	if v.Conflict != "" {
		out.Notes = append(out.Notes, v.Conflict)
	}
	if t := v.TakenOver; t != nil {
		out.TakenOver = &api.Takeover{From: t.From, FenceDrop: toDrop(t.Drop)}
	}
	if v.Call != nil {
		call := toCall(*v.Call)
		out.ClusterCall = &call
	}
	if m := v.Move; m != nil {
		out.Move = &api.Move{From: m.From, To: m.To, By: m.By, Since: m.Since, Summary: m.Words(v.Holder())}
	}
	return out, "", nil
}

// ownHold returns the hold of this host on a volume, as this host has recorded it. It needs no read
// from the cluster.
func (c Cluster) ownHold(id string) []api.Hold {
	r, _ := c.records.Volume(id)
	h := r.Node.Hold
	if h.State != volume.Present || h.Lost {
		return nil
	}
	return toHolds([]shared.HoldView{{Volume: id, Host: c.self, Access: h.Access, Reader: h.Reader, Since: h.Since, Token: h.Token}})
}

// elsewhere describes a shared volume of which this host has no record.
func (c Cluster) elsewhere(v shared.VolumeView) api.Volume {
	v.Volume.Shared = true
	p := c.plugins.View(v.Volume.PluginID)
	out := api.Volume{
		Spec: toSpec(v.Volume), Scope: api.ScopeShared, State: api.StateFree, Summary: "free", Driver: v.Volume.Driver, PluginState: p.State,
		PluginVersion: p.Info.Version, Created: v.Volume.Created, Capacity: v.Volume.Capacity, Topologies: v.Volume.Topologies,
		RegisteredAt: v.Volume.RegisteredAt, Controller: p.Info.Caps.Attach, Attached: volume.Absent.String(), Staged: volume.Absent.String(),
		Claims: []api.Claim{}, Holds: toHolds(v.Holds),
	}
	if !p.Known {
		out.PluginState = api.Unknown
	}

	switch n := len(v.Holds); {
	case v.Deleting:
		out.Summary = "being deleted"
	case n == 1:
		out.State, out.Summary = api.StateHeld, "held by host "+v.Holds[0].Host
	case n > 1:
		out.State, out.Summary = api.StateHeld, fmt.Sprintf("held by %d hosts", n)
	}
	return out
}

// Hosts returns all hosts of the cluster.
func (c Cluster) Hosts(ctx context.Context) ([]api.ClusterHost, error) {
	if err := c.check(); err != nil {
		return nil, err
	}

	views, err := c.overview.Hosts(ctx)
	if err != nil {
		return nil, asAPI(err)
	}
	out := make([]api.ClusterHost, len(views))
	for i, v := range views {
		out[i] = c.host(v)
	}
	return out, nil
}

// Host returns one host of the cluster.
func (c Cluster) Host(ctx context.Context, name string) (api.ClusterHost, error) {
	if err := c.check(); err != nil {
		return api.ClusterHost{}, err
	}
	v, err := c.overview.Host(ctx, name)
	return c.host(v), asAPI(err)
}

// Replace drops the holds of a host whose machine is gone.
func (c Cluster) Replace(ctx context.Context, by Caller, host string, req api.ReplaceRequest) (api.Replaced, error) {
	if err := by.CheckWrite(); err != nil {
		return api.Replaced{}, err
	}
	if err := c.check(); err != nil {
		return api.Replaced{}, err
	}

	dropped, err := c.overview.Replace(ctx, host, fmt.Sprintf("uid %d on host %s", by.UID, c.self), req.Reason)
	return api.Replaced{Host: host, Dropped: append([]string{}, dropped...)}, asAPI(err)
}

// Fence records that a host is switched off.
func (c Cluster) Fence(ctx context.Context, by Caller, host string, req api.FenceRequest) (api.Fenced, error) {
	if err := by.CheckWrite(); err != nil {
		return api.Fenced{}, err
	}
	if err := c.check(); err != nil {
		return api.Fenced{}, err
	}

	p, taken, err := c.overview.Fence(ctx, host, fmt.Sprintf("uid %d on host %s", by.UID, c.self), req.Reason)
	if err != nil {
		return api.Fenced{}, asAPI(err)
	}
	return api.Fenced{Host: host, Proof: toProof(p), Taken: append([]string{}, taken...)}, nil
}

// Unfence gives a host its access to the storage back.
func (c Cluster) Unfence(ctx context.Context, by Caller, host string) (api.Unfenced, error) {
	if err := by.CheckWrite(); err != nil {
		return api.Unfenced{}, err
	}
	if err := c.check(); err != nil {
		return api.Unfenced{}, err
	}
	hooks, err := c.overview.Unfence(ctx, host)
	return api.Unfenced{Host: host, Hooks: append([]string{}, hooks...)}, asAPI(err)
}

// FenceTest asks the fence hooks of this host about another host.
func (c Cluster) FenceTest(ctx context.Context, by Caller, host string, req api.FenceTestRequest) (api.FenceTested, error) {
	if err := by.CheckWrite(); err != nil {
		return api.FenceTested{}, err
	}
	if err := c.check(); err != nil {
		return api.FenceTested{}, err
	}
	answers, err := c.overview.FenceTest(ctx, host, req.Off)
	return api.FenceTested{Host: host, Answers: append([]string{}, answers...)}, asAPI(err)
}

// toProof describes a proof.
func toProof(p shared.Proof) api.FenceProof {
	out := api.FenceProof{Kind: string(p.Kind), Who: p.Who, Reason: p.Reason, At: p.At}
	for _, d := range p.Drops {
		out.Drops = append(out.Drops, toDrop(d))
	}
	for _, h := range p.Hooks {
		out.Hooks = append(out.Hooks, api.FenceAsked{Name: h.Name, By: h.By, At: h.At, Outcome: h.Outcome})
	}
	return out
}

func toDrop(d shared.Drop) api.FenceDrop {
	return api.FenceDrop{Volume: d.Volume, Kind: string(d.Kind), By: d.By, At: d.At}
}

// host describes a host.
func (c Cluster) host(v shared.HostView) api.ClusterHost {
	out := api.ClusterHost{
		ID: v.Name, Self: v.Name == c.self, State: string(v.State), Since: v.Node.Since, Alive: v.Alive, Seen: v.Seen,
		Incarnation: v.Node.Incarnation, Version: v.Info.Version, Plugins: []api.ClusterPlugin{}, HoldCount: v.HoldCount, Holds: toHolds(v.Holds),
	}
	if v.State == shared.HostAway {
		out.Until = v.Node.Until
	}
	out.Quarantined = v.Node.Quarantined
	if v.Proof != nil {
		p := toProof(*v.Proof)
		out.Proof = &p
	}
	for _, id := range slices.Sorted(maps.Keys(v.Info.Plugins)) {
		p := v.Info.Plugins[id]
		out.Plugins = append(out.Plugins, api.ClusterPlugin{
			ID: id, Driver: p.Driver, Version: p.Version, NodeID: p.NodeID, Controller: p.Controller, MaxVolumes: p.MaxVolumes,
		})
	}
	for _, call := range v.Calls {
		out.Calls = append(out.Calls, toCall(call))
	}
	return out
}

func toHolds(views []shared.HoldView) (out []api.Hold) {
	for _, v := range views {
		h := api.Hold{
			Volume: v.Volume, Host: v.Host, HostState: string(v.State), AccessMode: string(v.Access), Reader: v.Reader,
			Attachment: string(v.Attachment), Since: v.Since,
		}
		if v.Token != (volume.Token{}) {
			h.Token = v.Token.String()
		}
		if v.Told != nil {
			h.Claims, h.State = &v.Told.Claims, string(v.Told.State)
		}
		out = append(out, h)
	}
	return out
}

func toCall(v shared.CallView) api.ClusterCall {
	return api.ClusterCall{Volume: v.Volume, Executor: v.Executor, Call: string(v.Call.Call), Target: v.Target, Since: v.Since}
}
