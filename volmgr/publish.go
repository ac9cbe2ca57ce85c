package volmgr

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// Some plugins answer before their mount exists. The agent waits for the mount for at most
// appearWithin, and checks for it at intervals of appearEvery.
const (
	appearWithin = 2 * time.Second
	appearEvery  = 20 * time.Millisecond
)

// publishStep publishes a volume at the target of a claim, or unpublishes it.
type publishStep struct{ step }

// publish calls NodePublishVolume and checks the mount at the target.
func (s publishStep) publish() volume.Outcome {
	// 1. Make the parent directory of the target. The plugin makes the target itself.
	dir := parent(s.a.Path)
	if err := s.m.dirs.enter(dir, s.m.MakeDir); err != nil {
		return s.unsent(err)
	}
	defer s.m.dirs.leave(dir)

	// 2. Call the plugin.
	p, secrets, err := s.pluginWithSecrets()
	if err != nil {
		return s.unsent(err)
	}
	_, opts := s.capability()
	c := s.claim()
	req := call.NodePublishRequest{
		ExternalID: s.r.Volume.ExternalID, TargetPath: s.a.Path, Capability: c.Mode,
		FSType: opts.FSType, MountFlags: opts.MountFlags, MountGroup: s.group(), ReadOnly: c.ReadOnly,
		PublishContext: s.r.Node.PublishContext, VolumeContext: s.r.Volume.Context, Secrets: secrets,
	}

	if s.r.Node.Staged != volume.Absent {
		req.StagingPath = s.r.Node.StagingPath
	}
	if err := call.Run(s.ctx, p, req); err != nil {
		return s.outcome(err)
	}

	// 3. Check that the target is mounted, can be opened, and does not show an own directory of the
	// agent.
	sight := s.appear()
	if sight.Seen != volume.SeenMount {
		return s.unverified("the plugin answered OK, but nothing usable is mounted at %s: %s", s.a.Path, words(sight))
	}
	if own, err := s.m.o.Host.InTree(sight.Identity, s.m.o.Root); err != nil {
		return s.outcome(err)
	} else if own {
		out := s.unverified("the plugin answered OK, but %s shows an empty directory of the agent instead of the volume: it was not really staged", s.a.Path)
		out.StageSuspect = true
		return out
	}

	// 4. Set mount options that prevent files on the volume from giving users more rights on the
	// host.
	if err := s.restrict(c, opts.MountFlags); err != nil {
		return s.outcome(err)
	}

	// 5. If the claim is read-only, ensure that the mount is read-only.
	if c.ReadOnly {
		if out := s.readOnly(c); out.Err != nil {
			return out
		}
		sight = s.m.o.Host.Look(s.ctx, s.a.Path)
	}

	// 6. Permit other users to reach the target. Steps 4 and 5 must be done before this.
	if err := openTo(c); err != nil {
		return s.outcome(err)
	}

	return volume.Outcome{Sight: &sight, Mount: &sight.Identity, Devices: s.devices(sight.Identity), Boot: s.m.o.Host.Boot()}
}

// appear observes the target until it is mounted or until appearWithin has passed.
func (s publishStep) appear() volume.Sight {
	end := time.Now().Add(appearWithin)
	for {
		sight := s.m.o.Host.Look(s.ctx, s.a.Path)
		if sight.Seen != volume.SeenNothing || time.Now().After(end) {
			return sight
		}
		select {
		case <-time.After(appearEvery):
		case <-s.ctx.Done():
			return sight
		}
	}
}

// restrict sets the mount options that a claim needs on a target with a file system. It does
// nothing for a block device, because the option nodev would make the device unusable.
func (s publishStep) restrict(c volume.Claim, mountFlags []string) error {
	if c.Mode.Attachment == call.BlockDevice {
		return nil
	}

	flags := c.TargetFlags(mountFlags)
	if len(flags) == 0 {
		return nil
	}
	return s.m.o.Host.Restrict(s.ctx, s.a.Path, flags)
}

// readOnly returns an error unless the kernel refuses writes to the target.
func (s publishStep) readOnly(c volume.Claim) volume.Outcome {
	if c.Mode.Attachment == call.BlockDevice {
		ro, err := s.m.o.Host.BlockReadOnly(s.ctx, s.a.Path)
		if err != nil {
			return s.outcome(err)
		}
		if !ro {
			out := s.unverified("the plugin ignored read-only: the block device at %s can be written to", s.a.Path)
			out.Err.Retry = volume.RetryNever
			return out
		}

		return volume.Outcome{}
	}

	if s.m.o.Host.Look(s.ctx, s.a.Path).ReadOnly {
		return volume.Outcome{}
	}
	if err := s.m.o.Host.MakeReadOnly(s.ctx, s.a.Path); err != nil {
		return s.outcome(fmt.Errorf("the plugin ignored read-only, and %s could not be made so: %w", s.a.Path, err))
	}
	if !s.m.o.Host.Look(s.ctx, s.a.Path).ReadOnly {
		return s.unverified("the plugin ignored read-only, and %s can still be written to", s.a.Path)
	}

	return volume.Outcome{}
}

// unpublish calls NodeUnpublishVolume and then checks the mount table. If the target has no mount,
// it counts as unpublished even if the plugin returned an error. If the target has a mount, it does
// not count as unpublished even if the plugin answered OK. A call that may still be running, or
// that did not reach the plugin, never counts as done.
func (s publishStep) unpublish() volume.Outcome {
	if refused := s.foreign(); refused.Err != nil {
		return refused
	}

	p, err := s.plugin()
	if err != nil {
		return s.unsent(err)
	}

	out := s.outcome(call.Run(s.ctx, p, call.NodeUnpublishRequest{ExternalID: s.r.Volume.ExternalID, TargetPath: s.a.Path}))
	if out.Err != nil && (!out.Err.Answered || out.Err.Code == volume.CodeUnavailable) {
		return out
	}
	if out.Err != nil && out.Err.Code == volume.CodeNotFound {
		if err := s.m.o.Host.Unmount(s.ctx, s.a.Path, mount.Plain); err != nil {
			return s.outcome(err)
		}
	}

	held := s.stillMounted()
	switch {
	case held.Err != nil && out.Err != nil:
		return s.busy(out, s.a.Path)
	case held.Err != nil:
		return held
	case out.Err != nil:
		out = volume.Outcome{Warning: fmt.Sprintf("the plugin said %s: %s, but nothing is mounted at %s", out.Err.Code, out.Err.Message, s.a.Path)}
	}

	out.Sight = &volume.Sight{}
	return s.dropParent(s.cleaned(out, s.a.Path))
}

// dropParent removes the directories of an alloc that are now empty.
func (s step) dropParent(out volume.Outcome) volume.Outcome {
	if err := s.m.dropDirs(s.a.Path, rmdir); err != nil {
		out.Warning = strings.TrimPrefix(out.Warning+"; "+err.Error(), "; ")
	}
	return out
}

// rmdir removes a directory. Unlike os.Remove, it does not first try to unlink a file.
func rmdir(dir string) error {
	if err := syscall.Rmdir(dir); err != nil {
		return &os.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}

// words describes an observation in which the path has no usable mount.
func words(s volume.Sight) string {
	if s.Seen == volume.SeenNothing {
		return "it is no mount point"
	}
	return string(s.Seen) + ": " + s.Detail
}
