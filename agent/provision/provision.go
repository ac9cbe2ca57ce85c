// Package provision registers, creates, deletes and deregisters volumes. None of these operations
// needs a mount on this host. The agent stores the intent to create or delete a volume before it
// calls the plugin. After a crash, the record therefore shows which storage may exist.
package provision

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// Plugin makes the CSI calls for volumes and snapshots. All its errors are of type
// *volume.CallError.
type Plugin interface {
	CreateVolume(context.Context, call.CreateVolumeRequest) (call.CreateVolumeResult, error)
	DeleteVolume(context.Context, call.DeleteVolumeRequest) error
	ValidateCapabilities(context.Context, call.ValidateRequest) error
	Snapshotter
}

// Tx makes one atomic change to the store: either the whole change reaches the disk, or nothing
// does.
type Tx interface {
	Volume(id string) (volume.Record, bool)
	PutVolume(volume.Record)
	DeleteVolume(id string)
	VolumeOf(driver, external string) (string, bool)

	// TestOf returns the plugin whose running test uses this storage volume.
	TestOf(driver, external string) (pluginID string, ok bool)

	// Leftovers returns the leftover records. The store has one such record for each forced
	// deregister that left something to undo.
	Leftovers() []volume.Record
	Leftover(driver, external string) (volume.Record, bool)
	PutLeftover(r volume.Record, since time.Time)
	DeleteLeftover(driver, external string)
	SnapshotTx
}

// Store reads and changes the stored volume records and snapshot intents.
type Store interface {
	Volume(id string) (volume.Record, bool)

	// Snapshots returns the stored intents of snapshots that the agent has not yet seen finished.
	Snapshots() []volume.SnapshotIntent

	// SnapshotNames returns the names of the snapshots whose id at the plugin is known.
	SnapshotNames() []volume.SnapshotName

	Update(ctx context.Context, fn func(Tx) error) error
}

// Guards controls the guards of own directories. A guarded directory refuses writes while no volume
// is mounted on it.
type Guards interface {
	// Unguard makes the directory dir, which the record of volume id names, writable again. It
	// leaves the directory guarded if the record of another volume also names it. It fails while
	// something is mounted on the directory.
	Unguard(dir volume.GuardedDir, id string) error
}

// Queue runs the calls for a volume one at a time, and unmounts volumes that have no claim.
type Queue interface {
	// Exclusive runs fn while no other call runs for the volume or for its storage. If id is the
	// key of a leftover record, Exclusive excludes only the calls for that storage.
	Exclusive(ctx context.Context, id string, fn func() error) error
	// Change does the same as Exclusive, for a call that changes the storage.
	Change(ctx context.Context, id string, fn func() error) error

	// Call does the same as Exclusive, for a create or a delete. The status of the volume shows the
	// step.
	Call(ctx context.Context, id string, step call.Method, fn func() error) error
	Wake(id string)
	Changed(id string) <-chan struct{}

	// Attempt returns the current step of a volume, or nil if the volume has no step.
	Attempt(id, alloc string) *volume.Attempt
	Forget(id string)
}

// Plugins finds plugins by id and reports their state.
type Plugins interface {
	View(pluginID string) volume.PluginView

	// IDs returns the ids of all plugins, sorted.
	IDs() []string

	// Await waits until the plugin is ready. Otherwise it returns an ErrPluginUnavailable.
	Await(ctx context.Context, pluginID string) error

	Provisioner(pluginID string) (Plugin, error)
	Storage(pluginID string) (Storage, error)
	Reporter(pluginID string) (Reporter, error)
}

// Seal encrypts the secret values that a volume file contains before the agent stores them.
type Seal interface {
	// Seal returns the secret references of the volume, with every literal value encrypted. It
	// keeps those values in had that are encrypted already.
	Seal(id string, refs, had map[string]call.SecretRef) (map[string]call.SecretRef, error)
	// Same replaces each literal in refs by the sealed value in had, if both have the same value.
	// It seals nothing. Literals that remain in its result still need sealing.
	Same(id string, refs, had map[string]call.SecretRef) map[string]call.SecretRef
	// Equal compares the literals in refs with the sealed values in had, including values that an
	// older key sealed. It replaces each literal that has the same value by the sealed value. It
	// seals nothing.
	Equal(id string, refs, had map[string]call.SecretRef) map[string]call.SecretRef
	// Move re-encrypts sealed values of the volume from for the volume to.
	Move(refs map[string]call.SecretRef, from, to string) (map[string]call.SecretRef, error)
}

