package provision

import (
	"context"
	"errors"
	"fmt"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// remover deletes and deregisters volumes.
type remover struct {
	*common
	reports *reportCache
}

// Delete destroys the data of a volume. If this agent did not create the volume, the caller must
// repeat the id in confirm.
func (s *remover) Delete(ctx context.Context, id, confirm string) error {
	if v, shared, err := s.shared(ctx, id); err != nil || shared {
		if err != nil {
			return err
		}
		return s.deleteShared(ctx, v, confirm)
	}

	r, ok := s.Store.Volume(id)
	if !ok {
		return noVolume(id)
	}
	if !r.Volume.Created && confirm != id {
		return volume.Errorf(volume.ErrRefused, "this agent did not create volume %q; to destroy its data, repeat the id", id).
			WithHint("%s", suggest.Command("volctl volume delete %s -y --confirm=%s", id, id))
	}

	info, err := s.awaitPlugin(ctx, r.Volume.PluginID)
	if err != nil {
		return err
	}
	if !info.Caps.CreateDelete {
		return volume.Errorf(volume.ErrRefused, "plugin %q cannot delete volumes", r.Volume.PluginID).
			WithHint("%s", suggest.Command("volctl volume deregister %s", id))
	}
	// If a secret cannot be read, fail before the agent stores an intent.
	if _, err := s.Secrets(r.Volume); err != nil {
		return err
	}

	err = s.Queue.Call(ctx, id, call.DeleteVolume, func() error { return s.delete(ctx, id) })
	if err != nil {
		s.emit(r, volume.EventDeleteFailed, "%v", err)
		return err
	}

	s.Queue.Forget(id)
	s.reports.forget(id)
	s.emit(r, volume.EventDeleted, "deleted %q", r.Volume.ExternalID)
	return nil
}

// delete stores the intent to delete the volume, calls the plugin, and deletes the record.
func (s *remover) delete(ctx context.Context, id string) error {
	var v volume.Volume
	resumed := false
	err := s.Store.Update(ctx, func(tx Tx) error {
		r, ok := tx.Volume(id)
		if !ok {
			return noVolume(id)
		}

		resumed = r.Volume.Provision == volume.Deleting
		if err := volume.Unused(r); err != nil {
			return err
		}
		if err := noLeftover(tx, r.Volume); err != nil {
			return err
		}
		if r.Volume.Provision == volume.Provisioning {
			return volume.Errorf(volume.ErrRefused, "the create of volume %q has not finished, so its external id is unknown", id).
				WithHint("repeat the create first, or discard the record: %s", suggest.Command("volctl volume deregister %s --force", id))
		}

		r.Volume.Provision = volume.Deleting
		v = r.Volume
		tx.PutVolume(r)
		return nil
	})
	if err != nil {
		return err
	}
	if err := s.callDelete(ctx, v); err != nil {
		return s.deleteFailed(ctx, v, err, resumed)
	}

	for _, left := range s.unguard(id, func(volume.Record) error { return nil }) {
		s.emit(volume.Record{Volume: v}, volume.EventWarning, "%s", left)
	}
	var gone volume.Record
	err = s.Store.Update(context.WithoutCancel(ctx), func(tx Tx) error {
		if r, ok := tx.Volume(id); ok && r.Same(volume.Record{Volume: v}) {
			gone = r
			tx.DeleteVolume(id)
		}

		return nil
	})
	if err == nil {
		s.unguardLast(gone)
	}

	return err
}

func (s *remover) callDelete(ctx context.Context, v volume.Volume) error {
	p, secrets, err := s.provisioner(v)
	if err != nil {
		return err
	}
	return call.Run(ctx, p, call.DeleteVolumeRequest{ExternalID: v.ExternalID, Secrets: secrets})
}

// deleteFailed returns the error for a failed delete. It withdraws the intent to delete if the
// plugin certainly deleted nothing. If resumed is set, an earlier delete may have succeeded even
// though the plugin refuses this call.
func (s *remover) deleteFailed(ctx context.Context, v volume.Volume, cause error, resumed bool) error {
	var ce *volume.CallError
	if resumed || errors.As(cause, &ce) && ce.Uncertain() {
		return withCall(call.DeleteVolume, cause, &volume.Error{
			Kind:    kindOf(cause),
			Message: fmt.Sprintf("%v; it is unknown whether the data of volume %q still exists", cause, v.ID),
			Hint:    "repeat the delete: " + suggest.Command("volctl volume delete %s -y", v.ID),
		})
	}

	err := s.Store.Update(context.WithoutCancel(ctx), func(tx Tx) error {
		if r, ok := tx.Volume(v.ID); ok && r.Same(volume.Record{Volume: v}) && r.Volume.Provision == volume.Deleting {
			r.Volume.Provision = volume.Provisioned
			tx.PutVolume(r)
		}

		return nil
	})

	return errors.Join(refusal(v.PluginID, cause), err)
}
