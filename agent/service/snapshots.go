package service

import (
	"context"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// Snapshotter makes, lists and deletes snapshots. If wait is 0, a method calls the plugin only once.
type Snapshotter interface {
	Snapshot(ctx context.Context, ask volume.SnapshotAsk, wait time.Duration) (volume.MadeSnapshot, error)
	Snapshots(ctx context.Context, ask volume.SnapshotsAsk) (volume.Snapshots, error)
	DeleteSnapshot(ctx context.Context, at volume.SnapshotAt, wait time.Duration) error
	ForgetSnapshot(ctx context.Context, at volume.SnapshotAt) (left []string, err error)
	GroupSnapshot(ctx context.Context, at volume.SnapshotAt) (call.GroupSnapshot, error)
}

// Snapshots answers requests about snapshots and groups of snapshots.
type Snapshots struct {
	view
	do Snapshotter
}

// Create makes a snapshot of a volume.
func (s Snapshots) Create(ctx context.Context, by Caller, req api.SnapshotRequest, wait time.Duration) (api.Snapshot, error) {
	made, err := s.create(ctx, by, volume.SnapshotAsk{Volumes: []string{req.Volume}, Name: req.Name, Parameters: req.Parameters}, req.Secrets, wait)
	if err != nil {
		return api.Snapshot{}, err
	}
	return toMade(made, s.registered()), nil
}

// CreateGroup makes snapshots of several volumes at the same moment.
func (s Snapshots) CreateGroup(ctx context.Context, by Caller, req api.GroupSnapshotRequest, wait time.Duration) (api.GroupSnapshot, error) {
	made, err := s.create(ctx, by, volume.SnapshotAsk{Volumes: req.Volumes, Group: true, Name: req.Name, Parameters: req.Parameters}, req.Secrets, wait)
	if err != nil {
		return api.GroupSnapshot{}, err
	}
	return toMadeGroup(made, s.registered()), nil
}

func (s Snapshots) create(ctx context.Context, by Caller, ask volume.SnapshotAsk, secrets map[string]api.Secret, wait time.Duration) (made volume.MadeSnapshot, err error) {
	if err := by.CheckWrite(); err != nil {
		return made, err
	}
	if ask.Secrets, err = references(secrets); err != nil {
		return made, asAPI(err)
	}

	made, err = s.do.Snapshot(ctx, ask, wait)
	if err != nil && len(ask.Volumes) > 0 {
		return made, s.explain(by, err, s.pluginOf(ask.Volumes[0]), ask.Volumes...)
	}
	return made, asAPI(err)
}

// SnapshotFilter selects the snapshots of a list. Empty fields match all snapshots.
type SnapshotFilter struct {
	PluginID, VolumeID string
	Pending            bool // selects only the snapshots whose completion the agent has not seen

	// Secrets are references to secrets for the plugin. They need write permission, because the
	// agent reads the files and variables that the references name.
	Secrets map[string]api.Secret
}

// List returns the snapshots that plugins report, and the snapshots that are not complete yet.
func (s Snapshots) List(ctx context.Context, by Caller, f SnapshotFilter) (api.Snapshots, error) {
	secrets, err := readSecrets(by, f.Secrets)
	if err != nil {
		return api.Snapshots{}, err
	}

	got, err := s.do.Snapshots(ctx, volume.SnapshotsAsk{PluginID: f.PluginID, VolumeID: f.VolumeID, Pending: f.Pending, Secrets: secrets})
	if err != nil {
		if f.PluginID == "" {
			f.PluginID = s.pluginOf(f.VolumeID)
		}
		return api.Snapshots{}, s.explain(by, err, f.PluginID)
	}

	known := s.registered()
	out := api.Snapshots{Snapshots: []api.Snapshot{}, Groups: []api.GroupSnapshot{}, Notes: got.Notes}
	for _, one := range got.Listed {
		out.Snapshots = append(out.Snapshots, toSnapshot(one, known))
	}

	for _, p := range got.Pending {
		if p.Group {
			out.Groups = append(out.Groups, toPendingGroup(p))
		} else {
			out.Snapshots = append(out.Snapshots, toPending(p))
		}
	}

	return out, nil
}

// SnapshotID names a snapshot or a group of a plugin.
type SnapshotID struct {
	PluginID, ID string
	Group        bool
}

// at returns the domain's form of an id.
func (id SnapshotID) at(members []string, secrets map[string]call.SecretRef) volume.SnapshotAt {
	return volume.SnapshotAt{PluginID: id.PluginID, ID: id.ID, Group: id.Group, Members: members, Secrets: secrets}
}

// Group returns a group of snapshots.
func (s Snapshots) Group(ctx context.Context, by Caller, id SnapshotID, ref api.SnapshotRef) (api.GroupSnapshot, error) {
	secrets, err := readSecrets(by, ref.Secrets)
	if err != nil {
		return api.GroupSnapshot{}, err
	}

	got, err := s.do.GroupSnapshot(ctx, id.at(ref.Snapshots, secrets))
	if err != nil {
		return api.GroupSnapshot{}, s.explain(by, err, id.PluginID)
	}

	made := volume.MadeSnapshot{GroupSnapshot: got, Intent: volume.SnapshotIntent{
		PluginID: id.PluginID, Driver: s.plugins.View(id.PluginID).Info.Driver}}
	return toMadeGroup(made, s.registered()), nil
}

// Delete destroys a snapshot, or a group with its snapshots.
func (s Snapshots) Delete(ctx context.Context, by Caller, id SnapshotID, ref api.SnapshotRef, wait time.Duration) (api.Done, error) {
	if err := by.CheckWrite(); err != nil {
		return api.Done{}, err
	}
	secrets, err := references(ref.Secrets)
	if err != nil {
		return api.Done{}, asAPI(err)
	}
	return api.Done{}, s.explain(by, s.do.DeleteSnapshot(ctx, id.at(ref.Snapshots, secrets), wait), id.PluginID)
}

// Forget makes the agent forget a snapshot that is not complete.
func (s Snapshots) Forget(ctx context.Context, by Caller, id SnapshotID) (api.Done, error) {
	if err := by.CheckWrite(); err != nil {
		return api.Done{}, err
	}
	left, err := s.do.ForgetSnapshot(ctx, id.at(nil, nil))
	return api.Done{Left: left}, asAPI(err)
}
