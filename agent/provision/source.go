package provision

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// source returns the plugin's id of the snapshot or volume from which the plugin fills a new
// volume. A volume file may give a snapshot by its name, and a clone source by its volume id on
// this host. Requests that the plugin cannot fulfil are refused here, before the agent stores an
// intent. For a resumed create, source does not check again whether this host reaches the clone
// source. The plugin has already received that request.
func (s *Service) source(ctx context.Context, v volume.Volume, info plugin.Info, resumed bool) (snapshot, clone string, err error) {
	if err := creates(v, info); err != nil {
		return "", "", err
	}
	if _, err := s.Secrets(v); err != nil { // fail before the agent stores an intent
		return "", "", err
	}

	switch {
	case v.SnapshotID != "" && !info.Caps.Snapshot:
		return "", "", volume.Errorf(volume.ErrRefused, "plugin %q cannot make snapshots, so it cannot create volume %q from a snapshot", v.PluginID, v.ID).
			WithRemedy(remedy.Of(remedy.ShowPlugin, v.PluginID))
	case v.SnapshotID != "":
		if v.SnapshotID, err = s.sourceSnapshot(ctx, v, info); err != nil {
			return "", "", err
		}
		return v.SnapshotID, "", s.unripe(ctx, v, info)
	case v.CloneID == "":
		return "", "", nil
	case !info.Caps.Clone:
		return "", "", volume.Errorf(volume.ErrRefused, "plugin %q cannot clone volumes", v.PluginID).WithRemedy(remedy.Of(remedy.ShowPlugin, v.PluginID))
	}

	clone, err = s.cloneSource(ctx, v, info, resumed)
	return "", clone, err
}

// cloneSource returns the external id of the volume that the plugin clones.
func (s *Service) cloneSource(ctx context.Context, v volume.Volume, info plugin.Info, resumed bool) (clone string, err error) {
	r, ok := s.Store.Volume(v.CloneID)
	if !ok { // CloneID is an external id
		if r, ok, err = s.registered(ctx, info.Driver, v.CloneID); !ok || err != nil {
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

// registered returns the record of the volume with the given external id.
func (s *Service) registered(ctx context.Context, driver, externalID string) (r volume.Record, ok bool, err error) {
	err = s.Store.Update(ctx, func(tx Tx) error {
		var id string
		if id, ok = tx.VolumeOf(driver, externalID); ok {
			r, ok = tx.Volume(id)
		}
		return errLookOnly
	})
	if errors.Is(err, errLookOnly) {
		err = nil
	}

	return r, ok, err
}

// unripe refuses a snapshot that this agent has requested and that is not ready yet. The CSI spec
// forbids creating a volume from such a snapshot (Snapshot.ready_to_use).
func (s *Service) unripe(ctx context.Context, v volume.Volume, info plugin.Info) error {
	for _, i := range s.Store.Snapshots() {
		if i.Group || i.ID == "" || i.ID != v.SnapshotID || i.Driver != info.Driver {
			continue
		}

		t := &taking{s: s, intent: i, caps: info.Caps}
		got, err := t.look(ctx, call.GroupSnapshot{ID: i.ID})
		if err == nil && got.Ready {
			return t.note(ctx, got)
		}

		return volume.Errorf(volume.ErrRefused, "snapshot %q of volume %q is not ready yet", i.ID, i.Volumes[0]).
			WithHint("%s", "to wait for it: "+t.again())
	}

	return nil
}

// sourceless returns the error for a snapshot or clone source that the plugin does not know. It
// returns nil if the call failed for another reason.
func sourceless(v volume.Volume, ce *volume.CallError) *volume.Error {
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

// creating makes the call that creates a volume. While the plugin reports that it is still working,
// for example on a copy, creating repeats the call under the same name. Calls for other volumes do
// not wait for this call.
func (s *Service) creating(ctx context.Context, v volume.Volume, wait time.Duration, made func() error) error {
	for try := 1; ; try++ {
		err := s.Queue.Call(ctx, v.ID, call.CreateVolume, made)
		var ce *volume.CallError
		copies := v.SnapshotID != "" || v.CloneID != ""
		if wait == 0 || !errors.As(err, &ce) || !atIt(ce) || ce.Code != volume.CodeAborted && !copies {
			return err
		}
		if s.pause(ctx, pauses.After(try)) == nil {
			continue
		}
		if ctx.Err() != nil && !errors.Is(context.Cause(ctx), errLate) {
			return ctx.Err() // the caller has cancelled the request
		}

		words := &volume.Error{Kind: volume.ErrTimeout, Message: fmt.Sprintf("after %s: %v", wait, err)}
		if e := (*volume.Error)(nil); errors.As(err, &e) {
			words.Hint, words.Remedy = e.Hint, e.Remedy
		}

		return unclear(call.CreateVolume, err, words)
	}
}
