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

// Some plugins answer before their mount exists. The agent waits up to appearWithin for the mount
// and checks for it at intervals of appearEvery.
const (
	appearWithin = 2 * time.Second
	appearEvery  = 20 * time.Millisecond
)

// publishStep mounts a volume at the target of a claim, or undoes that.
type publishStep struct{ step }

// publish calls NodePublishVolume and checks the mount at the target.
func (s publishStep) publish() volume.Outcome {
	// 1. Make the target's parent directory. The plugin makes the target itself.
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

	// 3. Check that the target is mounted, can be opened, and is not the agent's own directory.
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

	// 4. Set mount options, so that files on the volume cannot give users more rights on the host.
	if err := s.restrict(c, opts.MountFlags); err != nil {
		return s.outcome(err)
	}

	// 5. Ensure that the mount is read-only if the claim requests that.
	if c.ReadOnly {
		if out := s.readOnly(c); out.Err != nil {
			return out
		}
		sight = s.m.o.Host.Look(s.ctx, s.a.Path)
	}

	// 6. Let other users reach the target. Steps 4 and 5 must be done before.
	if err := openTo(c); err != nil {
		return s.outcome(err)
	}

	return volume.Outcome{Sight: &sight, Mount: &sight.Identity, Devices: s.devices(sight.Identity), Boot: s.m.o.Host.Boot()}
}

// appear observes the target until it is mounted or the time is up.
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

// restrict sets the mount options that a claim needs on a target with a file system. It skips a
// block device, because nodev would make it unusable.
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

// unpublish calls NodeUnpublishVolume and then checks the mount table, which it trusts more than
// the plugin. The target counts as unpublished if it has no mount, even if the plugin returned an
// error. If it has a mount, an OK of the plugin does not count. A call never counts as done if it may
// still be running or did not reach the plugin.
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

// dropParent removes the empty directories of an alloc.
func (s step) dropParent(out volume.Outcome) volume.Outcome {
	if err := s.m.dropDirs(s.a.Path, rmdir); err != nil {
		out.Warning = strings.TrimPrefix(out.Warning+"; "+err.Error(), "; ")
	}
	return out
}

// rmdir removes a directory like os.Remove, but without an attempt to unlink it as a file.
func rmdir(dir string) error {
	if err := syscall.Rmdir(dir); err != nil {
		return &os.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}

// words describes an observation that shows no usable mount.
func words(s volume.Sight) string {
	if s.Seen == volume.SeenNothing {
		return "it is no mount point"
	}
	return string(s.Seen) + ": " + s.Detail
}
