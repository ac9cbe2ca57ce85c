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

// Snapshot asks a plugin for a snapshot of a volume, or of a group of volumes. With a wait, it
// repeats the call while the plugin is still working, until the snapshot is ready to use. Without a
// wait, it calls the plugin once. The agent stores the intent before the first call. It deletes the
// intent when the snapshot is ready, or when the plugin certainly made none.
func (s *Service) Snapshot(ctx context.Context, ask volume.SnapshotAsk, wait time.Duration) (volume.MadeSnapshot, error) {
	t, err := s.taking(ctx, ask)
	if err != nil {
		return volume.MadeSnapshot{}, err
	}

	t.wait = wait
	patient, cancel := within(ctx, wait)
	defer cancel()

	// 1. Store the intent. 2. Call until the plugin answers. 3. Wait until the snapshot is ready.
	if err := t.intend(ctx); err != nil {
		return volume.MadeSnapshot{}, err
	}
	defer s.tell(t.intent.Key(), "")

	got, err := t.take(patient)
	if err == nil && wait > 0 {
		got, err = t.ripen(patient, got)
	}
	switch {
	case ctx.Err() != nil:
		return volume.MadeSnapshot{}, ctx.Err() // the caller has cancelled the request; the intent stays
	case err != nil:
		t.event("snapshot-failed", "%v", err)
		return volume.MadeSnapshot{}, err
	case got.ID != "":
		t.event("snapshot-created", "%s %q has id %q and is %s", t.noun(), t.intent.Name, got.ID, readiness(got.Ready))
	}

	return volume.MadeSnapshot{Intent: t.intent, GroupSnapshot: got}, nil
}

func readiness(ready bool) string {
	if ready {
		return "ready"
	}
	return "not ready yet"
}

// taking is one running request for a snapshot or for a group of snapshots.
type taking struct {
	s      *Service
	intent volume.SnapshotIntent
	ask    volume.SnapshotAsk
	caps   plugin.Caps
	wait   time.Duration

	// unsure is true if an earlier call may have made the snapshot. If the plugin refuses the next
	// call, the snapshot may still exist.
	unsure bool
	last   error // the error of the last call
}

func (t *taking) noun() string { return t.intent.Noun() }

// again returns the command that continues with an unfinished snapshot.
func (t *taking) again() string {
	if !t.intent.Group {
		return suggest.Command("volctl volume snapshot create %s %s", t.intent.Volumes[0], t.intent.Name)
	}
	return suggest.Command("volctl volume snapshot group create %s %s", t.intent.Name, t.intent.Volumes)
}

// taking checks the request as far as possible before it stores an intent or calls the plugin.
func (s *Service) taking(ctx context.Context, ask volume.SnapshotAsk) (*taking, error) {
	if err := volume.CheckID("snapshot name", ask.Name); err != nil {
		return nil, err
	}

	ids := slices.Compact(slices.Sorted(slices.Values(ask.Volumes)))
	if len(ids) == 0 || !ask.Group && len(ids) > 1 {
		return nil, volume.Errorf(volume.ErrInvalid, "a snapshot needs one volume, and a group needs at least one; %d are given", len(ids))
	}

	t := &taking{s: s, ask: ask, intent: volume.SnapshotIntent{Name: ask.Name, Group: ask.Group, Volumes: ids, Since: time.Now().UTC()}}
	for _, id := range ids {
		r, ok := s.Store.Volume(id)
		if !ok {
			return nil, unknown(id)
		}
		if err := t.add(r.Volume); err != nil {
			return nil, err
		}
	}

	info, err := s.ready(ctx, t.intent.PluginID)
	if err != nil {
		return nil, err
	}
	if err := cannot(t.intent.PluginID, ask.Group, info.Caps); err != nil {
		return nil, err
	}

	t.caps = info.Caps
	return t, nil
}

// cannot returns an error if the plugin cannot make snapshots, or group snapshots if group is set.
func cannot(pluginID string, group bool, c plugin.Caps) error {
	switch {
	case group && !c.GroupSnapshot:
		return volume.Errorf(volume.ErrRefused, "plugin %q cannot make group snapshots", pluginID).WithRemedy(remedy.Of(remedy.ShowPlugin, pluginID))
	case !group && !c.Snapshot:
		return volume.Errorf(volume.ErrRefused, "plugin %q cannot make snapshots", pluginID).WithRemedy(remedy.Of(remedy.ShowPlugin, pluginID))
	}

	return nil
}

