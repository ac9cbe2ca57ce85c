package provision

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// creator creates storage and registers it as a volume.
type creator struct {
	*common
	sources *sourceFinder
}

// Create asks the plugin to create storage, and registers the storage as a volume. It never changes
// an existing volume. If the volume exists and matches the request, Create returns it. If the
// volume differs, Create returns an ErrRefused that names each difference. Create continues an
// interrupted create, because a plugin returns the same volume for the same name.
func (s *creator) Create(ctx context.Context, spec volume.Volume, dry bool) (volume.Record, volume.Change, error) {
	return s.CreateWithin(ctx, spec, dry, 0)
}

// CreateWithin does the same as Create, but it repeats the call while the plugin reports that it is
// still working. It stops repeating when the duration wait has passed. With a wait of 0, it calls
// the plugin once.
func (s *creator) CreateWithin(ctx context.Context, spec volume.Volume, dry bool, wait time.Duration) (volume.Record, volume.Change, error) {
	if err := s.checkSpec(spec); err != nil {
		return failed(err)
	}
	if spec.ExternalID != "" {
		return failed(volume.Errorf(volume.ErrInvalid, "volume %q has an external_id, so it exists already", spec.ID).
			WithHint("volctl volume register FILE"))
	}

	spec = s.scoped(spec)
	if err := s.checkScope(spec); err != nil {
		return failed(err)
	}
	shared, found, err := s.lookSpec(ctx, spec)
	switch {
	case err != nil:
		return failed(err)
	case found && shared.Volume.Provision != volume.Provisioning:
		return s.compareExisting(volume.Record{Volume: shared.Volume}, spec)
	case spec.Shared:
		return s.createShared(ctx, spec, shared, found, dry, wait)
	}

	return s.createOwn(ctx, spec, dry, wait)
}

// createOwn creates a volume of this host.
func (s *creator) createOwn(ctx context.Context, spec volume.Volume, dry bool, wait time.Duration) (volume.Record, volume.Change, error) {
	had, ok := s.Store.Volume(spec.ID)
	if ok && had.Volume.Provision != volume.Provisioning {
		return s.compareExisting(had, spec)
	}

	spec, err := spec.Keeping(had.Volume.Secrets)
	if err != nil {
		return failed(err)
	}

	info, err := s.awaitPlugin(ctx, spec.PluginID)
	if err != nil {
		return failed(err)
	}

	snapshot, clone, err := s.sources.find(ctx, spec, info, had.Volume.Provision == volume.Provisioning)
	if err != nil {
		return failed(err)
	}

	fill(&spec, info)
	if err := s.checkOwn(ctx, spec); err != nil {
		return failed(err)
	}
	spec.Created, spec.Provision = true, volume.Provisioning
	r := volume.Record{Volume: spec}
	if dry {
		return r, volume.Change{Outcome: volume.Created}, nil
	}
	if spec.Secrets, err = s.Seal.Seal(spec.ID, spec.Secrets, had.Volume.Secrets); err != nil {
		return failed(err)
	}

	ctx, cancel := withWait(ctx, wait)
	defer cancel()

	asked := spec
	asked.SnapshotID, asked.CloneID = snapshot, clone
	begun := false

	err = s.repeatCreate(ctx, spec, wait, func() error {
		// 1. Check everything that can be checked before the create call. 2. Store the intent. 3.
		// Call the plugin. 4. Store the result.
		p, secrets, err := s.provisioner(spec)
		if err != nil {
			return err
		}

		intent, resumed, err := s.storeIntent(ctx, spec, info, begun)
		if err != nil {
			return err
		}

		begun, asked.Topology = true, intent.TopologySent
		made, err := callCreate(ctx, p, asked, secrets)
		if err != nil {
			return s.createFailed(ctx, spec, err, resumed)
		}

		r, err = s.storeCreated(ctx, spec, made)
		return err
	})
	if err != nil {
		s.emit(volume.Record{Volume: spec}, volume.EventCreateFailed, "%v", err)
		return failed(err)
	}

	s.emit(r, volume.EventCreated, "created as %q of %s", r.Volume.ExternalID, spec.Driver)
	s.wakeQueue(r.Volume) // a leftover record may be waiting for this plugin to become available
	return r, volume.Change{Outcome: volume.Created}, nil
}

// compareExisting answers a request to create a volume that already exists. It changes nothing.
func (s *creator) compareExisting(r volume.Record, request volume.Volume) (volume.Record, volume.Change, error) {
	v := r.Volume
	if v.Provision == volume.Deleting {
		return failed(unfinishedDelete(v.ID))
	}

	request, err := request.Keeping(v.Secrets)
	if err != nil {
		return failed(err)
	}

	request.Secrets = s.Seal.Equal(v.ID, request.Secrets, v.Secrets)
	if differences := v.Differences(request); len(differences) > 0 {
		return failed(volume.Errorf(volume.ErrRefused, "volume %q exists and differs from the request: %s", v.ID, strings.Join(differences, "; ")).
			WithHint("%s", "to change the volume, edit the output of this command and register it: "+suggest.Command("volctl volume export %s", v.ID)))
	}

	return r, volume.Change{Outcome: volume.Unchanged}, nil
}

