package plugins

import (
	"context"

	"github.com/volagent/volagent/agent/provision"
	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/volmgr/call"
)

// Provisioner returns the calls that provision makes to a plugin.
func (p Set) Provisioner(id string) (provision.Plugin, error) { return provisioner{p, id}, nil }

// provisioner sends each call to the right part of the plugin.
type provisioner struct {
	plugins Set
	id      string
}

// CreateVolume asks a controller for storage.
func (p provisioner) CreateVolume(ctx context.Context, r call.CreateVolumeRequest) (call.CreateVolumeResult, error) {
	c, err := p.plugins.Controller(p.id, r.Name)
	if err != nil {
		return call.CreateVolumeResult{}, err
	}

	made, err := c.CreateVolume(ctx, r)
	c.Done(err)
	return made, err
}

// DeleteVolume asks a controller to destroy storage.
func (p provisioner) DeleteVolume(ctx context.Context, r call.DeleteVolumeRequest) error {
	c, err := p.plugins.Controller(p.id, r.ExternalID)
	if err != nil {
		return err
	}

	err = c.DeleteVolume(ctx, r)
	c.Done(err)
	return err
}

// ValidateCapabilities asks a controller about storage. It does not report to Done, because a call
// that changes nothing can have no late effect.
func (p provisioner) ValidateCapabilities(ctx context.Context, r call.ValidateRequest) error {
	c, err := p.plugins.Controller(p.id, "")
	if err != nil {
		return err
	}
	return c.ValidateCapabilities(ctx, r)
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
