package service

import (
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// toReport converts a plugin's report about a volume.
func toReport(id string, r volume.Report) *api.Report {
	out := &api.Report{Silent: r.Silent}
	if r.Stats != nil {
		st := toStats(id, r)
		out.Stats = &st
	}
	for by, c := range map[string]*volume.Checkup{volume.ByNode: r.Node, volume.ByController: r.Controller} {
		if c == nil {
			continue
		}
		if out.CheckedAt == nil {
			out.CheckedAt = map[string]time.Time{}
		}
		out.CheckedAt[by] = c.At
	}

	for _, f := range r.Findings() {
		out.Health = append(out.Health, toFindings(f.By, []call.Condition{f.Condition})...)
	}

	if r.Storage != nil {
		out.Storage = toStorage(*r.Storage)
		out.Storage.Volume = id
	}
	return out
}

// toStats converts the stats of a report. If the report has none, it sets only the volume's id and
// the time.
func toStats(id string, r volume.Report) api.Stats {
	out := api.Stats{Volume: id, At: r.StatsAt}
	if r.Stats == nil {
		return out
	}
	if b := r.Stats.Bytes; b != nil {
		out.BytesTotal, out.BytesUsed, out.BytesAvailable = b.Total, b.Used, b.Available
	}
	if i := r.Stats.Inodes; i != nil {
		out.InodesTotal, out.InodesUsed, out.InodesAvailable = i.Total, i.Used, i.Available
	}
	return out
}

func toStorage(v call.StorageVolume) *api.StorageVolume {
	out := &api.StorageVolume{
		ExternalID: v.ExternalID, Capacity: v.Capacity, Context: v.Context, Topologies: v.Topologies,
		SnapshotID: v.SnapshotID, CloneID: v.CloneID, PublishedNodes: v.PublishedNodes,
	}
	if v.Condition != nil {
		out.Health = toFindings(volume.ByController, []call.Condition{*v.Condition})
	}
	return out
}

func toFindings(by string, all []call.Condition) []api.Finding {
	out := make([]api.Finding, 0, len(all))
	for _, c := range all {
		out = append(out, api.Finding{By: by, Severity: c.Severity, Reason: c.Reason, Message: c.Message})
	}
	return out
}
