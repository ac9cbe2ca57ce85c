package service

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// Provisioner registers, creates, changes and forgets volumes.
type Provisioner interface {
	Register(ctx context.Context, spec volume.Volume, dry bool) (volume.Record, volume.Change, error)

	// CreateWithin repeats the call for at most the duration wait, as long as the plugin answers
	// that it is still working.
	CreateWithin(ctx context.Context, spec volume.Volume, dry bool, wait time.Duration) (volume.Record, volume.Change, error)
	Delete(ctx context.Context, id, confirm string) error
	Deregister(ctx context.Context, id string, force bool) (left []string, err error)
	Forget(ctx context.Context, id string) (left []string, err error)
	Modify(ctx context.Context, id string, mutable map[string]string) (volume.Record, volume.Change, error)
	Expand(ctx context.Context, id string, size int64, wait time.Duration) (volume.Record, volume.Change, error)
	WithdrawExpansion(ctx context.Context, id string) (volume.Record, volume.Change, error)
	Share(ctx context.Context, id string, force bool) (volume.Record, volume.Change, error)
	Unshare(ctx context.Context, id string) (volume.Record, volume.Change, error)

	// SharedRecord returns the record of a shared volume, also if this host does not use it.
	SharedRecord(ctx context.Context, id string) (r volume.Record, ok bool, err error)
}

// Volumes answers requests about volumes.
type Volumes struct {
	view
	do      Provisioner
	classes ClassFiles
}

// List returns all volumes, sorted by id.
func (v Volumes) List(ctx context.Context) []api.Volume { return v.describeAll(ctx) }

// Get returns a volume. If state is not empty, it waits until the volume is in that state, for at
// most the duration wait.
func (v Volumes) Get(ctx context.Context, by Caller, id, state string, wait time.Duration) (api.Volume, error) {
	if err := checkAwaited(state, api.StateMounted, api.StateFree); err != nil {
		return api.Volume{}, err
	}

	if rec, ok, err := v.elsewhere(ctx, id); ok || err != nil {
		if err != nil {
			return api.Volume{}, err
		}
		if out := v.describe(ctx, by, rec); state == "" || out.State == state {
			return out, nil
		}
	}

	over, cancel := context.WithTimeout(ctx, wait)
	defer cancel()

	for {
		if _, err := v.record(id); err != nil {
			return api.Volume{}, err
		}

		changed := v.queue.Changed(id)
		rec, err := v.record(id)
		if err != nil {
			return api.Volume{}, err
		}

		out := v.describe(ctx, by, rec)
		if state == "" || out.State == state {
			return out, nil
		}

		select {
		case <-changed:
		case <-over.Done():
			if rec, err := v.record(id); err == nil {
				out = v.describe(ctx, by, rec) // the state may have changed during the wait
			}
			return api.Volume{}, asAPI(volume.Errorf(volume.ErrTimeout, "volume %q is %s, not %s", id, out.Summary, state).
				WithRemedy(remedy.Of(remedy.ShowVolume, id)))
		}
	}
}

// elsewhere returns the record of a shared volume that this host does not use. The result ok is false
// for all other volumes.
func (v Volumes) elsewhere(ctx context.Context, id string) (r volume.Record, ok bool, err error) {
	if err := volume.CheckID("volume id", id); err != nil {
		return r, false, asAPI(err)
	}
	if rec, known := v.records.Volume(id); known && (!rec.Volume.Shared || rec.Held()) {
		return r, false, nil
	}
	r, ok, err = v.do.SharedRecord(ctx, id)
	return r, ok, asAPI(err)
}

// checkAwaited refuses to wait for a state that is not in the list.
func checkAwaited(state string, states ...string) error {
	if state == "" || slices.Contains(states, state) {
		return nil
	}
	return asAPI(volume.Errorf(volume.ErrInvalid, "cannot wait for %q; one of %v", state, states))
}

// Register registers a volume that exists at the plugin. With dry, it only reports the result.
func (v Volumes) Register(ctx context.Context, by Caller, spec api.VolumeSpec, dry bool) (api.VolumeResult, error) {
	return v.change(ctx, by, spec.PluginID, spec.ID, func() (volume.Record, volume.Change, error) {
		return v.do.Register(ctx, Volume(spec), dry)
	})
}

