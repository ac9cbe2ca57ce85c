package provision

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// Snapshot asks a plugin for a snapshot of a volume, or of a group of volumes. With a wait, it
// repeats the call while the plugin is still working, until the snapshot is ready to use. Without a
// wait, it calls the plugin once. The agent stores the intent before the first call. It deletes the
// intent when the snapshot is ready, or when the plugin certainly made none.
func (s *snapshotter) Snapshot(ctx context.Context, ask volume.SnapshotAsk, wait time.Duration) (volume.MadeSnapshot, error) {
	t, err := s.newTask(ctx, ask)
	if err != nil {
		return volume.MadeSnapshot{}, err
	}

	t.wait = wait
	patient, cancel := withWait(ctx, wait)
	defer cancel()

	// 1. Store the intent. 2. Call the plugin until it answers. 3. Wait until the snapshot is
	// ready.
	if err := t.storeIntent(ctx); err != nil {
		return volume.MadeSnapshot{}, err
	}
	defer s.progress.set(t.intent.Key(), "")

	got, err := t.repeatCreate(patient)
	if err == nil && wait > 0 {
		got, err = t.awaitReady(patient, got)
	}
	switch {
	case ctx.Err() != nil:
		return volume.MadeSnapshot{}, ctx.Err() // the caller has cancelled the request; the intent stays
	case err != nil:
		t.emit(volume.EventSnapshotFailed, "%v", err)
		return volume.MadeSnapshot{}, err
	case got.ID != "":
		t.emit(volume.EventSnapshotCreated, "%s %q has id %q and is %s", t.intent.Noun(), t.intent.Name, got.ID, readiness(got.Ready))
	}

	return volume.MadeSnapshot{Intent: t.intent, GroupSnapshot: got}, nil
}

func readiness(ready bool) string {
	if ready {
		return "ready"
	}
	return "not ready yet"
}

// newTask checks the request as far as possible before the agent stores an intent or calls the
// plugin.
func (s *snapshotter) newTask(ctx context.Context, ask volume.SnapshotAsk) (*snapshotTask, error) {
	if err := volume.CheckID("snapshot name", ask.Name); err != nil {
		return nil, err
	}

	ids := slices.Compact(slices.Sorted(slices.Values(ask.Volumes)))
	if len(ids) == 0 || !ask.Group && len(ids) > 1 {
		return nil, volume.Errorf(volume.ErrInvalid, "a snapshot needs one volume, and a group needs at least one; %d are given", len(ids))
	}

	t := &snapshotTask{s: s, ask: ask, intent: volume.SnapshotIntent{Name: ask.Name, Group: ask.Group, Volumes: ids, Since: time.Now().UTC()}}
	for _, id := range ids {
		r, ok, err := s.sourceRecord(ctx, id)
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, noVolume(id)
		}
		if err := t.addVolume(r.Volume); err != nil {
			return nil, err
		}
	}

	if err := t.findController(ctx); err != nil {
		return nil, err
	}
	return t, nil
}

// findController waits for the plugin, and checks that it can make the snapshot. Another host can make
// a snapshot of one shared volume.
func (t *snapshotTask) findController(ctx context.Context) error {
	s, v := t.s, t.only()
	if s.remote(v) {
		if len(t.ask.Secrets) > 0 {
			return volume.Errorf(volume.ErrRefused, "another host makes the snapshot, and secrets of a command do not travel to other hosts").
				WithHint("give the secret in the volume file, or run the command on a host with a controller of plugin %q", v.PluginID)
		}
		info, err := s.awaitController(ctx, v)
		if err != nil {
			return err
		}
		t.caps = info.Caps
		return checkSnapshotCaps(v.PluginID, false, info.Caps)
	}

	info, err := s.awaitPlugin(ctx, t.intent.PluginID)
	if err != nil {
		return err
	}
	t.caps = info.Caps
	return s.checkCanSnapshot(ctx, t.intent.PluginID, t.ask.Group, info.Caps)
}

