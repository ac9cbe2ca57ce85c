package agent

import (
	"context"

	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/volmgr/volume"
)

// begun are the volumes of snapshots that have not been seen to end.
func begun(all []volume.SnapshotIntent) (ids []string) {
	for _, s := range all {
		ids = append(ids, s.Volumes...)
	}
	return ids
}

// IDs are all plugins, sorted.
func (p pluginSet) IDs() []string {
	var ids []string
	for _, st := range p.Statuses() {
		ids = append(ids, st.ID)
	}
	return ids
}

// asController makes one call to a controller. One that is given up keeps the controller
// for whatever is called next about the same; with no subject it changes nothing, so
// nothing of it can come late.
func asController[Q, A any](p provisioner, subject string, req Q, call func(supervisor.Controller, Q) (A, error)) (a A, err error) {
	c, err := p.plugins.Controller(p.id, subject)
	if err != nil {
		return a, err
	}
	a, err = call(c, req)
	if subject != "" {
		c.Done(err)
	}
	return a, err
}

// CreateSnapshot has a controller make a snapshot.
func (p provisioner) CreateSnapshot(ctx context.Context, r volume.SnapshotRequest) (volume.Snapshot, error) {
	return asController(p, r.SourceID, r, func(c supervisor.Controller, r volume.SnapshotRequest) (volume.Snapshot, error) {
		return c.CreateSnapshot(ctx, r)
	})
}

// DeleteSnapshot has a controller destroy one.
func (p provisioner) DeleteSnapshot(ctx context.Context, r volume.SnapshotRef) error {
	_, err := asController(p, r.ID, r, func(c supervisor.Controller, r volume.SnapshotRef) (struct{}, error) {
		return struct{}{}, c.DeleteSnapshot(ctx, r)
	})
	return err
}

// GetSnapshot asks a controller for one.
func (p provisioner) GetSnapshot(ctx context.Context, r volume.SnapshotRef) (volume.Snapshot, error) {
	return asController(p, "", r, func(c supervisor.Controller, r volume.SnapshotRef) (volume.Snapshot, error) {
		return c.GetSnapshot(ctx, r)
	})
}

// ListSnapshots asks a controller for a page of them.
func (p provisioner) ListSnapshots(ctx context.Context, r volume.ListSnapshotsRequest) (volume.SnapshotPage, error) {
	return asController(p, "", r, func(c supervisor.Controller, r volume.ListSnapshotsRequest) (volume.SnapshotPage, error) {
		return c.ListSnapshots(ctx, r)
	})
}

// CreateGroupSnapshot has a controller make snapshots of several volumes.
func (p provisioner) CreateGroupSnapshot(ctx context.Context, r volume.GroupSnapshotRequest) (volume.GroupSnapshot, error) {
	return asController(p, r.SourceIDs[0], r, func(c supervisor.Controller, r volume.GroupSnapshotRequest) (volume.GroupSnapshot, error) {
		return c.CreateGroupSnapshot(ctx, r)
	})
}

// DeleteGroupSnapshot has a controller destroy them.
func (p provisioner) DeleteGroupSnapshot(ctx context.Context, r volume.GroupSnapshotRef) error {
	_, err := asController(p, r.ID, r, func(c supervisor.Controller, r volume.GroupSnapshotRef) (struct{}, error) {
		return struct{}{}, c.DeleteGroupSnapshot(ctx, r)
	})
	return err
}

// GetGroupSnapshot asks a controller for one.
func (p provisioner) GetGroupSnapshot(ctx context.Context, r volume.GroupSnapshotRef) (volume.GroupSnapshot, error) {
	return asController(p, "", r, func(c supervisor.Controller, r volume.GroupSnapshotRef) (volume.GroupSnapshot, error) {
		return c.GetGroupSnapshot(ctx, r)
	})
}