// Create creates a volume at the plugin and registers it. With dry, it only reports the result.
// While the plugin is busy, Create repeats the call, for at most the duration wait. If the request
// names a class, the class supplies the fields that the request leaves out.
func (v Volumes) Create(ctx context.Context, by Caller, spec api.VolumeSpec, dry bool, wait time.Duration) (api.VolumeResult, error) {
	if err := by.CheckWrite(); err != nil {
		return api.VolumeResult{}, err
	}
	spec, err := v.classified(ctx, spec)
	if err != nil {
		return api.VolumeResult{}, asAPI(err)
	}

	return v.change(ctx, by, spec.PluginID, spec.ID, func() (volume.Record, volume.Change, error) {
		return v.do.CreateWithin(ctx, Volume(spec), dry, wait)
	})
}

// Modify changes the mutable parameters of a volume.
func (v Volumes) Modify(ctx context.Context, by Caller, id string, req api.ModifyRequest) (api.VolumeResult, error) {
	return v.change(ctx, by, "", id, func() (volume.Record, volume.Change, error) { return v.do.Modify(ctx, id, req.Mutable) })
}

// Expand makes a volume larger, and waits until the expansion is complete, for at most the duration
// wait. If wait is 0, it does not wait.
func (v Volumes) Expand(ctx context.Context, by Caller, id string, req api.ExpandRequest, wait time.Duration) (api.VolumeResult, error) {
	return v.change(ctx, by, "", id, func() (rec volume.Record, change volume.Change, err error) {
		if err := volume.CheckID("volume id", id); err != nil {
			return rec, change, err
		}
		return v.do.Expand(ctx, id, req.CapacityMin, wait)
	})
}

// WithdrawExpansion cancels an expansion that the plugin has not made yet.
func (v Volumes) WithdrawExpansion(ctx context.Context, by Caller, id string) (api.VolumeResult, error) {
	return v.change(ctx, by, "", id, func() (rec volume.Record, change volume.Change, err error) {
		if err := volume.CheckID("volume id", id); err != nil {
			return rec, change, err
		}
		return v.do.WithdrawExpansion(ctx, id)
	})
}

// Share makes a volume of this host a shared volume of the cluster. Unless force is set, all hosts of
// the cluster must first answer that they do not use its storage on their own.
func (v Volumes) Share(ctx context.Context, by Caller, id string, force bool) (api.VolumeResult, error) {
	return v.change(ctx, by, "", id, func() (rec volume.Record, change volume.Change, err error) {
		if err := volume.CheckID("volume id", id); err != nil {
			return rec, change, err
		}
		return v.do.Share(ctx, id, force)
	})
}

// Unshare makes a shared volume a volume of this host.
func (v Volumes) Unshare(ctx context.Context, by Caller, id string) (api.VolumeResult, error) {
	return v.change(ctx, by, "", id, func() (rec volume.Record, change volume.Change, err error) {
		if err := volume.CheckID("volume id", id); err != nil {
			return rec, change, err
		}
		return v.do.Unshare(ctx, id)
	})
}

// change checks the permission, calls do, and describes the changed volume. If pluginID is empty,
// the record of the volume names the plugin.
func (v Volumes) change(ctx context.Context, by Caller, pluginID, id string, do func() (volume.Record, volume.Change, error)) (api.VolumeResult, error) {
	if err := by.CheckWrite(); err != nil {
		return api.VolumeResult{}, err
	}

	rec, change, err := do()
	if err != nil {
		return api.VolumeResult{}, v.explain(by, err, cmp.Or(pluginID, v.pluginOf(id)), id)
	}
	return api.VolumeResult{Outcome: change.Outcome, Changes: change.Fields, Volume: v.describe(ctx, by, rec)}, nil
}

// Deregister makes the agent forget a volume and keeps its data. With forget, which needs force,
// the agent also forgets the volume's leftovers and never removes them.
func (v Volumes) Deregister(ctx context.Context, by Caller, id string, force, forget bool) (out api.DeregisterResult, err error) {
	if err := by.CheckWrite(); err != nil {
		return out, err
	}

	switch {
	case !forget:
		out.Left, err = v.do.Deregister(ctx, id, force)
	case force:
		out.Left, err = v.do.Forget(ctx, id)
	default:
		err = volume.Errorf(volume.ErrInvalid, "forget=true needs force=true")
	}
	return out, asAPI(err)
}

// Delete destroys the data of a volume, if confirm is the volume's id.
func (v Volumes) Delete(ctx context.Context, by Caller, id, confirm string) (api.Done, error) {
	if err := by.CheckWrite(); err != nil {
		return api.Done{}, err
	}
	pluginID := v.pluginOf(id) // look up the plugin before the call, which may delete the record
	return api.Done{}, v.explain(by, v.do.Delete(ctx, id, confirm), pluginID, id)
}
