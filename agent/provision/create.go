package provision

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// Create asks the plugin to create storage, and registers the storage as a volume. It never changes
// an existing volume. If the volume exists and matches the request, Create returns it. If the
// volume differs, Create returns an ErrRefused that names each difference. Create continues an
// interrupted create, because a plugin returns the same volume for the same name.
func (s *Service) Create(ctx context.Context, spec volume.Volume, dry bool) (volume.Record, volume.Change, error) {
	return s.CreateWithin(ctx, spec, dry, 0)
}

// CreateWithin does the same as Create. In addition, it repeats the call for the duration wait
// while the plugin reports that it is still working. With a wait of 0, it calls the plugin once.
func (s *Service) CreateWithin(ctx context.Context, spec volume.Volume, dry bool, wait time.Duration) (volume.Record, volume.Change, error) {
	if err := s.check(spec); err != nil {
		return failed(err)
	}
	if spec.ExternalID != "" {
		return failed(volume.Errorf(volume.ErrInvalid, "volume %q has an external_id, so it exists already", spec.ID).
			WithHint("volctl volume register FILE"))
	}

	had, ok := s.Store.Volume(spec.ID)
	if ok && had.Volume.Provision != volume.Provisioning {
		return s.compare(had, spec)
	}

	spec, err := spec.Keeping(had.Volume.Secrets)
	if err != nil {
		return failed(err)
	}

	info, err := s.ready(ctx, spec.PluginID)
	if err != nil {
		return failed(err)
	}

	snapshot, clone, err := s.source(ctx, spec, info, had.Volume.Provision == volume.Provisioning)
	if err != nil {
		return failed(err)
	}

	fill(&spec, info)
	spec.Created, spec.Provision = true, volume.Provisioning
	r := volume.Record{Volume: spec}
	if dry {
		return r, volume.Change{Outcome: volume.Created}, nil
	}
	if spec.Secrets, err = s.Seal.Seal(spec.ID, spec.Secrets, had.Volume.Secrets); err != nil {
		return failed(err)
	}

	ctx, cancel := within(ctx, wait)
	defer cancel()

	asked := spec
	asked.SnapshotID, asked.CloneID = snapshot, clone
	begun := false

	err = s.creating(ctx, spec, wait, func() error {
		// 1. Check everything that can fail here. 2. Store the intent. 3. Call the plugin. 4. Store
		// the result.
		p, secrets, err := s.reach(spec)
		if err != nil {
			return err
		}

		intent, resumed, err := s.intend(ctx, spec, info, begun)
		if err != nil {
			return err
		}

		begun, asked.Topology = true, intent.TopologySent
		made, err := create(ctx, p, asked, secrets)
		if err != nil {
			return s.notCreated(ctx, spec, err, resumed)
		}

		r, err = s.settle(ctx, spec, made)
		return err
	})
	if err != nil {
		s.say(volume.Record{Volume: spec}, "create-failed", "%v", err)
		return failed(err)
	}

	s.say(r, "created", "created as %q of %s", r.Volume.ExternalID, spec.Driver)
	s.wake(r.Volume) // a leftover record may be waiting for this plugin
	return r, volume.Change{Outcome: volume.Created}, nil
}

