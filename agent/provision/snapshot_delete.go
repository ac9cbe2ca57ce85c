package provision

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// DeleteSnapshot destroys a snapshot, or a group of snapshots. With a wait, it repeats the call
// while the plugin is busy. If the plugin has a call that gets a snapshot by its id, DeleteSnapshot
// returns ErrNotFound for a snapshot that does not exist.
func (s *snapshotter) DeleteSnapshot(ctx context.Context, ref volume.SnapshotAt, wait time.Duration) error {
	l, err := s.newLookup(ctx, ref)
	if err != nil {
		return err
	}
	if err := s.checkNotName(ref); err != nil {
		return err
	}
	if ref, err = l.resolveNames(ctx, ref); err != nil {
		return err
	}

	members := ref.Members
	switch {
	case ref.Group && len(members) == 0:
		members, err = l.groupMembers(ctx, ref)
	case !ref.Group && l.info.Caps.GetSnapshot:
		err = l.checkExists(ctx, ref)
	}

	if err != nil && (!errors.Is(err, volume.ErrNotFound) || !s.hasStoredID(ref)) {
		return err
	}

	patient, cancel := withWait(ctx, wait)
	defer cancel()

	err = s.repeatWhileBusy(patient, wait, func() error {
		if ref.Group {
			return call.Run(patient, l.caller, call.DeleteGroupSnapshotRequest{ID: ref.ID, SnapshotIDs: members, Secrets: l.secrets})
		}
		return call.Run(patient, l.caller, call.DeleteSnapshotRequest{ID: ref.ID, Secrets: l.secrets})
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return deleteSnapshotError(ref, err)
	}

	s.Events(volume.Event{Type: volume.EventSnapshotDeleted, Plugin: ref.PluginID, Message: fmt.Sprintf("%s %q was deleted", ref.Noun(), ref.ID)})
	return errors.Join(s.dropIntents(ctx, l.info.Driver, ref.Group, ref.ID), s.forgetNames(ctx, l.info.Driver, ref.Group, ref.ID))
}

// hasStoredID reports whether the agent has stored the id of this snapshot. If so, a delete
// continues even if the plugin no longer has the snapshot, so that the agent forgets it.
func (s *snapshotter) hasStoredID(ref volume.SnapshotAt) bool {
	return slices.ContainsFunc(s.snapshotNames(), func(n volume.SnapshotName) bool {
		return n.PluginID == ref.PluginID && n.ID == ref.ID && n.Group == ref.Group
	})
}

// checkNotName refuses to delete a snapshot by name while the agent does not know the id of the
// snapshot. The plugin would treat the name as an unknown id, and the delete would have no effect.
func (s *snapshotter) checkNotName(ref volume.SnapshotAt) error {
	for _, i := range s.Store.Snapshots() {
		if i.PluginID != ref.PluginID || i.Group != ref.Group || i.Name != ref.ID || i.ID != "" {
			continue
		}
		t := snapshotTask{intent: i}
		return volume.Errorf(volume.ErrRefused, "cannot delete %q: it is the name of a %s without a known id at plugin %q", ref.ID, ref.Noun(), ref.PluginID).
			WithHint("%s", "to get its id: "+t.repeatCommand()+"; to forget the name: "+suggest.Command("volctl volume snapshot delete %s %s --forget", ref.PluginID, ref.ID))
	}

	return nil
}

// ForgetSnapshot deletes the intents of unfinished snapshots that have the given name or id. It
// does not call the plugin. It returns a description of each snapshot that the plugin may still
// have.
func (s *snapshotter) ForgetSnapshot(ctx context.Context, ref volume.SnapshotAt) (left []string, err error) {
	for _, i := range s.Store.Snapshots() {
		if i.PluginID != ref.PluginID || i.Name != ref.ID && (i.ID == "" || i.ID != ref.ID) {
			continue
		}
		if err := s.dropIntent(ctx, i); err != nil {
			return left, err
		}

		if i.ID != "" {
			left = append(left, fmt.Sprintf("plugin %q has %q", i.PluginID, i.ID))
		} else {
			left = append(left, fmt.Sprintf("plugin %q may have a snapshot named %q", i.PluginID, i.Name))
		}
	}

	if len(left) == 0 {
		return nil, volume.Errorf(volume.ErrNotFound, "the agent has no unfinished snapshot %q of plugin %q", ref.ID, ref.PluginID).
			WithRemedy(remedy.Of(remedy.ListSnapshots, ref.PluginID))
	}

	return left, nil
}

// repeatWhileBusy repeats the call while the plugin reports that it is busy, until ctx ends.
func (s *snapshotter) repeatWhileBusy(ctx context.Context, wait time.Duration, call func() error) error {
	for try := 1; ; try++ {
		err := call()
		var ce *volume.CallError
		if !errors.As(err, &ce) || ce.Code != volume.CodeAborted || wait == 0 || s.pause(ctx, pauses.After(try)) != nil {
			return err
		}
	}
}

// deleteSnapshotError returns the error for a delete that failed or whose outcome is unknown.
func deleteSnapshotError(ref volume.SnapshotAt, cause error) error {
	var ce *volume.CallError
	if !errors.As(cause, &ce) {
		return cause
	}

	step, again := call.DeleteSnapshot, suggest.Command("volctl volume snapshot delete %s %s -y", ref.PluginID, ref.ID)
	if ref.Group {
		step, again = call.DeleteGroupSnapshot, suggest.Command("volctl volume snapshot group delete %s %s -y", ref.PluginID, ref.ID)
	}
	if !ce.Uncertain() {
		if words := rejection(ref.PluginID, ce); words != nil {
			return withCall(step, cause, words)
		}
		return cause
	}

	kind := kindOf(cause)
	if stillWorking(ce) {
		kind = volume.ErrTimeout
	}

	return withCall(step, cause, volume.Errorf(kind, "%v; it is unknown whether %s %q still exists", cause, ref.Noun(), ref.ID).
		WithHint("%s", "repeat the delete: "+again))
}

// GroupSnapshot asks the plugin for the current state of a group of snapshots.
func (s *snapshotter) GroupSnapshot(ctx context.Context, ref volume.SnapshotAt) (call.GroupSnapshot, error) {
	ref.Group = true
	l, err := s.newLookup(ctx, ref)
	if err != nil {
		return call.GroupSnapshot{}, err
	}
	if ref, err = l.resolveNames(ctx, ref); err != nil {
		return call.GroupSnapshot{}, err
	}

	members := ref.Members
	if len(members) == 0 {
		if members, err = l.groupMembers(ctx, ref); err != nil {
			return call.GroupSnapshot{}, err
		}
	}

	got, err := call.Do(ctx, l.caller, call.GetGroupSnapshotRequest{ID: ref.ID, SnapshotIDs: members, Secrets: l.secrets})
	var ce *volume.CallError
	if errors.As(err, &ce) {
		if words := rejection(ref.PluginID, ce); words != nil {
			return got, withCall(call.GetGroupSnapshot, err, words)
		}
	}

	if err == nil && got.Ready {
		err = s.dropIntents(ctx, l.info.Driver, true, ref.ID)
	}

	return got, err
}