// repeatCreate makes the call that creates a volume. While the plugin reports that it is still
// working, for example on a copy, repeatCreate repeats the call with the same name. Calls for other
// volumes do not wait for this call.
func (s *creator) repeatCreate(ctx context.Context, v volume.Volume, wait time.Duration, made func() error) error {
	for try := 1; ; try++ {
		err := s.Queue.Call(ctx, v.ID, call.CreateVolume, made)
		var ce *volume.CallError
		copies := v.SnapshotID != "" || v.CloneID != ""
		if wait == 0 || !errors.As(err, &ce) || !stillWorking(ce) || ce.Code != volume.CodeAborted && !copies {
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

		return withCall(call.CreateVolume, err, words)
	}
}

// storeIntent stores the intent to create the volume, and the topology for the call. It reports
// whether an earlier create of this volume did not finish. The caller sets begun if this request
// has already stored the intent. If begun is set but the intent is missing, the volume was
// deregistered in the meantime, and storeIntent fails.
func (s *creator) storeIntent(ctx context.Context, spec volume.Volume, info plugin.Info, begun bool) (intent volume.Volume, resumed bool, err error) {
	err = s.Store.Update(ctx, func(tx Tx) error {
		old, ok := tx.Volume(spec.ID)
		switch v := old.Volume; {
		case begun && !ok:
			return volume.Errorf(volume.ErrRefused, "volume %q was deregistered meanwhile; plugin %q may have a volume named %q", spec.ID, spec.PluginID, spec.Name)
		case ok && v.Provision != volume.Provisioning:
			return volume.Errorf(volume.ErrRefused, "volume %q was registered meanwhile", spec.ID)
		case ok && (v.Name != spec.Name || v.PluginID != spec.PluginID):
			return volume.Errorf(volume.ErrRefused, "an earlier create of volume %q by plugin %q under the name %q has not finished", spec.ID, v.PluginID, v.Name).
				WithHint("repeat the create with the earlier values, or discard it: %s", suggest.Command("volctl volume deregister %s --force", spec.ID))
		}

		resumed, intent = ok, spec
		intent.TopologySent = spec.TopologyToSend(info, old.Volume)
		tx.PutVolume(volume.Record{Volume: intent})
		return nil
	})

	return intent, resumed, err
}

// dropIntent deletes the record of a failed create. It keeps the record if the volume now exists.
func (s *creator) dropIntent(ctx context.Context, id string) error {
	return s.Store.Update(context.WithoutCancel(ctx), func(tx Tx) error {
		if r, ok := tx.Volume(id); ok && r.Volume.Provision == volume.Provisioning {
			tx.DeleteVolume(id)
		}
		return nil
	})
}

func callCreate(ctx context.Context, p call.Caller, v volume.Volume, secrets call.Secrets) (call.CreateVolumeResult, error) {
	return call.Do(ctx, p, call.CreateVolumeRequest{
		Name: v.Name, CapacityMin: v.CapacityMin, CapacityMax: v.CapacityMax, Capabilities: v.Capabilities,
		FSType: v.MountOptions.FSType, MountFlags: v.MountOptions.MountFlags, Parameters: v.Parameters, Mutable: v.Mutable,
		Topology: v.Topology, SnapshotID: v.SnapshotID, CloneID: v.CloneID, Secrets: secrets,
	})
}

// createFailed returns the error for a failed create. It deletes the record if the plugin certainly
// created nothing. Otherwise it keeps the record, and the error says that the plugin may have a
// volume. If resumed is set, an earlier create may have succeeded even though the plugin refuses
// this call.
func (s *creator) createFailed(ctx context.Context, v volume.Volume, cause error, resumed bool) error {
	var ce *volume.CallError
	certain := !errors.As(cause, &ce) || !ce.Uncertain()
	if resumed || !certain {
		whose := "the plugin"
		if certain {
			whose = "an earlier create"
		}

		return withCall(call.CreateVolume, cause, &volume.Error{
			Kind:    kindOf(cause),
			Message: fmt.Sprintf("%v; it is unknown whether %s made volume %q. The agent keeps the intent, because plugin %q may have a volume named %q", cause, whose, v.ID, v.PluginID, v.Name),
			Hint:    "repeat the create, or " + s.listHint(v.PluginID) + "discard it: " + suggest.Command("volctl volume deregister %s --force", v.ID),
		})
	}
	if err := s.dropIntent(ctx, v.ID); err != nil {
		return errors.Join(cause, err)
	}
	if words := missingSource(v, ce); words != nil {
		return withCall(call.CreateVolume, cause, words)
	}

	return refusal(v.PluginID, cause)
}

// listHint returns the command that lists the plugin's volumes, for the hint of a failed create. It
// returns an empty text if the plugin cannot list volumes.
func (s *creator) listHint(pluginID string) string {
	if !s.Plugins.View(pluginID).Info.Caps.List {
		return ""
	}
	return "check for the volume (" + suggest.Command("volctl plugin volumes %s", pluginID) + ") and "
}

// storeCreated stores the volume that the plugin created. If the plugin returned storage that is
// already registered under another id, storeCreated deletes the intent of the new volume.
func (s *creator) storeCreated(ctx context.Context, v volume.Volume, made call.CreateVolumeResult) (volume.Record, error) {
	v.ExternalID, v.Capacity, v.Topologies = made.ExternalID, max(made.Capacity, 0), made.Topologies
	if len(made.Context) > 0 {
		v.Context = made.Context
	}
	v.Provision = volume.Provisioned
	ctx = context.WithoutCancel(ctx)
	var r volume.Record

	err := s.Store.Update(ctx, func(tx Tx) (err error) {
		if old, ok := tx.Volume(v.ID); !ok || old.Volume.Provision != volume.Provisioning {
			return volume.Errorf(volume.ErrRefused, "volume %q was deregistered meanwhile; the plugin created its storage as external_id %q", v.ID, v.ExternalID).
				WithHint("register it with that external_id: volctl volume register FILE")
		}

		r, err = s.putVolume(tx, v)
		return err
	})
	if errors.Is(err, volume.ErrRefused) {
		return r, errors.Join(err, s.dropIntent(ctx, v.ID))
	}

	return r, err
}
