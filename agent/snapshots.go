package agent

import (
	"context"

	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// begun returns the volumes of unfinished snapshots.
func begun(all []volume.SnapshotIntent) (ids []string) {
	for _, s := range all {
		ids = append(ids, s.Volumes...)
	}
	return ids
}

// IDs returns the ids of all plugins, sorted.
func (p pluginSet) IDs() []string {
	var ids []string
	for _, st := range p.Statuses() {
		ids = append(ids, st.ID)
	}
	return ids
}

// asController makes one call to a controller. If a call with a subject is abandoned, the next call
// about that subject goes to the same controller. A call without a subject changes nothing, so it
// can have no late effect.
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

// CreateSnapshot asks a controller for a snapshot.
func (p provisioner) CreateSnapshot(ctx context.Context, r call.SnapshotRequest) (call.Snapshot, error) {
	return asController(p, r.SourceID, r, func(c supervisor.Controller, r call.SnapshotRequest) (call.Snapshot, error) {
		return c.CreateSnapshot(ctx, r)
	})
}

// DeleteSnapshot asks a controller to destroy a snapshot.
func (p provisioner) DeleteSnapshot(ctx context.Context, r call.SnapshotRef) error {
	_, err := asController(p, r.ID, r, func(c supervisor.Controller, r call.SnapshotRef) (struct{}, error) {
		return struct{}{}, c.DeleteSnapshot(ctx, r)
	})
	return err
}

// GetSnapshot asks a controller about a snapshot.
func (p provisioner) GetSnapshot(ctx context.Context, r call.SnapshotRef) (call.Snapshot, error) {
	return asController(p, "", r, func(c supervisor.Controller, r call.SnapshotRef) (call.Snapshot, error) {
		return c.GetSnapshot(ctx, r)
	})
}

// ListSnapshots asks a controller for a page of its snapshots.
func (p provisioner) ListSnapshots(ctx context.Context, r call.ListSnapshotsRequest) (call.SnapshotPage, error) {
	return asController(p, "", r, func(c supervisor.Controller, r call.ListSnapshotsRequest) (call.SnapshotPage, error) {
		return c.ListSnapshots(ctx, r)
	})
}

// CreateGroupSnapshot asks a controller for snapshots of several volumes.
func (p provisioner) CreateGroupSnapshot(ctx context.Context, r call.GroupSnapshotRequest) (call.GroupSnapshot, error) {
	return asController(p, r.SourceIDs[0], r, func(c supervisor.Controller, r call.GroupSnapshotRequest) (call.GroupSnapshot, error) {
		return c.CreateGroupSnapshot(ctx, r)
	})
}

// DeleteGroupSnapshot asks a controller to destroy a group of snapshots.
func (p provisioner) DeleteGroupSnapshot(ctx context.Context, r call.GroupSnapshotRef) error {
	_, err := asController(p, r.ID, r, func(c supervisor.Controller, r call.GroupSnapshotRef) (struct{}, error) {
		return struct{}{}, c.DeleteGroupSnapshot(ctx, r)
	})
	return err
}

// GetGroupSnapshot asks a controller about a group of snapshots.
func (p provisioner) GetGroupSnapshot(ctx context.Context, r call.GroupSnapshotRef) (call.GroupSnapshot, error) {
	return asController(p, "", r, func(c supervisor.Controller, r call.GroupSnapshotRef) (call.GroupSnapshot, error) {
		return c.GetGroupSnapshot(ctx, r)
	})
}
