package provision

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// snapshotID returns the plugin's id of a snapshot or group that the user gives by id or by name.
// If the text is both an id and a name, snapshotID treats it as an id. If the text is neither,
// snapshotID returns the text unchanged, because the plugin may know it.
func (s *Service) snapshotID(ctx context.Context, p call.Caller, info plugin.Info, ref volume.SnapshotAt, secrets call.Secrets) (string, error) {
	names := s.snapshotNames()
	ids := volume.SnapshotIDs(names, info.Driver, ref.Group, ref.ID)
	known := volume.NameOf(names, info.Driver, ref.Group, ref.ID) != ""
	if len(ids) == 0 || known {
		return ref.ID, nil
	}
	if has, err := hasID(ctx, p, info, ref, secrets); has || err != nil {
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

// snapshotNames returns the names of all snapshots with a known id. It includes unfinished
// snapshots.
func (s *Service) snapshotNames() []volume.SnapshotName {
	names := s.Store.SnapshotNames()
	for _, i := range s.Store.Snapshots() {
		if i.ID != "" {
			names = append(names, i.Named(i.ID))
		}
	}

	return names
}

// hasID asks the plugin whether a snapshot with this id exists. It returns false if the plugin
// cannot answer the question.
func hasID(ctx context.Context, p call.Caller, info plugin.Info, ref volume.SnapshotAt, secrets call.Secrets) (bool, error) {
	switch {
	case ref.Group:
		return false, nil // the plugin chooses group ids, and GetVolumeGroupSnapshot needs the members
	case info.Caps.GetSnapshot:
		_, err := call.Do(ctx, p, call.GetSnapshotRequest{ID: ref.ID, Secrets: secrets})
		return err == nil, ctx.Err()
	case info.Caps.ListSnapshots:
		page, err := call.Do(ctx, p, call.ListSnapshotsRequest{ID: ref.ID, Secrets: secrets})
		found := slices.ContainsFunc(page.Entries, func(one call.Snapshot) bool { return one.ID == ref.ID })
		return err == nil && found, ctx.Err()
	default:
		return false, nil
	}
}

// named returns the reference with each name replaced by the plugin's id.
func (s *Service) named(ctx context.Context, p call.Caller, info plugin.Info, ref volume.SnapshotAt, secrets call.Secrets) (volume.SnapshotAt, error) {
	id, err := s.snapshotID(ctx, p, info, ref, secrets)
	if err != nil {
		return ref, err
	}

	ref.ID = id
	ref.Members = slices.Clone(ref.Members)
	for i, member := range ref.Members {
		at := volume.SnapshotAt{PluginID: ref.PluginID, ID: member}
		if ref.Members[i], err = s.snapshotID(ctx, p, info, at, secrets); err != nil {
			return ref, err
		}
	}

	return ref, nil
}

// forgetNames deletes the stored names of a deleted snapshot.
func (s *Service) forgetNames(ctx context.Context, driver string, group bool, id string) error {
	gone := func(n volume.SnapshotName) bool { return n.Driver == driver && n.Group == group && n.ID == id }
	if !slices.ContainsFunc(s.Store.SnapshotNames(), gone) {
		return nil
	}

	return s.Store.Update(context.WithoutCancel(ctx), func(tx Tx) error {
		for _, n := range tx.SnapshotNames() {
			if gone(n) {
				tx.DeleteSnapshotName(n.Key())
			}
		}

		return nil
	})
}

// sourceSnapshot returns the plugin's id of the snapshot from which the plugin fills the volume v.
func (s *Service) sourceSnapshot(ctx context.Context, v volume.Volume, info plugin.Info) (string, error) {
	p, secrets, err := s.reach(v)
	if err != nil {
		return "", err
	}
	return s.snapshotID(ctx, p, info, volume.SnapshotAt{PluginID: v.PluginID, ID: v.SnapshotID}, secrets)
}
