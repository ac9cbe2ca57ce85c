package provision

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// snapshotTask is a running request for a snapshot or for a group of snapshots.
type snapshotTask struct {
	s      *snapshotter
	intent volume.SnapshotIntent
	ask    volume.SnapshotAsk
	caps   plugin.Caps
	wait   time.Duration

	// unsure is true if an earlier call may have made the snapshot. If the plugin refuses the next
	// call, the snapshot may still exist.
	unsure bool
	last   error // the error of the last call
}

// repeatCommand returns the command that continues an unfinished snapshot.
func (t *snapshotTask) repeatCommand() string {
	if !t.intent.Group {
		return suggest.Command("volctl volume snapshot create %s %s", t.intent.Volumes[0], t.intent.Name)
	}
	return suggest.Command("volctl volume snapshot group create %s %s", t.intent.Name, t.intent.Volumes)
}

// addVolume adds a volume to the request. It refuses a volume of another plugin.
func (t *snapshotTask) addVolume(v volume.Volume) error {
	in := &t.intent
	switch {
	case v.Provision != volume.Provisioned:
		return volume.Errorf(volume.ErrRefused, "volume %q: %s has not finished", v.ID, v.Provision).
			WithRemedy(remedy.Of(remedy.ShowVolume, v.ID))
	case in.PluginID == "":
		in.PluginID, in.Driver = v.PluginID, v.Driver
	case in.PluginID != v.PluginID:
		return volume.Errorf(volume.ErrRefused, "volume %q is of plugin %q and volume %q of plugin %q: a group snapshot is made by one plugin",
			in.Volumes[0], in.PluginID, v.ID, v.PluginID)
	}

	in.Sources = append(in.Sources, v.ExternalID)
	return nil
}

// storeIntent stores the intent to make the snapshot. If an earlier request has stored the same
// intent, the task continues with the stored intent.
func (t *snapshotTask) storeIntent(ctx context.Context) error {
	return t.s.Store.Update(ctx, func(tx Tx) error {
		for i, id := range t.intent.Volumes {
			r, ok := tx.Volume(id)
			if !ok || r.Volume.ExternalID != t.intent.Sources[i] || r.Volume.Provision != volume.Provisioned {
				return volume.Errorf(volume.ErrRefused, "volume %q was changed meanwhile", id).WithRemedy(remedy.Of(remedy.ShowVolume, id))
			}
		}

		old, ok := tx.Snapshot(t.intent.Key())
		if ok && !old.Same(t.intent) {
			return volume.Errorf(volume.ErrRefused, "an earlier %s %q of %s has not finished",
				t.intent.Noun(), old.Name, strings.Join(old.Volumes, ", ")).WithHint("use another name, or check the earlier one: %s", suggest.Command("volctl volume snapshot list --plugin %s", old.PluginID))
		}
		if t.unsure = ok; ok {
			t.intent = old
			return nil
		}

		tx.PutSnapshot(t.intent)
		return nil
	})
}

// storeID stores the name of the snapshot and the id that the plugin gave it, so that users can
// refer to the snapshot by name. If the snapshot is ready, storeID deletes the intent.
func (t *snapshotTask) storeID(ctx context.Context, got call.GroupSnapshot) error {
	return t.s.Store.Update(context.WithoutCancel(ctx), func(tx Tx) error {
		if got.ID != "" {
			tx.PutSnapshotName(t.intent.Named(got.ID))
		}
		old, ok := tx.Snapshot(t.intent.Key())
		switch {
		case !ok || !old.Same(t.intent):
		case got.Ready:
			tx.DeleteSnapshot(old.Key())
		case old.ID != got.ID:
			old.ID = got.ID
			tx.PutSnapshot(old)
		}

		return nil
	})
}

// callCreate asks the plugin once for the snapshot. No other call for these volumes runs at the
// same time.
func (t *snapshotTask) callCreate(ctx context.Context) (got call.GroupSnapshot, err error) {
	fn := func() error {
		for i, id := range t.intent.Volumes {
			if _, ok := t.source(i); !ok {
				return volume.Errorf(volume.ErrRefused, "volume %q was deregistered meanwhile", id)
			}
		}

		p, secrets, err := t.provisioner()
		if err != nil {
			return err
		}
		if t.intent.Group {
			got, err = call.Do(ctx, p, call.GroupSnapshotRequest{
				Name: t.intent.Name, SourceIDs: t.intent.Sources, Parameters: t.ask.Parameters, Secrets: secrets})
			return err
		}

		one, err := call.Do(ctx, p, call.SnapshotRequest{
			Name: t.intent.Name, SourceID: t.intent.Sources[0], Parameters: t.ask.Parameters, Secrets: secrets})
		got = groupOfOne(one)
		return err
	}

	// Lock the volumes in the order of their ids, so that two requests cannot deadlock.
	for _, id := range slices.Backward(t.intent.Volumes) {
		inner := fn
		fn = func() error { return t.s.Queue.Change(ctx, id, func() error { return t.bracket(ctx, id, inner) }) }
	}

	err = fn()
	return got, err
}

// groupOfOne returns a single snapshot in the form of a group with one member.
func groupOfOne(one call.Snapshot) call.GroupSnapshot {
	return call.GroupSnapshot{ID: one.ID, Snapshots: []call.Snapshot{one}, Created: one.Created, Ready: one.Ready}
}

// bracket makes the call for one of the volumes, and announces it if the volume is shared.
func (t *snapshotTask) bracket(ctx context.Context, id string, fn func() error) error {
	r, _ := t.s.Store.Volume(id)
	method := call.CreateSnapshot
	if t.intent.Group {
		method = call.CreateGroupSnapshot
	}
	return t.s.bracket(ctx, r.Volume, method, fn)
}

