package provision

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// able checks that the plugin supports snapshots. It returns the plugin and the secrets for a call.
func (s *Service) able(ctx context.Context, ref volume.SnapshotAt) (call.Caller, call.Secrets, plugin.Info, error) {
	if err := volume.CheckPluginID(ref.PluginID); err != nil {
		return nil, nil, plugin.Info{}, err
	}
	if ref.ID == "" {
		return nil, nil, plugin.Info{}, volume.Errorf(volume.ErrInvalid, "the id of the %s is missing", ref.Noun())
	}

	info, err := s.ready(ctx, ref.PluginID)
	if err == nil {
		err = cannot(ref.PluginID, ref.Group, info.Caps)
	}
	if err != nil {
		return nil, nil, info, err
	}

	p, secrets, err := s.reach(volume.Volume{PluginID: ref.PluginID, Secrets: ref.Secrets})
	return p, secrets, info, err
}

// DeleteSnapshot destroys a snapshot, or a group of snapshots. With a wait, it repeats the call
// while the plugin is busy. If the plugin can look up snapshots, DeleteSnapshot returns ErrNotFound
// for a snapshot that does not exist.
func (s *Service) DeleteSnapshot(ctx context.Context, ref volume.SnapshotAt, wait time.Duration) error {
	p, secrets, info, err := s.able(ctx, ref)
	if err != nil {
		return err
	}
	if err := s.unnamed(ref); err != nil {
		return err
	}
	if ref, err = s.named(ctx, p, info, ref, secrets); err != nil {
		return err
	}

	members := ref.Members
	switch {
	case ref.Group && len(members) == 0:
		members, err = s.members(ctx, p, info, ref, secrets)
	case !ref.Group && info.Caps.GetSnapshot:
		err = there(ctx, p, ref, secrets)
	}

	if err != nil && (!errors.Is(err, volume.ErrNotFound) || !s.begun(ref)) {
		return err
	}

	patient, cancel := within(ctx, wait)
	defer cancel()

	err = s.persist(patient, wait, func() error {
		if ref.Group {
			return call.Run(patient, p, call.DeleteGroupSnapshotRequest{ID: ref.ID, SnapshotIDs: members, Secrets: secrets})
		}
		return call.Run(patient, p, call.DeleteSnapshotRequest{ID: ref.ID, Secrets: secrets})
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return notGone(ref, err)
	}

	s.Events(volume.Event{Type: "snapshot-deleted", Plugin: ref.PluginID, Message: fmt.Sprintf("%s %q was deleted", ref.Noun(), ref.ID)})
	for _, i := range s.Store.Snapshots() {
		if i.Driver == info.Driver && i.ID == ref.ID && i.Group == ref.Group {
			err = errors.Join(err, s.drop(ctx, i))
		}
	}

	return errors.Join(err, s.forgetNames(ctx, info.Driver, ref.Group, ref.ID))
}

// there returns ErrNotFound for a snapshot that the plugin does not have. In CSI, the delete of an
// unknown id succeeds. Without this check, a misspelt id would appear to be deleted.
func there(ctx context.Context, p call.Caller, ref volume.SnapshotAt, secrets call.Secrets) error {
	_, err := call.Do(ctx, p, call.GetSnapshotRequest{ID: ref.ID, Secrets: secrets})
	var ce *volume.CallError
	if errors.As(err, &ce) && ce.Code == volume.CodeNotFound {
		return none(ref)
	}
	return ctx.Err() // the delete call reports all other errors
}

func none(ref volume.SnapshotAt) error {
	return volume.Errorf(volume.ErrNotFound, "plugin %q has no %s %q", ref.PluginID, ref.Noun(), ref.ID).
		WithHint("%s", suggest.Command("volctl volume snapshot list --plugin %s -o wide", ref.PluginID))
}

// begun reports whether the agent has stored the id of this snapshot. In that case, the delete
// continues even if the plugin no longer has the snapshot, and the agent forgets the snapshot.
func (s *Service) begun(ref volume.SnapshotAt) bool {
	return slices.ContainsFunc(s.snapshotNames(), func(n volume.SnapshotName) bool {
		return n.PluginID == ref.PluginID && n.ID == ref.ID && n.Group == ref.Group
	})
}

// unnamed refuses to delete a snapshot by name while the agent does not know the snapshot's id. The
// plugin would treat the name as an unknown id, and the delete would have no effect.
func (s *Service) unnamed(ref volume.SnapshotAt) error {
	for _, i := range s.Store.Snapshots() {
		if i.PluginID != ref.PluginID || i.Group != ref.Group || i.Name != ref.ID || i.ID != "" {
			continue
		}
		t := taking{intent: i}
		return volume.Errorf(volume.ErrRefused, "cannot delete %q: it is the name of a %s without a known id at plugin %q", ref.ID, ref.Noun(), ref.PluginID).
			WithHint("%s", "to get its id: "+t.again()+"; to forget the name: "+suggest.Command("volctl volume snapshot delete %s %s --forget", ref.PluginID, ref.ID))
	}

	return nil
}

// ForgetSnapshot deletes the intents of unfinished snapshots that have the given name or id. It
// does not call the plugin. It returns a description of each snapshot that the plugin may still
// have.
func (s *Service) ForgetSnapshot(ctx context.Context, ref volume.SnapshotAt) (left []string, err error) {
	for _, i := range s.Store.Snapshots() {
		if i.PluginID != ref.PluginID || i.Name != ref.ID && (i.ID == "" || i.ID != ref.ID) {
			continue
		}
		if err := s.drop(ctx, i); err != nil {
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

// persist repeats the call while the plugin is busy, until ctx ends.
func (s *Service) persist(ctx context.Context, wait time.Duration, call func() error) error {
	for try := 1; ; try++ {
		err := call()
		var ce *volume.CallError
		if !errors.As(err, &ce) || ce.Code != volume.CodeAborted || wait == 0 || s.pause(ctx, pauses.After(try)) != nil {
			return err
		}
	}
}

// notGone returns the error for a delete that failed, or whose outcome is unknown.
func notGone(ref volume.SnapshotAt, cause error) error {
	var ce *volume.CallError
	if !errors.As(cause, &ce) {
		return cause
	}

	step, again := call.DeleteSnapshot, suggest.Command("volctl volume snapshot delete %s %s -y", ref.PluginID, ref.ID)
	if ref.Group {
		step, again = call.DeleteGroupSnapshot, suggest.Command("volctl volume snapshot group delete %s %s -y", ref.PluginID, ref.ID)
	}
	if !ce.Uncertain() {
		if words := answered(ref.PluginID, ce); words != nil {
			return unclear(step, cause, words)
		}
		return cause
	}

	kind := kindOf(cause)
	if atIt(ce) {
		kind = volume.ErrTimeout
	}

	return unclear(step, cause, volume.Errorf(kind, "%v; it is unknown whether %s %q still exists", cause, ref.Noun(), ref.ID).
		WithHint("%s", "repeat the delete: "+again))
}

// members returns the ids of the snapshots in a group, because some plugins need these ids in calls
// about the group. If the plugin can list snapshots, members takes the ids from the list. Otherwise
// it asks for the group without its members.
func (s *Service) members(ctx context.Context, p call.Caller, info plugin.Info, ref volume.SnapshotAt, secrets call.Secrets) ([]string, error) {
	if info.Caps.ListSnapshots {
		all, err := allSnapshots(ctx, ref.PluginID, p, call.ListSnapshotsRequest{Secrets: secrets})
		if err != nil {
			return nil, err
		}

		var ids []string
		for _, one := range all {
			if one.GroupID == ref.ID {
				ids = append(ids, one.ID)
			}
		}

		if len(ids) > 0 {
			return ids, nil
		}
	}

	got, err := call.Do(ctx, p, call.GetGroupSnapshotRequest{ID: ref.ID, Secrets: secrets})
	var ce *volume.CallError
	switch {
	case errors.As(err, &ce) && ce.Code == volume.CodeInvalidArgument:
		return nil, unclear(call.GetGroupSnapshot, err, volume.Errorf(volume.ErrInvalid, "plugin %q needs the snapshots of the group: %s", ref.PluginID, ce.Message).
			WithHint("give their ids after the id of the group"))
	case errors.As(err, &ce) && ce.Code == volume.CodeNotFound:
		return nil, none(ref)
	}

	ids := make([]string, 0, len(got.Snapshots))
	for _, one := range got.Snapshots {
		ids = append(ids, one.ID)
	}

	return ids, err
}

// GroupSnapshot asks the plugin for the current state of a group of snapshots.
func (s *Service) GroupSnapshot(ctx context.Context, ref volume.SnapshotAt) (call.GroupSnapshot, error) {
	ref.Group = true
	p, secrets, info, err := s.able(ctx, ref)
	if err != nil {
		return call.GroupSnapshot{}, err
	}
	if ref, err = s.named(ctx, p, info, ref, secrets); err != nil {
		return call.GroupSnapshot{}, err
	}

	members := ref.Members
	if len(members) == 0 {
		if members, err = s.members(ctx, p, info, ref, secrets); err != nil {
			return call.GroupSnapshot{}, err
		}
	}

	got, err := call.Do(ctx, p, call.GetGroupSnapshotRequest{ID: ref.ID, SnapshotIDs: members, Secrets: secrets})
	var ce *volume.CallError
	if errors.As(err, &ce) {
		if words := answered(ref.PluginID, ce); words != nil {
			return got, unclear(call.GetGroupSnapshot, err, words)
		}
	}

	if err == nil && got.Ready {
		for _, i := range s.Store.Snapshots() {
			if i.Group && i.Driver == info.Driver && i.ID == ref.ID {
				err = errors.Join(err, s.drop(ctx, i))
			}
		}
	}

	return got, err
}
