package plugintest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// stacked is the maximum number of mounts that takeOff unmounts at a path.
const stacked = 16

// takeOff undoes the mount at a path with a call to the plugin, and then unmounts any remaining
// mounts itself. The error describes a mount or file that takeOff could not remove.
func (s *Service) takeOff(ctx context.Context, path string, call func() error) error {
	said := call()
	for range stacked {
		if s.Host.Look(ctx, path).Seen == volume.SeenNothing {
			break
		}
		if err := s.Host.Unmount(ctx, path); err != nil {
			return fmt.Errorf("%s is still mounted: %w", path, err)
		}
	}

	if sight := s.Host.Look(ctx, path); sight.Seen != volume.SeenNothing {
		return fmt.Errorf("%s is still mounted", path)
	}
	if unanswered(said) {
		return fmt.Errorf("it is unknown whether the mount at %s was undone: %s", path, words(said))
	}
	return s.Host.Remove(path)
}

// unanswered reports whether a failed call may still be running, or was never sent. Any other error
// does not matter as long as nothing is mounted at the path.
func unanswered(err error) bool {
	var ce *volume.CallError
	if err == nil {
		return false
	}
	return !errors.As(err, &ce) || !ce.Answered || ce.Code == volume.CodeUnavailable
}

// clean undoes the leftovers of an earlier test. If forget is set, it discards the leftovers that
// it cannot undo.
func (s *Service) clean(ctx context.Context, id string, forget bool) error {
	rec := s.Records.Scratch(id)
	if rec == nil {
		return nil
	}

	left := s.undo(ctx, id, rec)
	if len(left) > 0 && !forget {
		return volume.Errorf(volume.ErrRefused, "cannot undo the test of plugin %q that began at %s: %s",
			id, rec.Begun.Format("2006-01-02 15:04"), strings.Join(left, "; ")).
			WithHint("try again, or give up the leftovers: %s", suggest.Command("volctl plugin test %s --forget", id))
	}

	words := "the leftovers of an interrupted test were undone"
	if len(left) > 0 {
		words = "leftovers were given up on request: " + strings.Join(left, "; ")
	}

	if err := s.drop(ctx, id); err != nil {
		return err
	}

	s.Events(volume.Event{Type: volume.EventPluginTestCleaned, Plugin: id, Message: words})
	return nil
}

// drop deletes the record of a test, because the test has no leftovers.
func (s *Service) drop(ctx context.Context, id string) error {
	if err := s.Records.SaveScratch(context.WithoutCancel(ctx), id, nil); err != nil {
		return fmt.Errorf("cannot delete the record of the test of plugin %q: %w", id, err)
	}
	if s.Ended != nil {
		s.Ended(id)
	}
	return nil
}

// undo removes the mounts and volumes in a test's record, and describes the leftovers that it could
// not remove. It makes every undo call, because the record does not show how far the test got.
func (s *Service) undo(ctx context.Context, id string, rec *plugin.Scratch) (left []string) {
	note := func(err error) {
		if err != nil {
			left = append(left, err.Error())
		}
	}
	caps := s.Plugins.View(id).Info.Caps
	secrets, err := s.Secrets(volume.Volume{Secrets: rec.Secrets})
	note(err)
	now := *rec
	now.Volumes = slices.Clone(rec.Volumes)
	note(s.find(ctx, id, &now, secrets))

	for _, v := range now.Volumes[:min(1, len(now.Volumes))] { // only the first volume was mounted
		if v.ExternalID == "" {
			continue
		}

		if v.Name == "" {
			note(s.unwrite(ctx, rec))
		}

		for _, path := range rec.Targets {
			note(s.takeOff(ctx, path, func() error { return s.nodeUnpublish(ctx, id, v.ExternalID, path) }))
		}

		if caps.Stage {
			note(s.takeOff(ctx, rec.Staging, func() error { return s.nodeUnstage(ctx, id, v.ExternalID, rec.Staging) }))
		}

		if caps.Attach && len(left) == 0 {
			note(s.detach(ctx, id, v.ExternalID, rec.NodeID, secrets))
		}
	}

	if len(left) == 0 { // if there are leftovers, the storage may still be in use
		for _, v := range now.Volumes {
			note(s.delete(ctx, id, v, secrets))
		}
	}

	return append(left, s.rmdirs(rec.Dirs)...)
}

// rmdirs removes the parent directories of the targets, and describes the directories that it could
// not remove.
func (s *Service) rmdirs(dirs []string) (left []string) {
	for _, dir := range dirs {
		if err := s.Host.Remove(dir); err != nil {
			left = append(left, err.Error())
		}
	}
	return left
}

// find gets the external ids of volumes that the test may have created. It calls CreateVolume with
// the same name again, which returns the existing volume.
func (s *Service) find(ctx context.Context, id string, rec *plugin.Scratch, secrets call.Secrets) error {
	for i, v := range rec.Volumes {
		if v.ExternalID != "" {
			continue
		}

		p, err := s.Plugins.Tested(id)
		if err != nil {
			return err
		}

		made, err := call.Do(ctx, p, creation(*rec, v.Name, rec.Capacity, secrets))
		switch {
		case err == nil:
			rec.Volumes[i].ExternalID, rec.Volumes[i].Context = made.ExternalID, made.Context
		case uncertain(err):
			return fmt.Errorf("it is unknown whether the storage has a volume %q: %s", v.Name, words(err))
		}
	}

	return nil
}

func creation(rec plugin.Scratch, name string, capacity int64, secrets call.Secrets) call.CreateVolumeRequest {
	return call.CreateVolumeRequest{
		Name: name, CapacityMin: capacity, Capabilities: []call.Capability{rec.Capability},
		FSType: rec.MountOptions.FSType, MountFlags: rec.MountOptions.MountFlags, Parameters: rec.Parameters, Topology: rec.Topology, Secrets: secrets,
	}
}

// unwrite removes the test's file from the user's volume if the volume is still mounted.
func (s *Service) unwrite(ctx context.Context, rec *plugin.Scratch) error {
	for _, path := range rec.Targets {
		if sight := s.Host.Look(ctx, path); sight.Seen == volume.SeenMount && !sight.ReadOnly {
			return remove(ctx, path, rec.File)
		}
	}
	return nil
}

func (s *Service) detach(ctx context.Context, id, externalID, nodeID string, secrets call.Secrets) error {
	p, err := s.Plugins.Tested(id)
	if err != nil {
		return err
	}
	err = call.Run(ctx, p, call.ControllerUnpublishRequest{ExternalID: externalID, NodeID: nodeID, Secrets: secrets})
	if err != nil && code(err) != volume.CodeNotFound {
		return fmt.Errorf("the storage volume %q may still be attached: %s", externalID, words(err))
	}
	return nil
}

// delete deletes a volume if the test created it.
func (s *Service) delete(ctx context.Context, id string, v plugin.ScratchVolume, secrets call.Secrets) error {
	if v.Name == "" || v.ExternalID == "" {
		return nil
	}

	p, err := s.Plugins.Tested(id)
	if err != nil {
		return err
	}

	err = call.Run(ctx, p, call.DeleteVolumeRequest{ExternalID: v.ExternalID, Secrets: secrets})
	if err != nil && code(err) != volume.CodeNotFound {
		return fmt.Errorf("cannot delete storage volume %q, created as %q: %s", v.ExternalID, v.Name, words(err))
	}

	return nil
}
