// Package provision registers, creates, deletes and deregisters volumes: the
// part of a volume's life that is not this host's mounts. The intent to create
// or delete is on disk before the plugin is asked, so that a crash leaves a
// record that says what may exist.
package provision

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// Plugin is what is called of a CSI plugin. Errors are *volume.CallError.
type Plugin interface {
	CreateVolume(context.Context, volume.CreateVolumeRequest) (volume.CreateVolumeResult, error)
	DeleteVolume(context.Context, volume.DeleteVolumeRequest) error
	ValidateCapabilities(context.Context, volume.ValidateRequest) error
	Snapshotter
}

// Tx is one change of the store; all of it is on disk, or none.
type Tx interface {
	Volume(id string) (volume.Record, bool)
	PutVolume(volume.Record)
	DeleteVolume(id string)
	VolumeOf(driver, external string) (string, bool)
	// TestOf is the plugin of which a test has a storage volume.
	TestOf(driver, external string) (pluginID string, ok bool)
	// Debts are what forced deregisters left: records that are to be undone.
	Debts() []volume.Record
	Debt(driver, external string) (volume.Record, bool)
	PutDebt(r volume.Record, since time.Time)
	DeleteDebt(driver, external string)
	SnapshotTx
}

// Store holds the records.
type Store interface {
	Volume(id string) (volume.Record, bool)
	// Snapshots have not been seen to be finished.
	Snapshots() []volume.SnapshotIntent
	// SnapshotNames are the names of snapshots that their plugins gave ids.
	SnapshotNames() []volume.SnapshotName
	Update(ctx context.Context, fn func(Tx) error) error
}

// Guards knows the directories that refuse writes while nothing is mounted there.
type Guards interface {
	// Unguard makes one writable again that a volume's record names, unless another
	// volume's does too. It fails while something is mounted there.
	Unguard(dir volume.GuardedDir, id string) error
}

// Queue makes calls exclusive per volume, and brings a volume down.
type Queue interface {
	// Exclusive runs fn while no other call for the volume is in flight, nor one
	// for its storage; by the key of a debt, for that storage alone.
	Exclusive(ctx context.Context, id string, fn func() error) error
	// Change is Exclusive for a call that changes the storage.
	Change(ctx context.Context, id string, fn func() error) error
	// Call is Exclusive for a create or delete, which shows in the volume's status.
	Call(ctx context.Context, id string, step volume.Kind, fn func() error) error
	Wake(id string)
	Changed(id string) <-chan struct{}
	// Attempt is the step that a volume is at; nil if there is none.
	Attempt(id, alloc string) *volume.Attempt
	Forget(id string)
}

// Plugins gives plugins and tells how they are.
type Plugins interface {
	View(pluginID string) volume.PluginView
	// IDs are all plugins, sorted.
	IDs() []string
	// Await returns when the plugin is ready, or an ErrPluginUnavailable.
	Await(ctx context.Context, pluginID string) error
	Provisioner(pluginID string) (Plugin, error)
	Storage(pluginID string) (Storage, error)
	Reporter(pluginID string) (Reporter, error)
}

// Seal keeps literal values of secrets from being stored in clear.
type Seal interface {
	// Seal returns a volume's references with literal values sealed; one that it
	// had sealed already stays as it was. Same seals nothing, and tells what has
	// to be sealed: a literal that it leaves or makes.
	Seal(id string, refs, had map[string]volume.SecretRef) (map[string]volume.SecretRef, error)
	Same(id string, refs, had map[string]volume.SecretRef) map[string]volume.SecretRef
	// Equal replaces each literal that has the value of the volume's sealed secret by
	// that secret, under whichever key it was sealed. It seals nothing.
	Equal(id string, refs, had map[string]volume.SecretRef) map[string]volume.SecretRef
	// Move seals for one volume what was sealed for another.
	Move(refs map[string]volume.SecretRef, from, to string) (map[string]volume.SecretRef, error)
}

// Service provisions volumes.
type Service struct {
	Store   Store
	Queue   Queue
	Plugins Plugins
	// Secrets reads all secrets of a volume, at the moment of a call. Of a call
	// that is for no volume, they are those of a volume without an id.
	Secrets func(volume.Volume) (volume.Secrets, error)
	Seal    Seal
	Events  func(...volume.Event)
	// Owners tells whose claims are past; nil: nobody's are.
	Owners volume.Owners
	// Guards takes back what was done to directories; nil: nothing was.
	Guards Guards
	// Halt says why no call is sent at all; empty when they are.
	Halt string
	// Pause waits, unless ctx ends first; nil is by the clock.
	Pause func(ctx context.Context, d time.Duration) error

	reports reports
	doing   doing
}

