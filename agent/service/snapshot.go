package service

import (
	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/volume"
)

func toSnapshot(one volume.ListedSnapshot, known map[storage]string) api.Snapshot {
	return api.Snapshot{
		ID: one.ID, Name: one.Name, PluginID: one.PluginID, Volume: known[storage{one.Driver, one.SourceID}], SourceID: one.SourceID,
		GroupID: one.GroupID, State: stateOf(one.ID, one.Ready), Size: one.Size, CreatedAt: one.Created,
	}
}

func stateOf(id string, ready bool) string {
	switch {
	case ready:
		return api.SnapshotReady
	case id == "":
		return api.SnapshotUnknown
	default:
		return api.SnapshotCreating
	}
}

// toMade describes a snapshot that the agent has just requested. The plugin may not have answered
// yet.
func toMade(m volume.MadeSnapshot, known map[storage]string) api.Snapshot {
	in := m.Intent
	if len(m.Snapshots) == 0 {
		return toPending(volume.PendingSnapshot{SnapshotIntent: in})
	}
	one := toSnapshot(volume.ListedSnapshot{PluginID: in.PluginID, Driver: in.Driver, Name: in.Name, Snapshot: m.Snapshots[0]}, known)
	one.Volume = in.Volumes[0]
	return one
}

func toMadeGroup(m volume.MadeSnapshot, known map[storage]string) api.GroupSnapshot {
	in := m.Intent
	g := api.GroupSnapshot{
		ID: m.ID, Name: in.Name, PluginID: in.PluginID, State: stateOf(m.ID, m.Ready), CreatedAt: m.Created, Snapshots: []api.Snapshot{}, Volumes: in.Volumes,
	}
	for _, one := range m.Snapshots {
		g.Snapshots = append(g.Snapshots, toSnapshot(volume.ListedSnapshot{PluginID: in.PluginID, Driver: in.Driver, Snapshot: one}, known))
	}
	return g
}

func toPending(p volume.PendingSnapshot) api.Snapshot {
	return api.Snapshot{
		ID: p.ID, Name: p.Name, PluginID: p.PluginID, Volume: p.Volumes[0], SourceID: p.Sources[0], State: stateOf(p.ID, false),
		CreatedAt: p.Since, Message: p.Doing,
	}
}

func toPendingGroup(p volume.PendingSnapshot) api.GroupSnapshot {
	return api.GroupSnapshot{
		ID: p.ID, Name: p.Name, PluginID: p.PluginID, State: stateOf(p.ID, false), CreatedAt: p.Since, Snapshots: []api.Snapshot{},
		Volumes: p.Volumes, Message: p.Doing,
	}
}
