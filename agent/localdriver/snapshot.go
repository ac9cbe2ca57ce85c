package localdriver

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/jobs"
	"github.com/volagent/volagent/agent/localdriver/request"
	"github.com/volagent/volagent/agent/localdriver/store"
)

// CreateSnapshot copies a volume as it is at one moment. If the copy takes too long for one call,
// CreateSnapshot returns ABORTED with the progress, and the caller repeats the call. A returned
// snapshot is always complete.
func (d *driver) CreateSnapshot(ctx context.Context, req *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	name, source := req.GetName(), req.GetSourceVolumeId()
	if err := request.CheckName("snapshot", name); err != nil {
		return nil, err
	}
	if source == "" {
		return nil, csierr.Invalidf("the source volume id is empty")
	}

	perFile, err := request.ParseConsistency(req.GetParameters())
	if err != nil {
		return nil, err
	}
	if have, ok := d.store.SnapshotByName(name); ok {
		return answerSnapshot(have, source)
	}
	if _, err := d.volume(source); err != nil {
		return nil, err
	}

	err = d.jobs.Do(ctx, "snapshot/"+name, fmt.Sprint(source, perFile), "snapshot \""+name+"\" of volume \""+source+"\"",
		func(ctx context.Context, p *jobs.Progress) error {
			return d.makeSnapshot(ctx, name, source, perFile, p)
		})
	if err != nil {
		return nil, err
	}

	have, ok := d.store.SnapshotByName(name)
	if !ok {
		return nil, csierr.Errorf(codes.Aborted, "snapshot %q was deleted as soon as it was made", name)
	}

	return answerSnapshot(have, source)
}

// answerSnapshot returns the snapshot if it was made from the requested source volume.
func answerSnapshot(s store.Snapshot, source string) (*csi.CreateSnapshotResponse, error) {
	if s.Source != source {
		return nil, csierr.Existsf("snapshot %q exists, of volume %q and not of %q", s.Name, s.Source, source)
	}
	return &csi.CreateSnapshotResponse{Snapshot: s.CSI()}, nil
}

func (d *driver) makeSnapshot(ctx context.Context, name, source string, perFile bool, p *jobs.Progress) error {
	if _, ok := d.store.SnapshotByName(name); ok {
		return nil // another call has made the snapshot since the earlier check
	}

	c, err := d.hold([]string{source}, perFile)
	if err != nil {
		return err
	}
	defer c.release()

	snap := store.NewSnapshot(name, "", c.volumes()[0])
	err = d.store.AddSnapshot(ctx, snap, func(dir string) error { return c.take(ctx, []string{dir}, p) })
	if err == nil {
		d.log.Info("took a snapshot", "snapshot_id", snap.ID, "name", name, "volume_id", source)
	}

	return err
}

// DeleteSnapshot removes a snapshot and its data. Volumes made from it are not affected. A snapshot
// in a group can only be deleted with its group.
func (d *driver) DeleteSnapshot(ctx context.Context, req *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	id := req.GetSnapshotId()
	if id == "" {
		return nil, csierr.Invalidf("the snapshot id is empty")
	}
	if !store.ValidIDOf(store.SnapPrefix, id) {
		return &csi.DeleteSnapshotResponse{}, nil
	}

	unlock, err := d.locks.Lock(id)
	if err != nil {
		return nil, err
	}
	defer unlock()

	switch snap, err := d.store.GetSnapshot(id); {
	// Another call may have deleted the snapshot but not yet removed its data.
	case errors.Is(err, store.ErrNoSnapshot):
	case err != nil:
		return nil, err
	case snap.Group != "":
		return nil, csierr.Invalidf("snapshot %q is part of group snapshot %q and can only be deleted with it", id, snap.Group)
	default:
		if err := d.store.TrashSnapshot(snap); err != nil {
			return nil, err
		}
		d.log.Info("deleted a snapshot", "snapshot_id", id, "name", snap.Name)
	}

	if err := d.store.Purge(ctx, id); err != nil {
		return nil, err
	}

	return &csi.DeleteSnapshotResponse{}, nil
}

// ListSnapshots returns one page of snapshots, in the order of their ids. If no snapshot matches
// the filter, the page is empty.
func (d *driver) ListSnapshots(_ context.Context, req *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	if req.GetMaxEntries() < 0 {
		return nil, csierr.Invalidf("max_entries is %d", req.GetMaxEntries())
	}

	after := req.GetStartingToken()
	if after != "" && !store.ValidIDOf(store.SnapPrefix, after) {
		return nil, csierr.Errorf(codes.Aborted, "the starting token %q is not one of ours; start again without", after)
	}

	all := slices.DeleteFunc(d.store.ListSnapshots(), func(s store.Snapshot) bool {
		return s.ID <= after || req.GetSnapshotId() != "" && s.ID != req.GetSnapshotId() ||
			req.GetSourceVolumeId() != "" && s.Source != req.GetSourceVolumeId()
	})
	resp := &csi.ListSnapshotsResponse{}
	if n := int(req.GetMaxEntries()); n > 0 && n < len(all) {
		all = all[:n]
		resp.NextToken = all[n-1].ID
	}

	for _, s := range all {
		resp.Entries = append(resp.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: s.CSI()})
	}

	return resp, nil
}

// GetSnapshot returns the same data about one snapshot that ListSnapshots returns about all
// snapshots.
func (d *driver) GetSnapshot(_ context.Context, req *csi.GetSnapshotRequest) (*csi.GetSnapshotResponse, error) {
	snap, err := d.snapshot(req.GetSnapshotId())
	if err != nil {
		return nil, err
	}
	return &csi.GetSnapshotResponse{Snapshot: snap.CSI()}, nil
}

// snapshot finds the snapshot with the id that a request names.
func (d *driver) snapshot(id string) (store.Snapshot, error) {
	if id == "" {
		return store.Snapshot{}, csierr.Invalidf("the snapshot id is empty")
	}
	snap, err := d.store.GetSnapshot(id)
	if errors.Is(err, store.ErrNoSnapshot) {
		return snap, csierr.Errorf(codes.NotFound, "no snapshot %q", id)
	}
	return snap, err
}
