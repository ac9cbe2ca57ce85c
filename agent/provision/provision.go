// Package provision registers, creates, deletes and deregisters volumes. None of these operations
// needs a mount on this host. The agent stores the intent to create or delete a volume before it
// calls the plugin. After a crash, the record therefore shows which storage may exist.
package provision

import (
	"context"
	"errors"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// check refuses a spec that is invalid in every state of the volume. A volume that is already
// stored keeps its id, even if the agent no longer accepts such an id for a new volume.
func (s *Service) check(spec volume.Volume) error {
	if err := spec.Check(); err != nil {
		return err
	}
	if _, stored := s.Store.Volume(spec.ID); stored {
		return nil
	}
	if err := volume.CheckNewID("volume id", spec.ID); err != nil {
		return err
	}

	return spec.CheckLimits()
}

// Register adds an existing storage volume to the records of the agent. If the volume is already
// registered, Register applies the changed volume file to it. With dry, it only reports the change.
func (s *Service) Register(ctx context.Context, spec volume.Volume, dry bool) (volume.Record, volume.Change, error) {
	if err := s.check(spec); err != nil {
		return failed(err)
	}
	if r, ok := s.Store.Volume(spec.ID); ok {
		return s.merge(ctx, r, spec, dry)
	}
	if spec.ExternalID == "" {
		return failed(volume.Errorf(volume.ErrInvalid, "volume %q has no external_id, so there is nothing to register", spec.ID).
			WithHint("give external_id, or create the volume: volctl volume create FILE"))
	}
	if _, err := spec.Keeping(nil); err != nil {
		return failed(err)
	}

	info, err := s.plugin(ctx, spec.PluginID)
	if err != nil {
		return failed(err)
	}

	fill(&spec, info)
	if _, err := s.Secrets(spec); err != nil {
		return failed(err)
	}

	r := volume.Record{Volume: spec}
	if err := s.alone(ctx, &spec); err != nil {
		return failed(err)
	}
	if dry {
		if err := s.dry(ctx, spec); err != nil {
			return failed(err)
		}
		return r, volume.Change{Outcome: volume.Registered}, nil
	}
	if spec.Secrets, err = s.Seal.Seal(spec.ID, spec.Secrets, nil); err != nil {
		return failed(err)
	}

	err = s.Store.Update(ctx, func(tx Tx) error {
		r = volume.Record{Volume: spec}
		return s.insert(tx, r)
	})
	if err != nil {
		return failed(err)
	}

	s.say(r, "registered", "registered as %q of %s", spec.ExternalID, spec.Driver)
	s.wake(spec)
	return r, volume.Change{Outcome: volume.Registered}, nil
}

// fill sets the fields of a new record that a volume file does not contain, and the default name.
func fill(v *volume.Volume, info plugin.Info) {
	v.Driver = info.Driver
	v.RegisteredAt = time.Now().UTC()
	if v.Name == "" {
		v.Name = v.ID
	}
}

// insert adds a record. It refuses the record if the id or the storage is already registered.
func (s *Service) insert(tx Tx, r volume.Record) error {
	v := r.Volume
	if _, ok := tx.Volume(v.ID); ok {
		return volume.Errorf(volume.ErrRefused, "volume %q was registered meanwhile", v.ID)
	}
	if err := unique(tx, v); err != nil {
		return err
	}
	if err := s.lend(tx, v); err != nil {
		return err
	}

	tx.PutVolume(r)
	return nil
}

// lend gives the plugin and the secrets of v to the leftover record of the same storage. The agent
// may have failed to undo the leftovers only because the old secrets were wrong. Register, create
// and update call lend.
func (s *Service) lend(tx Tx, v volume.Volume) (err error) {
	debt, ok := tx.Leftover(v.Driver, v.ExternalID)
	if !ok || v.ExternalID == "" {
		return nil
	}

	debt.Volume.PluginID = v.PluginID
	if debt.Volume.Secrets, err = s.Seal.Move(v.Secrets, v.ID, debt.Volume.ID); err != nil {
		return err
	}

	tx.PutLeftover(debt, time.Time{})
	return nil
}

// unique refuses a storage volume that is registered under another id, and one that a plugin test
// uses.
func unique(tx Tx, v volume.Volume) error {
	if other, ok := tx.VolumeOf(v.Driver, v.ExternalID); ok && other != v.ID {
		return volume.Errorf(volume.ErrRefused, "external_id %q of driver %s is already registered as volume %q; one storage volume has one id",
			v.ExternalID, v.Driver, other).WithRemedy(remedy.Of(remedy.ShowVolume, other))
	}
	// The test undoes all its calls when it ends, and would unmount the volume under its claims.
	if plugin, ok := tx.TestOf(v.Driver, v.ExternalID); ok {
		return volume.Errorf(volume.ErrRefused, "external_id %q of driver %s is in a test of plugin %q; register it after the test has ended",
			v.ExternalID, v.Driver, plugin).WithHint("volctl events --since 10m")
	}

	return nil
}

// dry refuses a volume that a real registration would also refuse, and stores nothing.
func (s *Service) dry(ctx context.Context, v volume.Volume) error {
	err := s.Store.Update(ctx, func(tx Tx) error {
		if err := unique(tx, v); err != nil {
			return err
		}
		return errLookOnly
	})
	if errors.Is(err, errLookOnly) {
		return nil
	}

	return err
}

// reach returns the plugin of a volume and the secrets for a call to it.
func (s *Service) reach(v volume.Volume) (call.Caller, call.Secrets, error) {
	p, err := s.Plugins.Provisioner(v.PluginID)
	if err != nil {
		return nil, nil, err
	}
	secrets, err := s.Secrets(v)
	return p, secrets, err
}

// exists asks the plugin whether the volume exists and supports the capabilities in the file. It
// accepts the volume if the plugin is down or does not answer the question.
func (s *Service) exists(ctx context.Context, v volume.Volume) error {
	if view := s.Plugins.View(v.PluginID); !view.ReadyFor(call.CreateVolume) || !view.Info.HasController {
		return nil
	}

	p, secrets, err := s.reach(v)
	if err != nil {
		return err
	}

	err = call.Run(ctx, p, call.ValidateRequest{
		ExternalID: v.ExternalID, Capabilities: v.Capabilities, FSType: v.MountOptions.FSType,
		MountFlags: v.MountOptions.MountFlags, VolumeContext: v.Context, Parameters: v.Parameters, Secrets: secrets,
	})

	var ce *volume.CallError
	switch {
	case !errors.As(err, &ce):
		return err
	case ce.Code == volume.CodeNotFound:
		return volume.Errorf(volume.ErrNotFound, "plugin %q has no volume %q: %s", v.PluginID, v.ExternalID, ce.Message)
	case ce.Code == volume.CodeInvalidArgument || ce.Code == volume.CodeUnverified:
		return volume.Errorf(volume.ErrRefused, "plugin %q does not offer volume %q with these capabilities: %s", v.PluginID, v.ExternalID, ce.Message)
	}

	return nil
}
