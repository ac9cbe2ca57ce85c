package provision

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// registrar registers existing storage as volumes, and applies changed volume files to registered
// volumes.
type registrar struct {
	*common
	modifier *modifier
	expander *expander
}

// Register adds an existing storage volume to the records of the agent. If the volume is already
// registered, Register applies the changed volume file to it. With dry, it only reports the change.
func (s *registrar) Register(ctx context.Context, spec volume.Volume, dry bool) (volume.Record, volume.Change, error) {
	if spec.Class != "" {
		return failed(volume.Errorf(volume.ErrInvalid, "volume %q has a class, but a class is only for new volumes", spec.ID).
			WithHint("create it (volctl volume create FILE), or leave the class out"))
	}
	if err := s.checkSpec(spec); err != nil {
		return failed(err)
	}

	spec = s.scoped(spec)
	if err := s.checkScope(spec); err != nil {
		return failed(err)
	}
	had, ok, err := s.lookSpec(ctx, spec)
	if err != nil {
		return failed(err)
	}
	if ok {
		return s.mergeShared(ctx, had, spec, dry)
	}
	if r, ok := s.Store.Volume(spec.ID); ok && !r.Volume.Shared {
		return s.merge(ctx, r, spec, dry)
	}
	if spec.ExternalID == "" {
		return failed(volume.Errorf(volume.ErrInvalid, "volume %q has no external_id, so there is nothing to register", spec.ID).
			WithHint("give external_id, or create the volume: volctl volume create FILE"))
	}
	if _, err := spec.Keeping(nil); err != nil {
		return failed(err)
	}
	if spec.Shared {
		if err := s.checkShareable(spec); err != nil {
			return failed(err)
		}
	}

	info, err := s.pluginInfo(ctx, spec.PluginID)
	if err != nil {
		return failed(err)
	}

	fill(&spec, info)
	if _, err := s.Secrets(spec); err != nil {
		return failed(err)
	}

	r := volume.Record{Volume: spec}
	// Wait until no other call for the same storage runs, because the agent may be undoing
	// leftovers of this storage.
	err = s.askExclusively(ctx, volume.LeftoverKey(spec.Driver, spec.ExternalID), func() error {
		if err := s.askDetails(ctx, &spec); err != nil {
			return err
		}
		return s.checkExists(ctx, spec)
	})
	if err != nil {
		return failed(err)
	}
	if dry {
		err := s.read(ctx, func(tx Tx) error { return unique(tx, spec) })
		if err == nil && !spec.Shared {
			err = s.checkOwn(ctx, spec)
		}
		if err != nil {
			return failed(err)
		}
		return r, volume.Change{Outcome: volume.Registered}, nil
	}
	if spec.Shared {
		return s.define(ctx, spec)
	}
	return s.store(ctx, spec)
}

// store registers a volume of this host.
func (s *registrar) store(ctx context.Context, spec volume.Volume) (r volume.Record, ch volume.Change, err error) {
	defer s.beginning.begin(spec)()
	if err := s.checkOwn(ctx, spec); err != nil {
		return failed(err)
	}
	if spec.Secrets, err = s.Seal.Seal(spec.ID, spec.Secrets, nil); err != nil {
		return failed(err)
	}

	err = s.Store.Update(ctx, func(tx Tx) (err error) {
		if _, ok := tx.Volume(spec.ID); ok {
			return volume.Errorf(volume.ErrRefused, "volume %q was registered meanwhile", spec.ID)
		}

		r, err = s.putVolume(tx, spec)
		return err
	})
	if err != nil {
		return failed(err)
	}

	s.emit(r, volume.EventRegistered, "registered as %q of %s", spec.ExternalID, spec.Driver)
	s.wakeQueue(spec)
	return r, volume.Change{Outcome: volume.Registered}, nil
}

// askDetails asks the plugin about a volume before the volume is registered. It sets the size of v,
// and the topologies from which hosts can reach the volume. It sets the volume context only if the
// volume file has none. If the plugin is down or does not answer, askDetails leaves v unchanged.
func (s *registrar) askDetails(ctx context.Context, v *volume.Volume) error {
	if view := s.Plugins.View(v.PluginID); !view.ReadyFor(call.ControllerGetVolume) || !view.Info.Caps.Get {
		return nil
	}

	p, err := s.Plugins.Reporter(v.PluginID)
	if err != nil {
		return err
	}

	got, err := call.Do(ctx, p, call.GetVolumeRequest{ExternalID: v.ExternalID})
	var ce *volume.CallError
	switch {
	case errors.As(err, &ce) && ce.Code == volume.CodeNotFound:
		return volume.Errorf(volume.ErrNotFound, "plugin %q has no volume %q: %s", v.PluginID, v.ExternalID, ce.Message)
	case err != nil || got.ExternalID != v.ExternalID:
		return ctx.Err()
	}

	v.Capacity, v.Topologies = max(got.Capacity, 0), got.Topologies
	if len(v.Context) == 0 {
		v.Context = got.Context
	}

	return nil
}