// only returns the volume of a snapshot of one volume. For a group, it returns an empty volume.
func (t *snapshotTask) only() volume.Volume {
	if t.intent.Group {
		return volume.Volume{}
	}
	v, _ := t.source(0)
	return v
}

// source returns the volume with index i of the request. It returns false if the volume has been
// deregistered, or if its id now belongs to other storage.
func (t *snapshotTask) source(i int) (v volume.Volume, ok bool) {
	r, ok := t.s.Store.Volume(t.intent.Volumes[i])
	return r.Volume, ok && r.Volume.Driver == t.intent.Driver && r.Volume.ExternalID == t.intent.Sources[i]
}

// provisioner returns the plugin and the secrets for a call. The secrets of the request override
// the secrets of the volumes.
func (t *snapshotTask) provisioner() (call.Caller, call.Secrets, error) {
	if v := t.only(); t.s.remote(v) {
		return t.s.provisioner(v)
	}
	p, all, err := t.s.provisioner(volume.Volume{PluginID: t.intent.PluginID, Secrets: t.ask.Secrets})
	if err != nil {
		return nil, nil, err
	}

	all = maps.Clone(all)
	for i := range t.intent.Volumes {
		v, ok := t.source(i)
		if !ok {
			continue // the volume was deregistered, but the plugin continues to make its snapshot
		}

		v.Secrets = maps.Clone(v.Secrets)
		maps.DeleteFunc(v.Secrets, func(name string, _ call.SecretRef) bool { _, ok := t.ask.Secrets[name]; return ok })
		own, err := t.s.Secrets(v)
		if err != nil {
			return nil, nil, err
		}

		for name, value := range own {
			if other, ok := all[name]; ok && other.Reveal() != value.Reveal() {
				return nil, nil, volume.Errorf(volume.ErrInvalid, "the volumes have different secrets %q: give the secret for the group", name).
					WithHint("--secret %s=file:PATH", name)
			}

			if all == nil {
				all = call.Secrets{}
			}
			all[name] = value
		}
	}

	return p, all, nil
}

func (t *snapshotTask) emit(typ volume.EventType, format string, args ...any) {
	for _, id := range t.intent.Volumes {
		t.s.Events(volume.Event{Type: typ, Volume: id, Plugin: t.intent.PluginID, Message: fmt.Sprintf(format, args...)})
	}
}

// createFailed returns the error for a failed create call. It deletes the intent if the plugin
// certainly made no snapshot. Otherwise the error says that a snapshot may exist.
func (t *snapshotTask) createFailed(ctx context.Context, cause error) error {
	var ce *volume.CallError
	called := errors.As(cause, &ce)
	if t.unsure || called && ce.Uncertain() {
		whose := fmt.Sprintf("plugin %q", t.intent.PluginID)
		if !called || !ce.Uncertain() {
			whose = "an earlier call"
		}
		return t.unclearError(cause, fmt.Sprintf("%v; it is unknown whether %s made %s %q, so the agent keeps the intent", cause, whose, t.intent.Noun(), t.intent.Name))
	}
	if err := t.s.dropIntent(ctx, t.intent); err != nil {
		return errors.Join(cause, err)
	}
	if !called {
		return cause
	}
	if words := rejection(t.intent.PluginID, ce); words != nil {
		return t.withCreateCall(cause, words)
	}

	return cause
}

// lateError returns the error for a snapshot that was not ready before the wait ended. The plugin
// continues to work on a snapshot that it has begun.
func (t *snapshotTask) lateError(ctx context.Context) error {
	in := t.intent
	switch {
	case in.ID != "":
		return t.withCreateCall(t.last, volume.Errorf(volume.ErrTimeout, "%s %q (id %q at plugin %q) is not ready after %s; the plugin continues",
			t.intent.Noun(), in.Name, in.ID, in.PluginID, t.wait).WithHint("to see its progress: %s; to wait for it: %s", suggest.Command("volctl volume snapshot list --plugin %s", in.PluginID), t.repeatCommand()))
	case t.unsure:
		return t.unclearError(t.last, fmt.Sprintf("after %s, plugin %q has not confirmed %s %q; it may still be working, so the agent keeps the intent",
			t.wait, in.PluginID, t.intent.Noun(), in.Name))
	default:
		return errors.Join(volume.Errorf(volume.ErrTimeout, "%s %q was not begun within %s: another call for the volume is running", t.intent.Noun(), in.Name, t.wait).
			WithRemedy(remedy.Of(remedy.ShowVolume, in.Volumes[0])), t.s.dropIntent(ctx, in))
	}
}

// goneError returns the error for a snapshot that its plugin no longer has.
func (t *snapshotTask) goneError(cause error) error {
	return t.withCreateCall(cause, volume.Errorf(nil, "plugin %q no longer has %s %q: it failed there or was deleted", t.intent.PluginID, t.intent.Noun(), t.intent.ID))
}

// unclearError returns the error for a snapshot whose outcome is unknown. The hint names the
// command that continues the snapshot, and the command that forgets it.
func (t *snapshotTask) unclearError(cause error, message string) error {
	kind := kindOf(cause)
	var ce *volume.CallError
	if errors.As(cause, &ce) && stillWorking(ce) {
		kind = volume.ErrTimeout
	}

	return t.withCreateCall(cause, volume.Errorf(kind, "%s", message).
		WithHint("%s", "repeat the command to continue: "+t.repeatCommand()+
			"; to forget the intent: "+suggest.Command("volctl volume snapshot delete %s %s --forget", t.intent.PluginID, t.intent.Name)))
}

func (t *snapshotTask) withCreateCall(cause error, words *volume.Error) error {
	step := call.CreateSnapshot
	if t.intent.Group {
		step = call.CreateGroupSnapshot
	}
	return withCall(step, cause, words)
}