// Service registers, creates, changes, snapshots and deletes volumes.
type Service struct {
	Store   Store
	Queue   Queue
	Plugins Plugins

	// Secrets reads the values of all secrets of a volume just before a call. For a call that
	// concerns no single volume, the volume in the argument has no id.
	Secrets func(volume.Volume) (call.Secrets, error)

	Seal   Seal
	Events func(...volume.Event)

	// Owners reports which owners of claims have ended. Nil means that no owner has ended.
	Owners volume.Owners

	// Guards removes the guards of own directories. Nil means that this agent guards no directory.
	Guards Guards

	// Halt is the reason why the agent calls no plugin. It is empty in normal operation.
	Halt string

	// Pause waits for d or until ctx ends. If it is nil, the service waits with a timer.
	Pause func(ctx context.Context, d time.Duration) error

	reports reports
	doing   doing
}

// awaitPlugin limits how long a request waits for a plugin that is starting.
const awaitPlugin = 30 * time.Second

// plugin checks that the plugin is configured, and returns its name, version and capabilities. If
// the plugin is down, plugin returns the values from an earlier start.
func (s *Service) plugin(ctx context.Context, id string) (volume.PluginInfo, error) {
	if s.Halt != "" {
		return volume.PluginInfo{}, volume.Errorf(volume.ErrRefused, "cannot call plugin %q: %s", id, s.Halt)
	}

	v := s.Plugins.View(id)
	if !v.Known {
		return volume.PluginInfo{}, volume.Errorf(volume.ErrNotFound, "no plugin %q", id).WithHint("volctl plugin list")
	}
	if v.Info.Driver != "" {
		return v.Info, nil
	}

	return s.ready(ctx, id)
}

// ready waits until the plugin is ready, and returns its name, version and capabilities.
func (s *Service) ready(ctx context.Context, id string) (volume.PluginInfo, error) {
	if s.Halt != "" {
		return volume.PluginInfo{}, volume.Errorf(volume.ErrRefused, "cannot call plugin %q: %s", id, s.Halt)
	}
	if !s.Plugins.View(id).Known {
		return volume.PluginInfo{}, volume.Errorf(volume.ErrNotFound, "no plugin %q", id).WithHint("volctl plugin list")
	}

	ctx, cancel := context.WithTimeout(ctx, awaitPlugin)
	defer cancel()

	if err := s.Plugins.Await(ctx, id); err != nil {
		return volume.PluginInfo{}, err
	}

	return s.Plugins.View(id).Info, nil
}

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
func fill(v *volume.Volume, info volume.PluginInfo) {
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

// aloneWithin limits how long a registration waits for another call for the same storage. After
// this time, the registration continues without asking the plugin.
const aloneWithin = 5 * time.Second

// alone runs learn and exists while no other call for the same storage runs. A call that undoes
// leftovers of this storage may be running. If that call hangs, alone skips both checks.
func (s *Service) alone(ctx context.Context, v *volume.Volume) error {
	wait, cancel := context.WithTimeout(ctx, aloneWithin)
	defer cancel()

	var asked error
	err := s.Queue.Exclusive(wait, volume.LeftoverKey(v.Driver, v.ExternalID), func() error {
		if asked = s.learn(ctx, v); asked == nil {
			asked = s.exists(ctx, *v)
		}
		return nil
	})
	if err != nil {
		return ctx.Err() // nil if only the wait timed out
	}

	return asked
}

// reach returns the plugin of a volume and the secrets for a call to it.
func (s *Service) reach(v volume.Volume) (Plugin, call.Secrets, error) {
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

	err = p.ValidateCapabilities(ctx, call.ValidateRequest{
		ExternalID: v.ExternalID, Capabilities: v.Capabilities, FSType: v.MountOptions.FSType,
		MountFlags: v.MountOptions.MountFlags, VolumeContext: v.Context, Parameters: v.Parameters, Secrets: secrets,
	})

	var ce *volume.CallError
	switch {
	case !errors.As(err, &ce):
		return err
	case ce.Code == "NotFound":
		return volume.Errorf(volume.ErrNotFound, "plugin %q has no volume %q: %s", v.PluginID, v.ExternalID, ce.Message)
	case ce.Code == "InvalidArgument" || ce.Code == volume.CodeUnverified:
		return volume.Errorf(volume.ErrRefused, "plugin %q does not offer volume %q with these capabilities: %s", v.PluginID, v.ExternalID, ce.Message)
	}

	return nil
}

// wake makes the queue process the volume and the leftovers of the same storage.
func (s *Service) wake(v volume.Volume) {
	s.Queue.Wake(volume.LeftoverKey(v.Driver, v.ExternalID))
	s.Queue.Wake(v.ID)
}

func failed(err error) (volume.Record, volume.Change, error) {
	return volume.Record{}, volume.Change{}, err
}

func (s *Service) say(r volume.Record, typ, format string, args ...any) {
	s.Events(volume.Event{Type: typ, Volume: r.Volume.ID, Plugin: r.Volume.PluginID, Message: fmt.Sprintf(format, args...)})
}
