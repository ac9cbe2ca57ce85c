// Package provision registers, creates, deletes and deregisters volumes. These parts of a volume's
// life do not depend on mounts of this host. The intent to create or delete is on disk before the
// agent calls the plugin. After a crash the record therefore shows which storage may exist.
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

// Plugin makes the CSI calls for volumes and snapshots. Errors are *volume.CallError.
type Plugin interface {
	CreateVolume(context.Context, call.CreateVolumeRequest) (call.CreateVolumeResult, error)
	DeleteVolume(context.Context, call.DeleteVolumeRequest) error
	ValidateCapabilities(context.Context, call.ValidateRequest) error
	Snapshotter
}

// Tx is one change of the store. Either all of it is on disk, or none.
type Tx interface {
	Volume(id string) (volume.Record, bool)
	PutVolume(volume.Record)
	DeleteVolume(id string)
	VolumeOf(driver, external string) (string, bool)

	// TestOf returns the plugin whose running test uses this storage volume.
	TestOf(driver, external string) (pluginID string, ok bool)

	// The store has one leftover record for each forced deregister that left something to undo.
	Leftovers() []volume.Record
	Leftover(driver, external string) (volume.Record, bool)
	PutLeftover(r volume.Record, since time.Time)
	DeleteLeftover(driver, external string)
	SnapshotTx
}

// Store holds the records.
type Store interface {
	Volume(id string) (volume.Record, bool)

	// Snapshots returns the intents of snapshots that the agent has not seen finished.
	Snapshots() []volume.SnapshotIntent

	// SnapshotNames returns the names of snapshots that have an id of their plugin.
	SnapshotNames() []volume.SnapshotName

	Update(ctx context.Context, fn func(Tx) error) error
}

// Guards controls the own directories that refuse writes while nothing is mounted there.
type Guards interface {
	// Unguard makes a directory writable again that the record of volume id names, unless the
	// record of another volume names it too. It fails while something is mounted there.
	Unguard(dir volume.GuardedDir, id string) error
}

// Queue makes calls exclusive for each volume, and takes volumes down.
type Queue interface {
	// Exclusive runs fn while no other call runs for the volume or for its storage. If id is the
	// key of a leftover record, it excludes only calls for that storage.
	Exclusive(ctx context.Context, id string, fn func() error) error
	// Change is Exclusive for a call that changes the storage.
	Change(ctx context.Context, id string, fn func() error) error

	// Call is Exclusive for a create or delete. The step appears in the volume's status.
	Call(ctx context.Context, id string, step call.Method, fn func() error) error
	Wake(id string)
	Changed(id string) <-chan struct{}

	// Attempt returns the current step of a volume, or nil if there is none.
	Attempt(id, alloc string) *volume.Attempt
	Forget(id string)
}

// Plugins finds plugins and reports their state.
type Plugins interface {
	View(pluginID string) volume.PluginView

	// IDs returns the ids of all plugins, sorted.
	IDs() []string

	// Await returns when the plugin is ready, or with an ErrPluginUnavailable.
	Await(ctx context.Context, pluginID string) error

	Provisioner(pluginID string) (Plugin, error)
	Storage(pluginID string) (Storage, error)
	Reporter(pluginID string) (Reporter, error)
}

// Seal encrypts literal secret values before they are stored.
type Seal interface {
	// Seal returns a volume's references with all literal values sealed. It keeps the values in had
	// that it has already sealed.
	Seal(id string, refs, had map[string]call.SecretRef) (map[string]call.SecretRef, error)
	// Same replaces each literal whose value the volume has already sealed by the sealed value. It
	// seals nothing. The literals in its result are the values that still need sealing.
	Same(id string, refs, had map[string]call.SecretRef) map[string]call.SecretRef
	// Equal replaces each literal that has the value of the volume's sealed secret by that secret,
	// even if an older key sealed it. It seals nothing.
	Equal(id string, refs, had map[string]call.SecretRef) map[string]call.SecretRef
	// Move seals values for the volume to that were sealed for the volume from.
	Move(refs map[string]call.SecretRef, from, to string) (map[string]call.SecretRef, error)
}