// merge applies a volume file to a registered volume.
func (s *registrar) merge(ctx context.Context, r volume.Record, spec volume.Volume, dry bool) (volume.Record, volume.Change, error) {
	if r.Volume.Provision == volume.Deleting {
		return failed(unfinishedDelete(spec.ID))
	}

	spec.Secrets = s.Seal.Same(spec.ID, spec.Secrets, r.Volume.Secrets)
	now, fields, err := volume.Merge(r, spec)
	if err != nil {
		return failed(err)
	}

	wanted := r.Volume.Mutations(spec.Mutable)
	if len(wanted) > 0 {
		if err := s.modifier.checkModify(ctx, r.Volume); err != nil {
			return failed(err)
		}
		fields = append(fields, r.Volume.MutableChange(wanted))
	}

	if len(fields) == 0 {
		if !dry && len(spec.Secrets) > 0 {
			// The references are the same, but the secret values may have changed.
			s.wakeQueue(r.Volume)
		}
		return r, volume.Change{Outcome: volume.Unchanged}, nil
	}

	if !maps.Equal(now.Secrets, r.Volume.Secrets) {
		if _, err := s.Secrets(now); err != nil {
			return failed(err)
		}
	}

	if err := s.checkOffered(ctx, r.Volume, now); err != nil {
		return failed(err)
	}

	kept, size := r.Volume.Grown(now)
	info, err := s.expander.growthInfo(ctx, r.Volume.PluginID, size, dry)
	if err != nil {
		return failed(err)
	}
	if dry {
		r, _, err = s.grow(r, now, info)
		r.Volume = now
		return r, volume.Change{Outcome: volume.Updated, Fields: fields}, err
	}

	if len(wanted) > 0 {
		// Modify the volume before anything else is stored, because the plugin may refuse the
		// change. The call uses the secrets from the volume file.
		if r, err = s.modifier.modify(ctx, kept, wanted); err != nil {
			return failed(err)
		}
	}

	if spec.Secrets, err = s.Seal.Seal(spec.ID, spec.Secrets, r.Volume.Secrets); err != nil {
		return failed(err)
	}

	return s.storeMerged(ctx, spec, fields, info)
}

// checkOffered asks the plugin whether it supports changed capabilities and mount options. It
// returns nil if the plugin is down, or if another call for the volume takes too long.
func (s *registrar) checkOffered(ctx context.Context, was, now volume.Volume) error {
	sameModes := slices.Equal(was.Capabilities, now.Capabilities)
	sameOptions := reflect.DeepEqual(was.MountOptions, now.MountOptions)
	if sameModes && sameOptions || s.Halt != "" {
		return nil
	}

	return s.askExclusively(ctx, now.ID, func() error { return s.checkExists(ctx, now) })
}

// mergeWait limits how long a registration waits for an expansion that it starts.
const mergeWait = 80 * time.Second

// storeMerged stores the changes of a volume file in the record of the volume. If the size changes,
// storeMerged waits for the expansion.
func (s *registrar) storeMerged(ctx context.Context, spec volume.Volume, fields []string, info plugin.Info) (r volume.Record, ch volume.Change, err error) {
	changed, size := false, int64(0)
	err = s.Store.Update(ctx, func(tx Tx) (err error) {
		old, ok := tx.Volume(spec.ID)
		if !ok {
			return volume.Errorf(volume.ErrNotFound, "volume %q was deregistered meanwhile", spec.ID)
		}

		r = old
		now, laid, err := volume.Merge(old, spec)
		if changed = len(laid) > 0; err != nil || !changed {
			return err
		}
		if r, size, err = s.grow(old, now, info); err != nil {
			return err
		}

		tx.PutVolume(r)
		if maps.Equal(old.Volume.Secrets, r.Volume.Secrets) {
			return nil
		}

		return s.updateLeftover(tx, r.Volume)
	})
	if err != nil {
		return failed(err)
	}

	if changed {
		s.emit(r, volume.EventUpdated, "%s", strings.Join(fields, "; "))
		s.wakeQueue(r.Volume)
	}

	if size > 0 {
		r, err = s.expander.awaitExpanded(ctx, spec.ID, size, mergeWait)
	}

	return r, volume.Change{Outcome: volume.Updated, Fields: fields}, err
}

// grow replaces the volume of a record by the merged volume. If the volume file asks for a larger
// size, grow stores the intent to expand. The record gets the new size when the plugin confirms it.
func (s *registrar) grow(r volume.Record, merged volume.Volume, info plugin.Info) (volume.Record, int64, error) {
	merged, size := r.Volume.Grown(merged)
	r.Volume = merged
	if size == 0 {
		return r, 0, nil
	}

	r, _, err := volume.Expand(r, size, info, s.Owners)
	return r, size, err
}
