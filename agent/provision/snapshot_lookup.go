package provision

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// lookup asks a plugin about the snapshots that a request names.
type lookup struct {
	s       *snapshotter
	caller  call.Caller
	secrets call.Secrets
	info    plugin.Info
}

// newLookup checks the reference to a snapshot, and that the plugin supports snapshots.
func (s *snapshotter) newLookup(ctx context.Context, ref volume.SnapshotAt) (*lookup, error) {
	if err := volume.CheckPluginID(ref.PluginID); err != nil {
		return nil, err
	}
	if ref.ID == "" {
		return nil, volume.Errorf(volume.ErrInvalid, "the id of the %s is missing", ref.Noun())
	}

	info, err := s.awaitPlugin(ctx, ref.PluginID)
	if err == nil {
		err = s.checkCanSnapshot(ctx, ref.PluginID, ref.Group, info.Caps)
	}
	if err != nil {
		return nil, err
	}

	p, secrets, err := s.provisioner(volume.Volume{PluginID: ref.PluginID, Secrets: ref.Secrets})
	return &lookup{s, p, secrets, info}, err
}

// resolveNames returns ref with each name replaced by the id that the plugin uses.
func (l *lookup) resolveNames(ctx context.Context, ref volume.SnapshotAt) (volume.SnapshotAt, error) {
	id, err := l.snapshotID(ctx, ref)
	if err != nil {
		return ref, err
	}

	ref.ID = id
	ref.Members = slices.Clone(ref.Members)
	for i, member := range ref.Members {
		at := volume.SnapshotAt{PluginID: ref.PluginID, ID: member}
		if ref.Members[i], err = l.snapshotID(ctx, at); err != nil {
			return ref, err
		}
	}

	return ref, nil
}

// snapshotID returns the id that the plugin uses for a snapshot or group. The user gives an id or a
// name. If the text is both an id and a name, snapshotID treats it as an id. If the text is
// neither, snapshotID returns the text unchanged, because the plugin may know a snapshot with this
// id.
func (l *lookup) snapshotID(ctx context.Context, ref volume.SnapshotAt) (string, error) {
	names := l.s.snapshotNames()
	ids := volume.SnapshotIDs(names, l.info.Driver, ref.Group, ref.ID)
	known := volume.NameOf(names, l.info.Driver, ref.Group, ref.ID) != ""
	if len(ids) == 0 || known {
		return ref.ID, nil
	}
	if has, err := l.hasID(ctx, ref); has || err != nil {
		return ref.ID, err
	}
	if len(ids) > 1 {
		quoted := make([]string, len(ids))
		for i, id := range ids {
			quoted[i] = strconv.Quote(id)
		}
		return "", volume.Errorf(volume.ErrInvalid, "%q is the name of %d %ss of plugin %q, with the ids %s",
			ref.ID, len(ids), ref.Noun(), ref.PluginID, strings.Join(quoted, ", ")).WithHint("give the id")
	}

	return ids[0], nil
}

// hasID asks the plugin whether it has a snapshot with the id in ref. It returns false if the
// plugin has no call to answer the question.
func (l *lookup) hasID(ctx context.Context, ref volume.SnapshotAt) (bool, error) {
	switch {
	case ref.Group:
		// A user cannot choose a group id, and GetVolumeGroupSnapshot needs the ids of the members.
		return false, nil
	case l.info.Caps.GetSnapshot:
		_, err := call.Do(ctx, l.caller, call.GetSnapshotRequest{ID: ref.ID, Secrets: l.secrets})
		return err == nil, ctx.Err()
	case l.info.Caps.ListSnapshots:
		page, err := call.Do(ctx, l.caller, call.ListSnapshotsRequest{ID: ref.ID, Secrets: l.secrets})
		found := slices.ContainsFunc(page.Entries, func(one call.Snapshot) bool { return one.ID == ref.ID })
		return err == nil && found, ctx.Err()
	default:
		return false, nil
	}
}

// groupMembers returns the ids of the snapshots in a group. Some plugins need these ids in calls
// about the group. If the plugin can list snapshots, groupMembers takes the ids from the list.
// Otherwise it asks the plugin for the group, without the ids.
func (l *lookup) groupMembers(ctx context.Context, ref volume.SnapshotAt) ([]string, error) {
	if l.info.Caps.ListSnapshots {
		all, err := allSnapshots(ctx, ref.PluginID, l.caller, call.ListSnapshotsRequest{Secrets: l.secrets})
		if err != nil {
			return nil, err
		}

		var ids []string
		for _, one := range all {
			if one.GroupID == ref.ID {
				ids = append(ids, one.ID)
			}
		}

		if len(ids) > 0 {
			return ids, nil
		}
	}

	got, err := call.Do(ctx, l.caller, call.GetGroupSnapshotRequest{ID: ref.ID, Secrets: l.secrets})
	var ce *volume.CallError
	switch {
	case errors.As(err, &ce) && ce.Code == volume.CodeInvalidArgument:
		return nil, withCall(call.GetGroupSnapshot, err, volume.Errorf(volume.ErrInvalid, "plugin %q needs the snapshots of the group: %s", ref.PluginID, ce.Message).
			WithHint("give their ids after the id of the group"))
	case errors.As(err, &ce) && ce.Code == volume.CodeNotFound:
		return nil, noSnapshot(ref)
	}

	ids := make([]string, 0, len(got.Snapshots))
	for _, one := range got.Snapshots {
		ids = append(ids, one.ID)
	}

	return ids, err
}

// checkExists returns ErrNotFound for a snapshot that the plugin does not have. In CSI, the delete
// of an unknown id succeeds. Without this check, a misspelt id would appear to be deleted.
func (l *lookup) checkExists(ctx context.Context, ref volume.SnapshotAt) error {
	_, err := call.Do(ctx, l.caller, call.GetSnapshotRequest{ID: ref.ID, Secrets: l.secrets})
	var ce *volume.CallError
	if errors.As(err, &ce) && ce.Code == volume.CodeNotFound {
		return noSnapshot(ref)
	}
	return ctx.Err() // ignore all other errors, because the delete call will report them
}

// noSnapshot returns the error for a snapshot that the plugin does not have.
func noSnapshot(ref volume.SnapshotAt) error {
	return volume.Errorf(volume.ErrNotFound, "plugin %q has no %s %q", ref.PluginID, ref.Noun(), ref.ID).
		WithHint("%s", suggest.Command("volctl volume snapshot list --plugin %s -o wide", ref.PluginID))
}