// awaitPlugin bounds the wait for a plugin that is starting.
const awaitPlugin = 30 * time.Second

// plugin checks that a plugin is configured, and returns what it says of
// itself; that is remembered from earlier if it is down now.
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

// ready waits for a plugin.
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

// check refuses a volume that no state could take. An id that is stored already may
// be one that is not accepted any more.
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

// Register makes an existing storage volume known, or lays a changed file over
// what is registered. With dry it only says what it would do.
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

// fill sets what a new record needs and the file does not say.
func fill(v *volume.Volume, info volume.PluginInfo) {
	v.Driver = info.Driver
	v.RegisteredAt = time.Now().UTC()
	if v.Name == "" {
		v.Name = v.ID
	}
}

// insert adds a record under the two rules of uniqueness.
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

// lend has what is owed for a storage volume undone through the plugin, and with
// the secrets, under which the volume is registered again or changed: the old ones
// may be why it could not be.
func (s *Service) lend(tx Tx, v volume.Volume) (err error) {
	debt, ok := tx.Debt(v.Driver, v.ExternalID)
	if !ok || v.ExternalID == "" {
		return nil
	}
	debt.Volume.PluginID = v.PluginID
	if debt.Volume.Secrets, err = s.Seal.Move(v.Secrets, v.ID, debt.Volume.ID); err != nil {
		return err
	}
	tx.PutDebt(debt, time.Time{})
	return nil
}

// unique refuses a storage volume that is known under another id, or to a test.
func unique(tx Tx, v volume.Volume) error {
	if other, ok := tx.VolumeOf(v.Driver, v.ExternalID); ok && other != v.ID {
		return volume.Errorf(volume.ErrRefused, "external_id %q of driver %s is registered as volume %q already; one storage volume has one id",
			v.ExternalID, v.Driver, other).WithHint("volctl volume status %s", other)
	}
	// What a test undoes in the end would be taken from under a claim.
	if plugin, ok := tx.TestOf(v.Driver, v.ExternalID); ok {
		return volume.Errorf(volume.ErrRefused, "external_id %q of driver %s is in a test of plugin %q; it can be registered when that is over and undone",
			v.ExternalID, v.Driver, plugin).WithHint("volctl events --since 10m")
	}
	return nil
}

// dry refuses what a registration would.
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

// aloneWithin is how long a registration waits for a call in flight for the same
// storage, before it does without asking the plugin.
const aloneWithin = 5 * time.Second

// alone is learn and exists while no other call for the storage is in flight: what a forced
// deregister left of it may be undone right now. One that hangs does not stand in
// the way.
func (s *Service) alone(ctx context.Context, v *volume.Volume) error {
	wait, cancel := context.WithTimeout(ctx, aloneWithin)
	defer cancel()
	var asked error
	err := s.Queue.Exclusive(wait, volume.DebtKey(v.Driver, v.ExternalID), func() error {
		if asked = s.learn(ctx, v); asked == nil {
			asked = s.exists(ctx, *v)
		}
		return nil
	})
	if err != nil {
		return ctx.Err() // nil if it is the wait that ran out
	}
	return asked
}

// reach returns the plugin of a volume, and the volume's secrets for a call to it.
func (s *Service) reach(v volume.Volume) (Plugin, volume.Secrets, error) {
	p, err := s.Plugins.Provisioner(v.PluginID)
	if err != nil {
		return nil, nil, err
	}
	secrets, err := s.Secrets(v)
	return p, secrets, err
}

// exists asks the plugin whether the volume is there and can be used as the
// file says. A plugin that is down, or cannot tell, does not stand in the way.
func (s *Service) exists(ctx context.Context, v volume.Volume) error {
	if view := s.Plugins.View(v.PluginID); !view.ReadyFor(volume.CreateVolume) || !view.Info.HasController {
		return nil
	}
	p, secrets, err := s.reach(v)
	if err != nil {
		return err
	}
	err = p.ValidateCapabilities(ctx, volume.ValidateRequest{
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

// wake looks at a volume, and at what is owed for the same storage.
func (s *Service) wake(v volume.Volume) {
	s.Queue.Wake(volume.DebtKey(v.Driver, v.ExternalID))
	s.Queue.Wake(v.ID)
}

func failed(err error) (volume.Record, volume.Change, error) {
	return volume.Record{}, volume.Change{}, err
}

func (s *Service) say(r volume.Record, typ, format string, args ...any) {
	s.Events(volume.Event{Type: typ, Volume: r.Volume.ID, Plugin: r.Volume.PluginID, Message: fmt.Sprintf(format, args...)})
}
