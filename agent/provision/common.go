package provision

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/volagent/volagent/volmgr/backoff"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// common holds the dependencies of all parts of a Service, and the operations that several parts
// need.
type common struct {
	Options
	pluginFinder
	beginning registering
}

// newCommon returns the common part of a Service.
func newCommon(o Options) *common {
	return &common{Options: o, pluginFinder: pluginFinder{o}}
}

// checkSpec checks a volume file, without regard to the state of the volume. A volume that is
// already stored keeps its id, even if the agent no longer accepts such an id for a new volume.
func (s *common) checkSpec(spec volume.Volume) error {
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

// errLookOnly aborts a transaction that only reads. If the transaction succeeded, the store would
// write to the disk.
var errLookOnly = errors.New("nothing is changed")

// read runs fn in a transaction that stores nothing.
func (s *common) read(ctx context.Context, fn func(Tx) error) error {
	err := s.Store.Update(ctx, func(tx Tx) error { return cmp.Or(fn(tx), errLookOnly) })
	if errors.Is(err, errLookOnly) {
		return nil
	}
	return err
}

// wakeQueue tells the queue to check whether the volume, or a leftover of the same storage, needs a
// step.
func (s *common) wakeQueue(v volume.Volume) {
	s.Queue.Wake(volume.LeftoverKey(v.Driver, v.ExternalID))
	s.Queue.Wake(v.ID)
}

// emit adds an event about a volume to the event log.
func (s *common) emit(r volume.Record, typ volume.EventType, format string, args ...any) {
	s.Events(volume.Event{Type: typ, Volume: r.Volume.ID, Plugin: r.Volume.PluginID, Message: fmt.Sprintf(format, args...)})
}

// putVolume stores the record of a volume whose storage is new to the agent. It refuses storage that
// is already in use.
func (s *common) putVolume(tx Tx, v volume.Volume) (volume.Record, error) {
	if err := unique(tx, v); err != nil {
		return volume.Record{}, err
	}
	if err := s.updateLeftover(tx, v); err != nil {
		return volume.Record{}, err
	}

	r := volume.Record{Volume: v}
	tx.PutVolume(r)
	return r, nil
}

// updateLeftover stores the plugin and the secrets of v in the leftover record of the same storage.
// An earlier attempt to undo the leftovers may have failed only because the old secrets were wrong.
func (s *common) updateLeftover(tx Tx, v volume.Volume) (err error) {
	leftover, ok := tx.Leftover(v.Driver, v.ExternalID)
	if !ok || v.ExternalID == "" {
		return nil
	}

	leftover.Volume.PluginID = v.PluginID
	if leftover.Volume.Secrets, err = s.Seal.Move(v.Secrets, v.ID, leftover.Volume.ID); err != nil {
		return err
	}

	tx.PutLeftover(leftover, time.Time{})
	return nil
}

// unique refuses storage that is registered under another id, and storage that a plugin test uses.
func unique(tx Tx, v volume.Volume) error {
	if other, ok := tx.VolumeOf(v.Driver, v.ExternalID); ok && other != v.ID {
		return volume.Errorf(volume.ErrRefused, "external_id %q of driver %s is already registered as volume %q; one storage volume has one id",
			v.ExternalID, v.Driver, other).WithRemedy(remedy.Of(remedy.ShowVolume, other))
	}
	// When the plugin test ends, it undoes all its calls. It would then unmount the volume while
	// claims still use it.
	if plugin, ok := tx.TestOf(v.Driver, v.ExternalID); ok {
		return volume.Errorf(volume.ErrRefused, "external_id %q of driver %s is in a test of plugin %q; register it after the test has ended",
			v.ExternalID, v.Driver, plugin).WithHint("volctl events --since 10m")
	}

	return nil
}

// fill sets the fields of a new record that do not come from the volume file. It also sets the
// default name.
func fill(v *volume.Volume, info plugin.Info) {
	v.Driver = info.Driver
	v.RegisteredAt = time.Now().UTC()
	if v.Name == "" {
		v.Name = v.ID
	}
}

// errLate is the cause with which withWait ends a context after the maximum wait.
var errLate = errors.New("the wait is over")

// withWait returns a context that ends after the duration wait. If wait is 0, it returns ctx
// unchanged.
func withWait(ctx context.Context, wait time.Duration) (context.Context, context.CancelFunc) {
	if wait <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, wait, errLate)
}

// pauses are the pauses between two calls while the plugin is still working.
var pauses = backoff.Delays{First: 500 * time.Millisecond, Last: 10 * time.Second}

// pause waits for d, or until ctx ends.
func (s *common) pause(ctx context.Context, d time.Duration) error {
	if s.Pause != nil {
		return s.Pause(ctx, d)
	}

	t := time.NewTimer(d)
	defer t.Stop()

	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// failed returns an error as the result of an operation that changes a volume.
func failed(err error) (volume.Record, volume.Change, error) {
	return volume.Record{}, volume.Change{}, err
}

// exclusiveWait limits how long askExclusively waits for another call.
const exclusiveWait = 5 * time.Second

// askExclusively runs ask while no other call runs for the key. The key is a volume id or the key
// of a leftover record. If another call takes too long, askExclusively returns nil and does not run
// ask.
func (s *common) askExclusively(ctx context.Context, key string, ask func() error) error {
	wait, cancel := context.WithTimeout(ctx, exclusiveWait)
	defer cancel()

	var asked error
	err := s.Queue.Exclusive(wait, key, func() error {
		asked = ask()
		return nil
	})
	if err != nil {
		return ctx.Err() // nil if only the wait for the other call timed out
	}

	return asked
}

// checkExists asks the plugin whether the volume exists and supports the capabilities in the volume
// file. It returns nil if the plugin is down or does not answer.
func (s *common) checkExists(ctx context.Context, v volume.Volume) error {
	if view := s.Plugins.View(v.PluginID); !view.ReadyFor(call.CreateVolume) || !view.Info.HasController {
		return nil
	}

	p, secrets, err := s.provisioner(v)
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
