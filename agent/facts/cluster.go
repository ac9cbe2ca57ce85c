package facts

import (
	"context"
	"errors"
	"time"

	"github.com/volagent/volagent/agent/doctor"
	"github.com/volagent/volagent/agent/overview"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// Overview reads the cluster.
type Overview interface {
	Own(ctx context.Context) ([]shared.HoldView, error)
	Calls(ctx context.Context) ([]shared.CallView, error)
	Host(ctx context.Context, name string) (shared.HostView, error)
	Taken(ctx context.Context, own []volume.Volume) ([]overview.Taken, error)
	Rivals(ctx context.Context, holds []shared.HoldView) (map[string]string, error)
}

// Cluster is the part of this host in its cluster.
type Cluster struct {
	Overview Overview

	// Member returns the state of the membership: only the fields that the agent has in memory.
	Member func() doctor.Cluster

	// Compare makes the agent compare its holds with the cluster soon.
	Compare func()
}

// usualDeadline is the assumed time limit of calls to a plugin that this host does not have.
const usualDeadline = 5 * time.Minute

// statesAtMost limits for how many executors of calls the state is read.
const statesAtMost = 20

// compare asks for a comparison of the holds. It does nothing on a host without a cluster.
func (c *collector) compare() {
	if c.o.Cluster != nil {
		c.o.Cluster.Compare()
	}
}

// cluster reads the part of this host in the cluster.
func (c *collector) cluster(ctx context.Context, records []volume.Record) doctor.Cluster {
	if c.o.Cluster == nil {
		return doctor.Cluster{}
	}

	p, from := c.o.Cluster.Member(), c.o.Cluster.Overview
	if p.Away != "" {
		return p
	}

	var errHolds, errCalls, errConflicts error
	p.Holds, errHolds = from.Own(ctx)
	p.Calls, errCalls = c.calls(ctx, records)
	p.Conflicts, errConflicts = c.conflicts(ctx, records, p.Holds)
	p.Err = errors.Join(errHolds, errCalls, errConflicts)
	return p
}

// calls returns the announced calls of all hosts, with the states of their executors.
func (c *collector) calls(ctx context.Context, records []volume.Record) (all []doctor.OpenCall, err error) {
	found, err := c.o.Cluster.Overview.Calls(ctx)
	if err != nil {
		return nil, err
	}

	plugins := map[string]string{}
	for _, r := range records {
		plugins[r.Volume.ID] = r.Volume.PluginID
	}

	states := map[string]shared.HostState{}
	for _, call := range found {
		open := doctor.OpenCall{CallView: call, Deadline: usualDeadline}
		if call.Deadline > 0 {
			open.Deadline = call.Deadline
		} else if limit := c.o.Plugins.View(plugins[call.Volume]).ControllerTimeout; limit > 0 {
			open.Deadline = limit
		}

		state, known := states[call.Executor]
		if !known && len(states) < statesAtMost {
			host, err := c.o.Cluster.Overview.Host(ctx, call.Executor)
			if err == nil {
				state = host.State
			}
			states[call.Executor] = state
		}
		open.State = state
		all = append(all, open)
	}

	return all, nil
}

// conflicts returns the volumes of this host that exclude another use in the cluster.
func (c *collector) conflicts(ctx context.Context, records []volume.Record, holds []shared.HoldView) (all []doctor.Conflict, err error) {
	var own []volume.Volume
	for _, r := range records {
		if !r.Volume.Shared {
			own = append(own, r.Volume)
		}
	}

	taken, err := c.o.Cluster.Overview.Taken(ctx, own)
	if err != nil {
		return nil, err
	}
	for _, t := range taken {
		kind := doctor.SameID
		if t.Storage {
			kind = doctor.SameStorage
		}
		all = append(all, doctor.Conflict{Kind: kind, Volume: t.Volume, Other: t.Shared})
	}

	rivals, err := c.o.Cluster.Overview.Rivals(ctx, holds)
	if err != nil {
		return all, err
	}
	for _, h := range holds {
		if other := rivals[h.Volume]; other != "" {
			all = append(all, doctor.Conflict{Kind: doctor.TwoHolders, Volume: h.Volume, Other: other})
		}
	}
	return all, nil
}
