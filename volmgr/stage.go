package volmgr

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

func (s controllerStep) controllerPublish() volume.Outcome {
	p, secrets, err := s.pluginWithSecrets()
	if err != nil {
		return s.unsent(err)
	}

	c, opts := s.capability()
	readOnly := !c.Access.Writable() || s.r.Node.Hold.Reader
	context, err := call.Do(s.ctx, p, call.ControllerPublishRequest{
		ExternalID: s.r.Volume.ExternalID, NodeID: s.a.NodeID, Capability: c,
		FSType: opts.FSType, MountFlags: opts.MountFlags, MountGroup: s.group(), ReadOnly: readOnly,
		VolumeContext: s.r.Volume.Context, Secrets: secrets,
	})
	if err != nil {
		return s.outcome(err)
	}
	return s.checked(p, volume.Outcome{PublishContext: context, ReadOnly: readOnly}, true)
}

// controllerUnpublish calls ControllerUnpublishVolume. It first repeats the proof that no process
// on this host uses the device, because the earlier proof may be hours old. If the controller does
// not know the volume, the volume counts as disconnected.
func (s controllerStep) controllerUnpublish() volume.Outcome {
	if held := s.prove(); held.Err != nil {
		held.Unsent = true
		return held
	}

	p, secrets, err := s.pluginWithSecrets()
	if err != nil {
		return s.unsent(err)
	}

	out := s.outcome(call.Run(s.ctx, p, call.ControllerUnpublishRequest{
		ExternalID: s.r.Volume.ExternalID, NodeID: s.a.NodeID, Secrets: secrets,
	}))

	if out.Err != nil && out.Err.Code == volume.CodeNotFound {
		return volume.Outcome{Warning: "the controller does not know it: " + out.Err.Message}
	}
	if out.Err != nil {
		return out
	}

	return s.checked(p, out, false)
}

func (s step) stage() volume.Outcome {
	if err := s.m.MakeDir(s.a.Path); err != nil {
		return s.unsent(err)
	}

	p, secrets, err := s.pluginWithSecrets()
	if err != nil {
		return s.unsent(err)
	}

	c, opts := s.capability()
	if err := call.Run(s.ctx, p, call.NodeStageRequest{
		ExternalID: s.r.Volume.ExternalID, StagingPath: s.a.Path, Capability: c,
		FSType: opts.FSType, MountFlags: opts.MountFlags, MountGroup: s.group(),
		PublishContext: s.r.Node.PublishContext, VolumeContext: s.r.Volume.Context, Secrets: secrets,
	}); err != nil {
		return s.outcome(err)
	}

	switch sight := s.m.o.Host.Look(s.ctx, s.a.Path); sight.Seen {
	case volume.SeenNothing: // a missing mount is valid, because some plugins mount the volume only in NodePublishVolume
		return volume.Outcome{Sight: &sight, Boot: s.m.o.Host.Boot()}
	case volume.SeenMount:
		return volume.Outcome{Sight: &sight, Mount: &sight.Identity, Devices: s.devices(sight.Identity), Boot: s.m.o.Host.Boot()}
	default:
		return s.unverified("the plugin answered OK, but the mount at %s does not open: %s", s.a.Path, sight.Detail)
	}
}

// devices finds the volume's block devices through the mount at the step's path. It returns nil if
// the mount shows only a directory of a file system. The device of such a mount may contain other
// data, even the host's root directory, so a proof of unmount cannot check the device. After an
// error, devices also returns nil, and the later proof then checks only the mounts.
func (s step) devices(id volume.MountIdentity) []volume.Device {
	if c, _ := s.capability(); c.Attachment == call.FileSystem && id.Root != "/" {
		return nil
	}

	devices, err := s.m.o.Host.Devices(s.ctx, s.a.Path)
	if err != nil {
		return nil
	}
	return devices
}

func (s step) unstage() volume.Outcome {
	if refused := s.foreign(); refused.Err != nil {
		return refused
	}

	p, err := s.plugin()
	if err != nil {
		return s.unsent(err)
	}

	out := s.outcome(call.Run(s.ctx, p, call.NodeUnstageRequest{ExternalID: s.r.Volume.ExternalID, StagingPath: s.a.Path}))
	if out.Err != nil && out.Err.Code == volume.CodeNotFound {
		out = volume.Outcome{Warning: "the plugin does not know the volume: " + out.Err.Message}
		if err := s.m.o.Host.Unmount(s.ctx, s.a.Path, mount.Plain); err != nil {
			return s.outcome(err)
		}
	}

	if out.Err != nil {
		return s.busy(out, s.a.Path)
	}
	if held := s.stillMounted(); held.Err != nil {
		return held
	}
	out.Sight = &volume.Sight{}
	return s.cleaned(out, s.a.Path)
}

// stillMounted returns an error if the step's path has a mount. The error names the users of the
// mount.
func (s step) stillMounted() volume.Outcome {
	return s.nothing(s.m.o.Host.Look(s.ctx, s.a.Path))
}

// nothing returns an error unless the observation shows that the step's path has no mount.
func (s step) nothing(sight volume.Sight) volume.Outcome {
	switch sight.Seen {
	case volume.SeenNothing:
		return volume.Outcome{}
	case volume.SeenHung, volume.SeenError:
		return s.unverified("whether %s is still mounted cannot be told: %s", s.a.Path, sight.Detail)
	default:
		return s.busy(s.unverified("%s is still mounted", s.a.Path), s.a.Path)
	}
}

// cleaned removes the empty directory or file that remains after an unmount. If the directory or
// file is not empty, cleaned keeps it and adds a warning.
func (s step) cleaned(out volume.Outcome, path string) volume.Outcome {
	if err := s.m.o.Host.RemoveLeftover(path); err != nil {
		out.Warning = strings.TrimPrefix(out.Warning+"; "+err.Error(), "; ")
	}
	return out
}

// prove returns an error if a mount namespace or a process on this host uses the volume's devices.
// For this proof, it is not enough that the volume was unmounted lazily.
func (s step) prove() volume.Outcome {
	paths := []string{s.r.Node.StagingPath}
	for _, c := range s.r.Claims {
		paths = append(paths, c.Target)
	}

	for _, w := range s.r.Node.Watches {
		paths = append(paths, w.Path)
	}

	paths = slices.DeleteFunc(paths, func(path string) bool { return path == "" })
	for i, sight := range s.m.o.Host.LookAll(s.ctx, paths, nil) {
		s.a.Path = paths[i]
		if held := s.nothing(sight); held.Err != nil {
			return held
		}
	}

	if s.r.Node.Boot != s.m.o.Host.Boot() {
		return volume.Outcome{} // the volume was not mounted in this boot, and its device name may now belong to another device
	}
	if u := s.r.Node.Unseen; len(u) > 0 && len(s.r.Node.Devices) == 0 {
		return s.unverified("%s was unmounted lazily, and nothing on this host tells whether it is still in use, because it names no device; a reboot ends that", u[0].Path)
	}
	for _, dev := range s.r.Node.Devices {
		users, err := s.m.o.Host.DeviceUsers(s.ctx, dev)
		if err != nil {
			return s.outcome(err)
		}
		if len(users) > 0 {
			return s.unverified("device %s is still in use: %s", dev.Number, strings.Join(users, "; "))
		}
	}

	return volume.Outcome{}
}

// parent returns the directory that contains a target. The agent removes this directory together
// with the last target in it.
func parent(target string) string { return filepath.Dir(target) }
