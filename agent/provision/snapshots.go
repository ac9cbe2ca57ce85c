package provision

import (
	"context"
	"fmt"
	"slices"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// Snapshots asks one plugin, or all plugins, for their snapshots. It deletes the intents of
// snapshots that are ready now. If it asks all plugins, the notes of the result name each plugin
// that did not answer.
func (s *snapshotter) Snapshots(ctx context.Context, ask volume.SnapshotsAsk) (volume.Snapshots, error) {
	v := volume.Volume{PluginID: ask.PluginID, Secrets: ask.Secrets}
	if ask.VolumeID != "" {
		r, ok, err := s.sourceRecord(ctx, ask.VolumeID)
		if err != nil {
			return volume.Snapshots{}, err
		}
		if !ok {
			return volume.Snapshots{}, noVolume(ask.VolumeID)
		}
		if ask.PluginID != "" && ask.PluginID != r.Volume.PluginID {
			return volume.Snapshots{}, volume.Errorf(volume.ErrInvalid, "volume %q is of plugin %q, not of %q", ask.VolumeID, r.Volume.PluginID, ask.PluginID)
		}

		if v = r.Volume; len(ask.Secrets) > 0 {
			v.Secrets = ask.Secrets
		}
	}

	var out volume.Snapshots
	switch {
	case ask.Pending:
	case v.PluginID != "":
		if err := s.listOne(ctx, v, &out); err != nil {
			return out, err
		}
	default:
		for _, id := range s.Plugins.IDs() {
			switch view := s.Plugins.View(id); {
			case !view.Info.Caps.Snapshot && !view.Info.Caps.ListSnapshots:
			case !view.ReadyFor(call.ListSnapshots):
				out.Notes = append(out.Notes, view.Lacks(id, call.ListSnapshots)+", so its snapshots are not shown")
			default:
				if err := s.listOne(ctx, volume.Volume{PluginID: id}, &out); err != nil {
					out.Notes = append(out.Notes, fmt.Sprintf("plugin %q did not list its snapshots: %v", id, err))
				}
			}
		}
	}

	s.addPending(ctx, v, &out)
	return out, ctx.Err()
}

// listOne asks one plugin for its snapshots. If the plugin cannot list snapshots, listOne adds a
// note to the result.
func (s *snapshotter) listOne(ctx context.Context, v volume.Volume, out *volume.Snapshots) error {
	info, err := s.awaitPlugin(ctx, v.PluginID)
	if err == nil && !info.Caps.ListSnapshots {
		err = s.checkCanSnapshot(ctx, v.PluginID, false, info.Caps)
	}
	if err != nil {
		return err
	}

	p, secrets, err := s.provisioner(v)
	if err != nil {
		return err
	}

	var all []call.Snapshot
	if info.Caps.ListSnapshots {
		all, err = allSnapshots(ctx, v.PluginID, p, call.ListSnapshotsRequest{SourceID: v.ExternalID, Secrets: secrets})
	} else {
		out.Notes = append(out.Notes, fmt.Sprintf("plugin %q cannot list its snapshots, so only unfinished ones are shown", v.PluginID))
		all = s.getUnfinished(ctx, p, info, v, secrets)
	}

	for _, one := range all {
		out.Listed = append(out.Listed, volume.ListedSnapshot{PluginID: v.PluginID, Driver: info.Driver, Snapshot: one})
	}

	return err
}

// getUnfinished asks the plugin for each unfinished snapshot separately, because the plugin cannot
// list snapshots.
func (s *snapshotter) getUnfinished(ctx context.Context, p call.Caller, info plugin.Info, v volume.Volume, secrets call.Secrets) []call.Snapshot {
	var all []call.Snapshot
	for _, i := range s.Store.Snapshots() {
		if i.Group || i.ID == "" || i.PluginID != v.PluginID || !info.Caps.GetSnapshot {
			continue
		}
		if one, err := call.Do(ctx, p, call.GetSnapshotRequest{ID: i.ID, Secrets: secrets}); err == nil && (v.ExternalID == "" || v.ExternalID == one.SourceID) {
			all = append(all, one)
		}
	}

	return all
}

// addPending adds the unfinished snapshots to the listing. If the listing shows a snapshot as
// ready, addPending deletes the intent of this snapshot.
func (s *snapshotter) addPending(ctx context.Context, v volume.Volume, out *volume.Snapshots) {
	listed := map[string][]*volume.ListedSnapshot{} // keyed by driver and snapshot id, or by driver and group id
	for i := range out.Listed {
		one := &out.Listed[i]
		for group, id := range map[bool]string{false: one.ID, true: one.GroupID} {
			key := volume.SnapshotIntent{Driver: one.Driver, Group: group, Name: id}.Key()
			listed[key] = append(listed[key], one)
		}
	}

	names := s.snapshotNames()
	for i := range out.Listed {
		one := &out.Listed[i]
		one.Name = volume.NameOf(names, one.Driver, false, one.ID)
	}

	for _, i := range volume.OldestFirst(s.Store.Snapshots()) {
		if v.PluginID != "" && i.PluginID != v.PluginID || v.ID != "" && !slices.Contains(i.Sources, v.ExternalID) {
			continue
		}

		var shown []*volume.ListedSnapshot
		if i.ID != "" {
			shown = listed[volume.SnapshotIntent{Driver: i.Driver, Group: i.Group, Name: i.ID}.Key()]
		}
		ready := len(shown) == len(i.Sources)
		for _, one := range shown {
			if ready = ready && one.Ready; !i.Group {
				one.Name = i.Name
			}
		}

		switch {
		case ready && s.dropIntent(ctx, i) == nil:
			t := snapshotTask{s: s, intent: i}
			t.emit(volume.EventSnapshotCreated, "%s %q has id %q and is ready", t.intent.Noun(), i.Name, i.ID)
		case i.Group || len(shown) == 0:
			out.Pending = append(out.Pending, volume.PendingSnapshot{SnapshotIntent: i, Doing: s.progress.get(i.Key())})
		}
	}
}