// add adds a volume to the request. It refuses a volume of another plugin.
func (t *taking) add(v volume.Volume) error {
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

// intend stores the intent to make the snapshot. If an earlier request has stored the same intent,
// intend continues with that one.
func (t *taking) intend(ctx context.Context) error {
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
				t.noun(), old.Name, strings.Join(old.Volumes, ", ")).WithHint("use another name, or check the earlier one: %s", suggest.Command("volctl volume snapshot list --plugin %s", old.PluginID))
		}
		if t.unsure = ok; ok {
			t.intent = old
			return nil
		}

		tx.PutSnapshot(t.intent)
		return nil
	})
}

// note stores the plugin's id of the snapshot together with its name, so that users can refer to
// the snapshot by name. If the snapshot is ready, note deletes the intent.
func (t *taking) note(ctx context.Context, got call.GroupSnapshot) error {
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

// drop deletes the intent of a snapshot whose outcome is known.
func (s *Service) drop(ctx context.Context, i volume.SnapshotIntent) error {
	return s.Store.Update(context.WithoutCancel(ctx), func(tx Tx) error {
		if old, ok := tx.Snapshot(i.Key()); ok && old.Same(i) {
			tx.DeleteSnapshot(i.Key())
		}
		return nil
	})
}

// take repeats the call until the plugin has finished, the plugin refuses, or the wait ends.
func (t *taking) take(ctx context.Context) (call.GroupSnapshot, error) {
	for try := 1; ; try++ {
		got, err := t.call(ctx)
		if err == nil {
			t.intent.ID = got.ID
			return got, t.note(ctx, got)
		}

		var ce *volume.CallError
		called := errors.As(err, &ce)
		switch {
		case !called && ctx.Err() != nil:
			return got, t.late(ctx)
		case called && t.wait == 0 && ce.Code == volume.CodeAborted:
			return got, nil // the plugin is still working, but the caller does not wait
		case !called || t.wait == 0 || !atIt(ce):
			return got, t.notTaken(ctx, err)
		}

		t.unsure, t.last = true, err
		t.s.tell(t.intent.Key(), err.Error())
		if t.s.pause(ctx, pauses.After(try)) != nil {
			return got, t.late(ctx)
		}
	}
}

// atIt reports whether the plugin may still be working on the failed call.
func atIt(ce *volume.CallError) bool {
	return ce.Code == volume.CodeAborted || ce.Code == volume.CodeDeadlineExceeded
}

// call asks the plugin once for the snapshot. No other call for these volumes runs at the same
// time.
func (t *taking) call(ctx context.Context) (got call.GroupSnapshot, err error) {
	fn := func() error {
		for i, id := range t.intent.Volumes {
			if _, ok := t.source(i); !ok {
				return volume.Errorf(volume.ErrRefused, "volume %q was deregistered meanwhile", id)
			}
		}

		p, secrets, err := t.reach()
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
		got = alone(one)
		return err
	}

	// Lock the volumes in the order of their ids, so that two requests cannot deadlock.
	for _, id := range slices.Backward(t.intent.Volumes) {
		inner := fn
		fn = func() error { return t.s.Queue.Change(ctx, id, inner) }
	}

	err = fn()
	return got, err
}

// alone returns a single snapshot in the form of a group with one member.
func alone(one call.Snapshot) call.GroupSnapshot {
	return call.GroupSnapshot{ID: one.ID, Snapshots: []call.Snapshot{one}, Created: one.Created, Ready: one.Ready}
}

// source returns the i-th volume of the request. It reports false if the volume has been
// deregistered or has other storage now.
func (t *taking) source(i int) (v volume.Volume, ok bool) {
	r, ok := t.s.Store.Volume(t.intent.Volumes[i])
	return r.Volume, ok && r.Volume.Driver == t.intent.Driver && r.Volume.ExternalID == t.intent.Sources[i]
}

// reach returns the plugin and the secrets for a call. The secrets of the request override the
// secrets of the volumes.
func (t *taking) reach() (call.Caller, call.Secrets, error) {
	p, all, err := t.s.reach(volume.Volume{PluginID: t.intent.PluginID, Secrets: t.ask.Secrets})
	if err != nil {
		return nil, nil, err
	}

	all = maps.Clone(all)
	for i := range t.intent.Volumes {
		v, ok := t.source(i)
		if !ok {
			continue // the volume was deregistered, but the plugin continues with its snapshot
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

func (t *taking) event(typ, format string, args ...any) {
	for _, id := range t.intent.Volumes {
		t.s.Events(volume.Event{Type: typ, Volume: id, Plugin: t.intent.PluginID, Message: fmt.Sprintf(format, args...)})
	}
}
