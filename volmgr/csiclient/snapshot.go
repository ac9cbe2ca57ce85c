package csiclient

import (
	"context"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// CreateSnapshot creates a snapshot. If an earlier call with the same name has created the
// snapshot, CreateSnapshot returns that snapshot.
func (c controllerCalls) CreateSnapshot(ctx context.Context, r call.SnapshotRequest) (call.Snapshot, error) {
	resp, err := invoke(ctx, c.Client, call.CreateSnapshot, r.Secrets, c.controller.CreateSnapshot,
		&csi.CreateSnapshotRequest{SourceVolumeId: r.SourceID, Name: r.Name, Parameters: r.Parameters, Secrets: reveal(r.Secrets)})
	if err != nil {
		return call.Snapshot{}, err
	}
	return named(call.CreateSnapshot, resp.GetSnapshot())
}

// DeleteSnapshot destroys a snapshot. It succeeds if the snapshot no longer exists.
func (c controllerCalls) DeleteSnapshot(ctx context.Context, r call.DeleteSnapshotRequest) error {
	_, err := invoke(ctx, c.Client, call.DeleteSnapshot, r.Secrets, c.controller.DeleteSnapshot,
		&csi.DeleteSnapshotRequest{SnapshotId: r.ID, Secrets: reveal(r.Secrets)})
	return err
}

// GetSnapshot asks the plugin for one snapshot.
func (c controllerCalls) GetSnapshot(ctx context.Context, r call.GetSnapshotRequest) (call.Snapshot, error) {
	resp, err := invoke(ctx, c.Client, call.GetSnapshot, r.Secrets, c.controller.GetSnapshot,
		&csi.GetSnapshotRequest{SnapshotId: r.ID, Secrets: reveal(r.Secrets)})
	if err != nil {
		return call.Snapshot{}, err
	}
	return named(call.GetSnapshot, resp.GetSnapshot())
}

// ListSnapshots returns one page of the plugin's snapshots.
func (c controllerCalls) ListSnapshots(ctx context.Context, r call.ListSnapshotsRequest) (call.SnapshotPage, error) {
	resp, err := invoke(ctx, c.Client, call.ListSnapshots, r.Secrets, c.controller.ListSnapshots, &csi.ListSnapshotsRequest{
		MaxEntries: r.MaxEntries, StartingToken: r.Token, SourceVolumeId: r.SourceID, SnapshotId: r.ID, Secrets: reveal(r.Secrets),
	})
	page := call.SnapshotPage{Next: resp.GetNextToken()}
	for _, e := range resp.GetEntries() {
		page.Entries = append(page.Entries, snapshot(e.GetSnapshot()))
	}
	return page, err
}

// CreateGroupSnapshot creates snapshots of several volumes at the same moment. If an earlier call
// with the same name has created the group, CreateGroupSnapshot returns that group.
func (c controllerCalls) CreateGroupSnapshot(ctx context.Context, r call.GroupSnapshotRequest) (call.GroupSnapshot, error) {
	resp, err := invoke(ctx, c.Client, call.CreateGroupSnapshot, r.Secrets, c.groups.CreateVolumeGroupSnapshot,
		&csi.CreateVolumeGroupSnapshotRequest{Name: r.Name, SourceVolumeIds: r.SourceIDs, Parameters: r.Parameters, Secrets: reveal(r.Secrets)})
	if err != nil {
		return call.GroupSnapshot{}, err
	}
	return group(call.CreateGroupSnapshot, resp.GetGroupSnapshot())
}

// DeleteGroupSnapshot destroys a group snapshot and all its members.
func (c controllerCalls) DeleteGroupSnapshot(ctx context.Context, r call.DeleteGroupSnapshotRequest) error {
	_, err := invoke(ctx, c.Client, call.DeleteGroupSnapshot, r.Secrets, c.groups.DeleteVolumeGroupSnapshot,
		&csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: r.ID, SnapshotIds: r.SnapshotIDs, Secrets: reveal(r.Secrets)})
	return err
}

// GetGroupSnapshot asks the plugin for one group snapshot.
func (c controllerCalls) GetGroupSnapshot(ctx context.Context, r call.GetGroupSnapshotRequest) (call.GroupSnapshot, error) {
	resp, err := invoke(ctx, c.Client, call.GetGroupSnapshot, r.Secrets, c.groups.GetVolumeGroupSnapshot,
		&csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: r.ID, SnapshotIds: r.SnapshotIDs, Secrets: reveal(r.Secrets)})
	if err != nil {
		return call.GroupSnapshot{}, err
	}
	return group(call.GetGroupSnapshot, resp.GetGroupSnapshot())
}

// named converts a snapshot. It rejects a snapshot without an id, because the agent could never
// delete such a snapshot.
func named(step call.Method, s *csi.Snapshot) (call.Snapshot, error) {
	if s.GetSnapshotId() == "" {
		return call.Snapshot{}, refused(step, volume.CodeUnverified, volume.RetryBackoff, "the plugin answered OK without a snapshot id")
	}
	return snapshot(s), nil
}

func snapshot(s *csi.Snapshot) call.Snapshot {
	return call.Snapshot{
		ID: s.GetSnapshotId(), SourceID: s.GetSourceVolumeId(), GroupID: s.GetGroupSnapshotId(),
		Size: s.GetSizeBytes(), Created: moment(s.GetCreationTime()), Ready: s.GetReadyToUse(),
	}
}

func group(step call.Method, g *csi.VolumeGroupSnapshot) (call.GroupSnapshot, error) {
	if g.GetGroupSnapshotId() == "" {
		return call.GroupSnapshot{}, refused(step, volume.CodeUnverified, volume.RetryBackoff, "the plugin answered OK without a group snapshot id")
	}

	out := call.GroupSnapshot{ID: g.GetGroupSnapshotId(), Created: moment(g.GetCreationTime()), Ready: g.GetReadyToUse()}
	for _, s := range g.GetSnapshots() {
		one, err := named(step, s)
		if err != nil {
			return call.GroupSnapshot{}, err
		}

		out.Snapshots = append(out.Snapshots, one)
	}

	return out, nil
}

// moment converts a timestamp, and returns the zero time if the plugin sent none.
func moment(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}
