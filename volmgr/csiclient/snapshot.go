package csiclient

import (
	"context"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/volagent/volagent/volmgr/volume"
)

// CreateSnapshot creates a snapshot. If an earlier call with the same name created it,
// CreateSnapshot returns that snapshot.
func (c *Client) CreateSnapshot(ctx context.Context, r volume.SnapshotRequest) (volume.Snapshot, error) {
	resp, err := invoke(ctx, c, volume.CreateSnapshot, c.opts.ControllerTimeout, r.Secrets, c.controller.CreateSnapshot,
		&csi.CreateSnapshotRequest{SourceVolumeId: r.SourceID, Name: r.Name, Parameters: r.Parameters, Secrets: reveal(r.Secrets)})
	if err != nil {
		return volume.Snapshot{}, err
	}
	return named(volume.CreateSnapshot, resp.GetSnapshot())
}

// DeleteSnapshot destroys a snapshot. It succeeds if the snapshot no longer exists.
func (c *Client) DeleteSnapshot(ctx context.Context, r volume.SnapshotRef) error {
	_, err := invoke(ctx, c, volume.DeleteSnapshot, c.opts.ControllerTimeout, r.Secrets, c.controller.DeleteSnapshot,
		&csi.DeleteSnapshotRequest{SnapshotId: r.ID, Secrets: reveal(r.Secrets)})
	return err
}

// GetSnapshot asks the plugin for one snapshot.
func (c *Client) GetSnapshot(ctx context.Context, r volume.SnapshotRef) (volume.Snapshot, error) {
	resp, err := invoke(ctx, c, volume.GetSnapshot, c.opts.ControllerTimeout, r.Secrets, c.controller.GetSnapshot,
		&csi.GetSnapshotRequest{SnapshotId: r.ID, Secrets: reveal(r.Secrets)})
	if err != nil {
		return volume.Snapshot{}, err
	}
	return named(volume.GetSnapshot, resp.GetSnapshot())
}

// ListSnapshots returns one page of the plugin's snapshots.
func (c *Client) ListSnapshots(ctx context.Context, r volume.ListSnapshotsRequest) (volume.SnapshotPage, error) {
	resp, err := invoke(ctx, c, volume.ListSnapshots, c.opts.ControllerTimeout, r.Secrets, c.controller.ListSnapshots, &csi.ListSnapshotsRequest{
		MaxEntries: r.MaxEntries, StartingToken: r.Token, SourceVolumeId: r.SourceID, SnapshotId: r.ID, Secrets: reveal(r.Secrets),
	})
	page := volume.SnapshotPage{Next: resp.GetNextToken()}
	for _, e := range resp.GetEntries() {
		page.Entries = append(page.Entries, snapshot(e.GetSnapshot()))
	}
	return page, err
}

// CreateGroupSnapshot creates snapshots of several volumes at the same moment. If an earlier call
// with the same name created the group, CreateGroupSnapshot returns that group.
func (c *Client) CreateGroupSnapshot(ctx context.Context, r volume.GroupSnapshotRequest) (volume.GroupSnapshot, error) {
	resp, err := invoke(ctx, c, volume.CreateGroupSnapshot, c.opts.ControllerTimeout, r.Secrets, c.groups.CreateVolumeGroupSnapshot,
		&csi.CreateVolumeGroupSnapshotRequest{Name: r.Name, SourceVolumeIds: r.SourceIDs, Parameters: r.Parameters, Secrets: reveal(r.Secrets)})
	if err != nil {
		return volume.GroupSnapshot{}, err
	}
	return group(volume.CreateGroupSnapshot, resp.GetGroupSnapshot())
}

// DeleteGroupSnapshot destroys a group snapshot and all its members.
func (c *Client) DeleteGroupSnapshot(ctx context.Context, r volume.GroupSnapshotRef) error {
	_, err := invoke(ctx, c, volume.DeleteGroupSnapshot, c.opts.ControllerTimeout, r.Secrets, c.groups.DeleteVolumeGroupSnapshot,
		&csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: r.ID, SnapshotIds: r.SnapshotIDs, Secrets: reveal(r.Secrets)})
	return err
}

// GetGroupSnapshot asks the plugin for one group snapshot.
func (c *Client) GetGroupSnapshot(ctx context.Context, r volume.GroupSnapshotRef) (volume.GroupSnapshot, error) {
	resp, err := invoke(ctx, c, volume.GetGroupSnapshot, c.opts.ControllerTimeout, r.Secrets, c.groups.GetVolumeGroupSnapshot,
		&csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: r.ID, SnapshotIds: r.SnapshotIDs, Secrets: reveal(r.Secrets)})
	if err != nil {
		return volume.GroupSnapshot{}, err
	}
	return group(volume.GetGroupSnapshot, resp.GetGroupSnapshot())
}

// named converts a snapshot. It rejects one without an id, because the agent could never delete it.
func named(step volume.Kind, s *csi.Snapshot) (volume.Snapshot, error) {
	if s.GetSnapshotId() == "" {
		return volume.Snapshot{}, refused(step, volume.CodeUnverified, volume.RetryBackoff, "the plugin answered OK without a snapshot id")
	}
	return snapshot(s), nil
}

func snapshot(s *csi.Snapshot) volume.Snapshot {
	return volume.Snapshot{
		ID: s.GetSnapshotId(), SourceID: s.GetSourceVolumeId(), GroupID: s.GetGroupSnapshotId(),
		Size: s.GetSizeBytes(), Created: moment(s.GetCreationTime()), Ready: s.GetReadyToUse(),
	}
}

func group(step volume.Kind, g *csi.VolumeGroupSnapshot) (volume.GroupSnapshot, error) {
	if g.GetGroupSnapshotId() == "" {
		return volume.GroupSnapshot{}, refused(step, volume.CodeUnverified, volume.RetryBackoff, "the plugin answered OK without a group snapshot id")
	}

	out := volume.GroupSnapshot{ID: g.GetGroupSnapshotId(), Created: moment(g.GetCreationTime()), Ready: g.GetReadyToUse()}
	for _, s := range g.GetSnapshots() {
		one, err := named(step, s)
		if err != nil {
			return volume.GroupSnapshot{}, err
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
