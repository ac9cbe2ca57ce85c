package provision

import (
	"context"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// sourceFinder finds the snapshots and volumes from which plugins fill new volumes.
type sourceFinder struct {
	*common
	snapshots *snapshotter
}

// checkCanCreate refuses a volume that needs a capability which the plugin does not have.
func checkCanCreate(v volume.Volume, info plugin.Info) error {
	switch {
	case !info.Caps.CreateDelete:
		return volume.Errorf(volume.ErrRefused, "plugin %q cannot create volumes", v.PluginID).
			WithHint("create it with the storage system's own tools, then: volctl volume register FILE")
	case len(v.Mutable) > 0 && !info.Caps.Modify:
		return volume.Errorf(volume.ErrRefused, "plugin %q cannot modify volumes, so volume %q cannot have mutable_parameters", v.PluginID, v.ID).
			WithHint("give them as parameters, if the plugin accepts them there")
	case v.Topology.Given() && !info.Caps.Topology:
		return volume.Errorf(volume.ErrRefused, "plugin %q does not support topology, so volume %q cannot have a topology_request", v.PluginID, v.ID).
			WithRemedy(remedy.Of(remedy.ShowPlugin, v.PluginID))
	}

	return nil
}

// find returns the plugin's id of the snapshot or volume whose data the plugin copies into a new
// volume. A volume file may refer to a snapshot by its name, and to a clone source by its volume id
// on this host. The agent calls find before it stores an intent, so that find can refuse requests
// that the plugin cannot fulfil. A resumed create does not check whether this host reaches the
// clone source, because the plugin has already received the request.
func (s *sourceFinder) find(ctx context.Context, v volume.Volume, info plugin.Info, resumed bool) (snapshot, clone string, err error) {
	if err := checkCanCreate(v, info); err != nil {
		return "", "", err
	}
	// If a secret cannot be read, fail before the agent stores an intent.
	if err := s.checkSecrets(v); err != nil {
		return "", "", err
	}

	if v.SnapshotID != "" {
		if err := s.checkControllerHere(ctx, v.PluginID, "find a snapshot"); err != nil {
			return "", "", err
		}
	}

	switch {
	case v.SnapshotID != "" && !info.Caps.Snapshot:
		return "", "", volume.Errorf(volume.ErrRefused, "plugin %q cannot make snapshots, so it cannot create volume %q from a snapshot", v.PluginID, v.ID).
			WithRemedy(remedy.Of(remedy.ShowPlugin, v.PluginID))
	case v.SnapshotID != "":
		if v.SnapshotID, err = s.sourceSnapshot(ctx, v, info); err != nil {
			return "", "", err
		}
		return v.SnapshotID, "", s.checkReady(ctx, v, info)
	case v.CloneID == "":
		return "", "", nil
	case !info.Caps.Clone:
		return "", "", volume.Errorf(volume.ErrRefused, "plugin %q cannot clone volumes", v.PluginID).WithRemedy(remedy.Of(remedy.ShowPlugin, v.PluginID))
	}

	clone, err = s.cloneSource(ctx, v, info, resumed)
	return "", clone, err
}

// sourceSnapshot returns the plugin's id of the snapshot whose data the plugin copies into the
// volume v.
func (s *sourceFinder) sourceSnapshot(ctx context.Context, v volume.Volume, info plugin.Info) (string, error) {
	p, secrets, err := s.provisioner(v)
	if err != nil {
		return "", err
	}
	l := lookup{s.snapshots, p, secrets, info}
	return l.snapshotID(ctx, volume.SnapshotAt{PluginID: v.PluginID, ID: v.SnapshotID})
}

// checkReady refuses a snapshot that this agent has requested and that is not ready yet. The CSI
// spec forbids creating a volume from such a snapshot (Snapshot.ready_to_use).
func (s *sourceFinder) checkReady(ctx context.Context, v volume.Volume, info plugin.Info) error {
	for _, i := range s.Store.Snapshots() {
		if i.Group || i.ID == "" || i.ID != v.SnapshotID || i.Driver != info.Driver {
			continue
		}

		t := &snapshotTask{s: s.snapshots, intent: i, caps: info.Caps}
		got, err := t.queryState(ctx, call.GroupSnapshot{ID: i.ID})
		if err == nil && got.Ready {
			return t.storeID(ctx, got)
		}

		return volume.Errorf(volume.ErrRefused, "snapshot %q of volume %q is not ready yet", i.ID, i.Volumes[0]).
			WithHint("%s", "to wait for it: "+t.repeatCommand())
	}

	return nil
}

// cloneSource returns the external id of the volume that the plugin clones.
func (s *sourceFinder) cloneSource(ctx context.Context, v volume.Volume, info plugin.Info, resumed bool) (clone string, err error) {
	r, ok := s.Store.Volume(v.CloneID)
	if !ok && s.Cluster != nil {
		if r, ok, err = s.sharedRecord(ctx, v.CloneID); err != nil && v.Shared {
			return "", err
		}
	}
	if !ok { // no volume on this host has this id, so CloneID must be an external id
		if r, ok, err = s.findRegistered(ctx, info.Driver, v.CloneID); !ok || err != nil {
			return v.CloneID, err
		}
	}

	switch of := r.Volume; {
	case of.ID == v.ID:
		return "", volume.Errorf(volume.ErrInvalid, "volume %q cannot be a clone of itself", v.ID)
	case of.Driver != info.Driver:
		return "", volume.Errorf(volume.ErrRefused, "volume %q belongs to plugin %q, but plugin %q can clone only its own volumes", of.ID, of.PluginID, v.PluginID)
	case of.Provision != volume.Provisioned:
		return "", volume.Errorf(volume.ErrRefused, "cannot clone volume %q: %s has not finished", of.ID, of.Provision).
			WithRemedy(remedy.Of(remedy.ShowVolume, of.ID))
	case !resumed && !v.Topology.Given():
		return of.ExternalID, of.CheckCloneSource(info)
	default:
		return of.ExternalID, nil
	}
}

// findRegistered returns the record of the volume with the given external id.
func (s *sourceFinder) findRegistered(ctx context.Context, driver, externalID string) (r volume.Record, ok bool, err error) {
	err = s.read(ctx, func(tx Tx) error {
		var id string
		if id, ok = tx.VolumeOf(driver, externalID); ok {
			r, ok = tx.Volume(id)
		}
		return nil
	})

	return r, ok, err
}

// missingSource returns the error for a snapshot or clone source that the plugin does not have. It
// returns nil if the call failed for another reason.
func missingSource(v volume.Volume, ce *volume.CallError) *volume.Error {
	switch {
	case ce == nil || ce.Code != volume.CodeNotFound:
		return nil
	case v.SnapshotID != "":
		return volume.Errorf(volume.ErrNotFound, "plugin %q has no snapshot %q: %s", v.PluginID, v.SnapshotID, ce.Message).
			WithRemedy(remedy.Of(remedy.ListSnapshots, v.PluginID))
	case v.CloneID != "":
		return volume.Errorf(volume.ErrNotFound, "plugin %q has no volume %q to clone: %s", v.PluginID, v.CloneID, ce.Message).
			WithHint("volctl volume list")
	}

	return nil
}