// repeatCreate repeats the create call until the plugin has finished, the plugin refuses, or the
// wait ends.
func (t *snapshotTask) repeatCreate(ctx context.Context) (call.GroupSnapshot, error) {
	for try := 1; ; try++ {
		got, err := t.callCreate(ctx)
		if err == nil {
			t.intent.ID = got.ID
			return got, t.storeID(ctx, got)
		}

		var ce *volume.CallError
		called := errors.As(err, &ce)
		switch {
		case !called && ctx.Err() != nil:
			return got, t.lateError(ctx)
		case called && t.wait == 0 && ce.Code == volume.CodeAborted:
			return got, nil // the plugin is still working, but the caller does not wait
		case !called || t.wait == 0 || !stillWorking(ce):
			return got, t.createFailed(ctx, err)
		}

		t.unsure, t.last = true, err
		t.s.progress.set(t.intent.Key(), err.Error())
		if t.s.pause(ctx, pauses.After(try)) != nil {
			return got, t.lateError(ctx)
		}
	}
}

// awaitReady waits until a new snapshot is ready to use.
func (t *snapshotTask) awaitReady(ctx context.Context, got call.GroupSnapshot) (call.GroupSnapshot, error) {
	for try := 1; !got.Ready; try++ {
		if t.last == nil {
			t.s.progress.set(t.intent.Key(), fmt.Sprintf("%q is not ready yet", got.ID))
		}
		if t.s.pause(ctx, pauses.After(try)) != nil {
			return got, t.lateError(ctx)
		}

		now, err := t.queryState(ctx, got)
		var ce *volume.CallError
		switch called := errors.As(err, &ce); {
		case err == nil:
			got, t.last = now, nil
		case ctx.Err() != nil:
			return got, t.lateError(ctx)
		case called && ce.Code == volume.CodeNotFound:
			return got, errors.Join(t.goneError(err), t.s.dropIntent(ctx, t.intent))
		case called && ce.Final(), !called && !errors.Is(err, volume.ErrPluginUnavailable):
			return got, t.unclearError(err, fmt.Sprintf("%v; it is unknown whether %s %q (id %q) is ready", err, t.intent.Noun(), t.intent.Name, got.ID))
		default:
			t.last = err
			t.s.progress.set(t.intent.Key(), err.Error())
		}
	}

	return got, t.storeID(ctx, got)
}

// queryState asks the plugin for the state of a snapshot. If the plugin has no call for the state,
// queryState repeats the create call, which also returns the state.
func (t *snapshotTask) queryState(ctx context.Context, was call.GroupSnapshot) (call.GroupSnapshot, error) {
	noCall := !t.intent.Group && !t.caps.GetSnapshot && !t.caps.ListSnapshots
	if noCall || t.s.remote(t.only()) {
		// For the same name, the plugin returns the same snapshot with its current state. A host makes
		// no other call about a snapshot for another one.
		return t.callCreate(ctx)
	}

	p, secrets, err := t.provisioner()
	if err != nil {
		return was, err
	}

	switch {
	case t.intent.Group:
		ref := call.GetGroupSnapshotRequest{ID: was.ID, Secrets: secrets}
		for _, member := range was.Snapshots {
			ref.SnapshotIDs = append(ref.SnapshotIDs, member.ID)
		}
		return call.Do(ctx, p, ref)
	case t.caps.GetSnapshot:
		one, err := call.Do(ctx, p, call.GetSnapshotRequest{ID: was.ID, Secrets: secrets})
		return groupOfOne(one), err
	default:
		page, err := call.Do(ctx, p, call.ListSnapshotsRequest{ID: was.ID, Secrets: secrets})
		for _, one := range page.Entries {
			if one.ID == was.ID {
				return groupOfOne(one), err
			}
		}

		return was, err // the snapshot is not listed yet
	}
}

// sourceRecord returns the record of the source of a snapshot. For a shared volume that this host does
// not use, it first makes a record. The queue forgets this record when nothing needs it any more.
func (s *snapshotter) sourceRecord(ctx context.Context, id string) (r volume.Record, ok bool, err error) {
	if r, ok = s.Store.Volume(id); ok || s.Cluster == nil {
		return r, ok, nil
	}
	if err := s.Cluster.Fetch(ctx, id); err != nil {
		return r, false, err
	}

	r, ok = s.Store.Volume(id)
	return r, ok, nil
}