// compare answers a request to create a volume that already exists. It changes nothing.
func (s *Service) compare(r volume.Record, request volume.Volume) (volume.Record, volume.Change, error) {
	v := r.Volume
	if v.Provision == volume.Deleting {
		return failed(deleting(v.ID))
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

// deleting returns the error for an operation on a volume whose delete has not finished.
func deleting(id string) error {
	return volume.Errorf(volume.ErrRefused, "volume %q: %s has not finished", id, volume.Deleting).
		WithHint("%s", "repeat the delete: "+suggest.Command("volctl volume delete %s -y", id))
}

// intend stores the intent to create the volume, and the topology for the request. It reports
// whether it resumes an earlier create that did not finish. The caller sets begun if this request
// has stored the intent before. If the record is missing then, the volume was deregistered, and
// intend refuses to store the intent again.
func (s *Service) intend(ctx context.Context, spec volume.Volume, info plugin.Info, begun bool) (intent volume.Volume, resumed bool, err error) {
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
func (s *Service) dropIntent(ctx context.Context, id string) error {
	return s.Store.Update(context.WithoutCancel(ctx), func(tx Tx) error {
		if r, ok := tx.Volume(id); ok && r.Volume.Provision == volume.Provisioning {
			tx.DeleteVolume(id)
		}
		return nil
	})
}

// creates refuses a volume that needs a capability which the plugin does not have.
func creates(v volume.Volume, info plugin.Info) error {
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

func create(ctx context.Context, p call.Caller, v volume.Volume, secrets call.Secrets) (call.CreateVolumeResult, error) {
	return call.Do(ctx, p, call.CreateVolumeRequest{
		Name: v.Name, CapacityMin: v.CapacityMin, CapacityMax: v.CapacityMax, Capabilities: v.Capabilities,
		FSType: v.MountOptions.FSType, MountFlags: v.MountOptions.MountFlags, Parameters: v.Parameters, Mutable: v.Mutable,
		Topology: v.Topology, SnapshotID: v.SnapshotID, CloneID: v.CloneID, Secrets: secrets,
	})
}

// notCreated deletes the record if the plugin certainly created nothing. Otherwise it keeps the
// record and reports that the plugin may have a volume. A refusal of this call proves nothing about
// an earlier create that did not finish.
func (s *Service) notCreated(ctx context.Context, v volume.Volume, cause error, resumed bool) error {
	var ce *volume.CallError
	certain := !errors.As(cause, &ce) || !ce.Uncertain()
	if resumed || !certain {
		whose := "the plugin"
		if certain {
			whose = "an earlier create"
		}

		return unclear(call.CreateVolume, cause, &volume.Error{
			Kind:    kindOf(cause),
			Message: fmt.Sprintf("%v; it is unknown whether %s made volume %q. The agent keeps the intent, because plugin %q may have a volume named %q", cause, whose, v.ID, v.PluginID, v.Name),
			Hint:    "repeat the create, or " + s.lookFor(v.PluginID) + "discard it: " + suggest.Command("volctl volume deregister %s --force", v.ID),
		})
	}
	if err := s.dropIntent(ctx, v.ID); err != nil {
		return errors.Join(cause, err)
	}
	if words := sourceless(v, ce); words != nil {
		return unclear(call.CreateVolume, cause, words)
	}

	return refusal(v.PluginID, cause)
}

// lookFor returns the command that lists the plugin's volumes, for the hint of a failed create. It
// returns an empty text if the plugin cannot list volumes.
func (s *Service) lookFor(pluginID string) string {
	if !s.Plugins.View(pluginID).Info.Caps.List {
		return ""
	}
	return "check for the volume (" + suggest.Command("volctl plugin volumes %s", pluginID) + ") and "
}

// unclear returns the error words together with the failed call, so that the caller sees both.
func unclear(step call.Method, cause error, words *volume.Error) error {
	var ce *volume.CallError
	if !errors.As(cause, &ce) {
		return words
	}
	return &volume.Awaited{Err: words, At: volume.Attempt{Action: volume.Action{Kind: step}, Err: ce, Tries: 1}}
}

// kindOf returns the error kind of a failed call whose outcome is unknown.
func kindOf(err error) error {
	var ce *volume.CallError
	switch {
	case errors.As(err, &ce) && ce.Code == volume.CodeDeadlineExceeded:
		return volume.ErrTimeout
	case errors.As(err, &ce) && ce.Code == volume.CodeUnavailable:
		return volume.ErrPluginUnavailable
	case ce == nil:
		var e *volume.Error
		if errors.As(err, &e) {
			return e.Kind
		}
		return nil
	default:
		return nil
	}
}

// settle stores the volume that the plugin created. If the plugin returned a volume that is already
// registered, settle deletes the new record.
func (s *Service) settle(ctx context.Context, v volume.Volume, made call.CreateVolumeResult) (volume.Record, error) {
	v.ExternalID, v.Capacity, v.Topologies = made.ExternalID, max(made.Capacity, 0), made.Topologies
	if len(made.Context) > 0 {
		v.Context = made.Context
	}
	v.Provision = volume.Provisioned
	ctx = context.WithoutCancel(ctx)
	var r volume.Record

	err := s.Store.Update(ctx, func(tx Tx) error {
		if old, ok := tx.Volume(v.ID); !ok || old.Volume.Provision != volume.Provisioning {
			return volume.Errorf(volume.ErrRefused, "volume %q was deregistered meanwhile; the plugin created its storage as external_id %q", v.ID, v.ExternalID).
				WithHint("register it with that external_id: volctl volume register FILE")
		}
		if err := unique(tx, v); err != nil {
			return err
		}
		if err := s.lend(tx, v); err != nil {
			return err
		}

		r = volume.Record{Volume: v}
		tx.PutVolume(r)
		return nil
	})
	if errors.Is(err, volume.ErrRefused) {
		return r, errors.Join(err, s.dropIntent(ctx, v.ID))
	}

	return r, err
}

// Delete destroys the data of a volume. If this agent did not create the volume, the caller must
// repeat the id in confirm.
func (s *Service) Delete(ctx context.Context, id, confirm string) error {
	r, ok := s.Store.Volume(id)
	if !ok {
		return unknown(id)
	}
	if !r.Volume.Created && confirm != id {
		return volume.Errorf(volume.ErrRefused, "this agent did not create volume %q; to destroy its data, repeat the id", id).
			WithHint("%s", suggest.Command("volctl volume delete %s -y --confirm=%s", id, id))
	}

	info, err := s.ready(ctx, r.Volume.PluginID)
	if err != nil {
		return err
	}
	if !info.Caps.CreateDelete {
		return volume.Errorf(volume.ErrRefused, "plugin %q cannot delete volumes", r.Volume.PluginID).
			WithHint("%s", suggest.Command("volctl volume deregister %s", id))
	}
	if _, err := s.Secrets(r.Volume); err != nil { // fail before the agent stores an intent
		return err
	}

	err = s.Queue.Call(ctx, id, call.DeleteVolume, func() error { return s.delete(ctx, id) })
	if err != nil {
		s.say(r, "delete-failed", "%v", err)
		return err
	}

	s.Queue.Forget(id)
	s.reports.forget(id)
	s.say(r, "deleted", "deleted %q", r.Volume.ExternalID)
	return nil
}

// delete stores the intent to delete the volume, calls the plugin, and deletes the record.
func (s *Service) delete(ctx context.Context, id string) error {
	var v volume.Volume
	resumed := false
	err := s.Store.Update(ctx, func(tx Tx) error {
		r, ok := tx.Volume(id)
		if !ok {
			return unknown(id)
		}

		resumed = r.Volume.Provision == volume.Deleting
		if err := volume.Unused(r); err != nil {
			return err
		}
		if debt, ok := tx.Leftover(r.Volume.Driver, r.Volume.ExternalID); ok && r.Volume.ExternalID != "" {
			left := strings.Join(Behind(debt), "; ")
			if left == "" {
				left = "the agent waits for a possible late effect of a call"
			}
			return volume.Errorf(volume.ErrRefused, "cannot delete volume %q: leftovers of the forced deregister of %q still exist: %s",
				id, debt.Volume.ID, left).WithHint("volctl node status")
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
	if err := s.destroy(ctx, v); err != nil {
		return s.notDeleted(ctx, v, err, resumed)
	}

	for _, left := range s.unguard(id, func(volume.Record) error { return nil }) {
		s.say(volume.Record{Volume: v}, "warning", "%s", left)
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

func (s *Service) destroy(ctx context.Context, v volume.Volume) error {
	p, secrets, err := s.reach(v)
	if err != nil {
		return err
	}
	return call.Run(ctx, p, call.DeleteVolumeRequest{ExternalID: v.ExternalID, Secrets: secrets})
}

// notDeleted withdraws the intent to delete if the plugin certainly deleted nothing. A refusal of
// this call proves nothing about an earlier delete that did not finish.
func (s *Service) notDeleted(ctx context.Context, v volume.Volume, cause error, resumed bool) error {
	var ce *volume.CallError
	if resumed || errors.As(cause, &ce) && ce.Uncertain() {
		return unclear(call.DeleteVolume, cause, &volume.Error{
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

func unknown(id string) error {
	return volume.Errorf(volume.ErrNotFound, "no volume %q", id).WithHint("volctl volume list")
}

// refusal returns the error for a request that the plugin rejects. It returns all other errors
// unchanged.
func refusal(pluginID string, cause error) error {
	var ce *volume.CallError
	if !errors.As(cause, &ce) {
		return cause
	}

	kind := map[string]error{
		volume.CodeInvalidArgument: volume.ErrInvalid, volume.CodeOutOfRange: volume.ErrInvalid,
		volume.CodeFailedPrecondition: volume.ErrRefused, volume.CodeUnimplemented: volume.ErrRefused,
	}[ce.Code]
	if kind == nil {
		return cause
	}

	return volume.Errorf(kind, "plugin %q refuses the request: %s", pluginID, ce.Message)
}