// Service provisions volumes.
type Service struct {
	Store   Store
	Queue   Queue
	Plugins Plugins

	// Secrets reads all secrets of a volume at the moment of a call. For a call that concerns no
	// volume, the volume has no id.
	Secrets func(volume.Volume) (call.Secrets, error)

	Seal   Seal
	Events func(...volume.Event)

	// Owners tells which owners of claims have ended; nil means none.
	Owners volume.Owners

	// Guards removes the guards of own directories; nil means that there are none.
	Guards Guards

	// Halt says why no call is sent; empty in normal operation.
	Halt string

	// Pause waits for d, or until ctx ends; nil waits by the clock.
	Pause func(ctx context.Context, d time.Duration) error

	reports reports
	doing   doing
}

// awaitPlugin bounds the wait for a plugin that is starting.
const awaitPlugin = 30 * time.Second

// plugin checks that a plugin is configured, and returns the plugin's information about itself. If
// the plugin is down, the information is from an earlier start.
func (s *Service) plugin(ctx context.Context, id string) (volume.PluginInfo, error) {
	if s.Halt != "" {
		return volume.PluginInfo{}, volume.Errorf(volume.ErrRefused, "plugin %q is not asked: %s", id, s.Halt)
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

// ready waits until a plugin is ready.
func (s *Service) ready(ctx context.Context, id string) (volume.PluginInfo, error) {
	if s.Halt != "" {
		return volume.PluginInfo{}, volume.Errorf(volume.ErrRefused, "plugin %q is not asked: %s", id, s.Halt)
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

// check refuses a spec that is invalid in every state. The id of a stored volume may be one that is
// no longer accepted for new volumes.
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

// Register makes an existing storage volume known to the agent, or applies a changed file to a
// registered volume. With dry it only reports the change.
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

// fill sets the fields that a new record needs and the file does not contain.
func fill(v *volume.Volume, info volume.PluginInfo) {
	v.Driver = info.Driver
	v.RegisteredAt = time.Now().UTC()
	if v.Name == "" {
		v.Name = v.ID
	}
}

// insert adds a record if its id and its storage are not registered yet.
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

// lend gives the plugin and the secrets of v to the leftover record of the same storage. Wrong
// secrets may be the reason why the leftovers still exist. lend is called when a volume is
// registered again or changed.
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

// unique refuses a storage volume that is registered under another id or that a test uses.
func unique(tx Tx, v volume.Volume) error {
	if other, ok := tx.VolumeOf(v.Driver, v.ExternalID); ok && other != v.ID {
		return volume.Errorf(volume.ErrRefused, "external_id %q of driver %s is registered as volume %q already; one storage volume has one id",
			v.ExternalID, v.Driver, other).WithRemedy(remedy.Of(remedy.ShowVolume, other))
	}
	// A test undoes everything at its end, and would unmount the volume under its claims.
	if plugin, ok := tx.TestOf(v.Driver, v.ExternalID); ok {
		return volume.Errorf(volume.ErrRefused, "external_id %q of driver %s is in a test of plugin %q; it can be registered when that is over and undone",
			v.ExternalID, v.Driver, plugin).WithHint("volctl events --since 10m")
	}

	return nil
}

// dry refuses the same volumes as a registration would.
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

// aloneWithin is how long a registration waits for another call for the same storage. After that it
// proceeds without asking the plugin.
const aloneWithin = 5 * time.Second

// alone runs learn and exists while no other call for the storage runs. The queue may be undoing
// leftovers of the same storage right now. If that call hangs, alone skips both checks.
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
		return ctx.Err() // nil if only the wait ran out
	}

	return asked
}

// reach returns the plugin of a volume, and the volume's secrets for a call to it.
func (s *Service) reach(v volume.Volume) (Plugin, call.Secrets, error) {
	p, err := s.Plugins.Provisioner(v.PluginID)
	if err != nil {
		return nil, nil, err
	}
	secrets, err := s.Secrets(v)
	return p, secrets, err
}

// exists asks the plugin whether the volume exists and supports the capabilities in the file. It
// accepts the volume if the plugin is down or cannot answer.
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
		return volume.Errorf(volume.ErrNotFound, "plugin %q knows no volume %q: %s", v.PluginID, v.ExternalID, ce.Message)
	case ce.Code == "InvalidArgument" || ce.Code == volume.CodeUnverified:
		return volume.Errorf(volume.ErrRefused, "plugin %q does not offer volume %q with these capabilities: %s", v.PluginID, v.ExternalID, ce.Message)
	}

	return nil
}

// wake makes the queue look at a volume and at leftovers of the same storage.
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
