package provision

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// modifier changes the mutable parameters of volumes.
type modifier struct{ *common }

// Modify asks the plugin to change mutable parameters of a volume. The volume may be in use. Modify
// skips parameters that already have the requested value. After a crash or a timeout, the agent
// does not know which values are in effect, and the caller must repeat the same Modify.
func (s *modifier) Modify(ctx context.Context, id string, asked map[string]string) (volume.Record, volume.Change, error) {
	if len(asked) == 0 {
		return failed(volume.Errorf(volume.ErrInvalid, "no parameter to modify is given for volume %q", id))
	}
	if err := (volume.Volume{ID: id, Mutable: asked}).CheckMutable(); err != nil {
		return failed(err)
	}

	if v, shared, err := s.shared(ctx, id); err != nil || shared {
		if err != nil {
			return failed(err)
		}
		return s.modifyShared(ctx, v, asked)
	}

	r, ok := s.Store.Volume(id)
	if !ok {
		return failed(noVolume(id))
	}

	wanted := r.Volume.Mutations(asked)
	if len(wanted) == 0 {
		return r, volume.Change{Outcome: volume.Unchanged}, nil
	}

	fields := []string{r.Volume.MutableChange(wanted)}
	if err := s.checkModify(ctx, r.Volume); err != nil {
		return failed(err)
	}

	r, err := s.modify(ctx, r.Volume, wanted)
	if err != nil {
		return failed(err)
	}

	return r, volume.Change{Outcome: volume.Modified, Fields: fields}, nil
}

// checkModify refuses a modify that cannot succeed. It runs before the agent stores an intent.
func (s *modifier) checkModify(ctx context.Context, v volume.Volume) error {
	if v.Provision != volume.Provisioned {
		return volume.Errorf(volume.ErrRefused, "cannot modify volume %q: %s has not finished", v.ID, v.Provision).
			WithRemedy(remedy.Of(remedy.ShowVolume, v.ID))
	}

	info, err := s.pluginInfo(ctx, v.PluginID)
	if err == nil && s.remote(v) {
		info, err = s.awaitController(ctx, v)
	}
	if err != nil {
		return err
	}

	if !info.Caps.Modify {
		return volume.Errorf(volume.ErrRefused, "plugin %q cannot modify volumes", v.PluginID).WithRemedy(remedy.Of(remedy.ShowPlugin, v.PluginID))
	}

	return nil
}

// modify asks the plugin to change parameters of a registered volume. The call contains the secrets
// of v.
func (s *modifier) modify(ctx context.Context, v volume.Volume, wanted map[string]string) (r volume.Record, err error) {
	if _, err := s.awaitPlugin(ctx, v.PluginID); err != nil {
		return r, err
	}

	err = s.Queue.Change(ctx, v.ID, func() error {
		// 1. Check everything that can fail without the plugin. 2. Store the intent. 3. Call the
		// plugin. 4. Store the result.
		p, err := s.Plugins.Reporter(v.PluginID)
		if err != nil {
			return err
		}

		secrets, err := s.Secrets(v)
		if err != nil {
			return err
		}

		before, err := s.storeIntent(ctx, v, wanted)
		if err != nil {
			return err
		}

		err = call.Run(ctx, p, call.ModifyRequest{ExternalID: v.ExternalID, Mutable: wanted, Secrets: secrets})
		if err != nil {
			return s.modifyFailed(ctx, before, wanted, err)
		}

		r, err = s.changeVolume(context.WithoutCancel(ctx), v, func(v volume.Volume) volume.Volume { return v.Mutated(wanted) })
		return err
	})
	if err != nil {
		s.emit(volume.Record{Volume: v}, volume.EventModifyFailed, "%v", err)
		return r, err
	}

	s.emit(r, volume.EventModified, "%s", v.MutableChange(wanted))
	return r, nil
}

// storeIntent stores the intent to modify the volume. It returns the volume without this intent.
func (s *modifier) storeIntent(ctx context.Context, v volume.Volume, wanted map[string]string) (before volume.Volume, err error) {
	_, err = s.changeVolume(ctx, v, func(v volume.Volume) volume.Volume {
		before = v
		return v.Mutating(wanted)
	})

	return before, err
}

// changeVolume changes the stored volume. It fails if the id now belongs to other storage.
func (s *modifier) changeVolume(ctx context.Context, v volume.Volume, change func(volume.Volume) volume.Volume) (r volume.Record, err error) {
	err = s.Store.Update(ctx, func(tx Tx) error {
		var ok bool
		if r, ok = tx.Volume(v.ID); !ok || !r.Same(volume.Record{Volume: v}) {
			return volume.Errorf(volume.ErrRefused, "volume %q was deregistered meanwhile", v.ID)
		}
		if r.Volume.Provision != volume.Provisioned {
			return volume.Errorf(volume.ErrRefused, "cannot modify volume %q: %s has begun meanwhile", v.ID, r.Volume.Provision)
		}

		r.Volume = change(r.Volume)
		tx.PutVolume(r)
		return nil
	})

	return r, err
}

// modifyFailed returns the error for a failed modify. It deletes the intent if the plugin certainly
// changed nothing. If the outcome of an earlier modify is unknown, the intent of that modify stays.
func (s *modifier) modifyFailed(ctx context.Context, before volume.Volume, wanted map[string]string, cause error) error {
	var ce *volume.CallError
	if errors.As(cause, &ce) && ce.Uncertain() {
		return withCall(call.ControllerModify, cause, &volume.Error{
			Kind:    kindOf(cause),
			Message: fmt.Sprintf("%v; it is unknown whether volume %q was modified", cause, before.ID),
			Hint:    "repeat the modify: " + suggest.Words(volume.Modify(before.ID, pairs(wanted)...)),
		})
	}

	_, err := s.changeVolume(context.WithoutCancel(ctx), before, func(v volume.Volume) volume.Volume {
		v.Modifying = before.Modifying
		return v
	})

	return errors.Join(refusal(before.PluginID, cause), err)
}

func pairs(m map[string]string) []string {
	out := make([]string, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, k+"="+m[k])
	}
	return out
}
