package volmgr

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// notEmpty tells rmdir's refusal of a directory that holds something.
func notEmpty(err error) bool {
	return errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EEXIST)
}

// bind mounts a published target at the directory that the user named.
func (s step) bind() volume.Outcome {
	c := s.claim()
	if err := usable(c.At, c.Mode.Attachment); err != nil {
		return s.changeFirst(err)
	}
	sight := s.m.o.Host.Look(s.ctx, c.At)
	switch {
	case sight.Seen == volume.SeenMount && ours(c, sight): // made before a crash
	case sight.Seen != volume.SeenNothing:
		return s.changeFirst(fmt.Errorf("cannot use %s as a mount point: something else is mounted there", c.At))
	default:
		if err := s.m.o.Host.Bind(s.ctx, c.Target, c.At); err != nil {
			return s.outcome(err)
		}
		sight = s.m.o.Host.Look(s.ctx, c.At)
	}
	if sight.Seen != volume.SeenMount || !ours(c, sight) {
		return s.unverified("the volume was bound at %s, and something else shows there: %s", c.At, words(sight))
	}
	if c.ReadOnly && !sight.ReadOnly && c.Mode.Attachment == volume.FileSystem {
		if err := s.m.o.Host.MakeReadOnly(s.ctx, c.At); err != nil {
			return s.outcome(err)
		}
	}
	return volume.Outcome{Mount: &sight.Identity}
}

// usable refuses a mount point that is not there, is of the wrong kind, or that a
// link leads to: whoever may change the link could aim the mount elsewhere.
func usable(at string, mode volume.AttachmentMode) error {
	end, err := filepath.EvalSymlinks(at)
	switch {
	case err != nil:
		return fmt.Errorf("cannot use %s as a mount point: %w", at, err)
	case end != at:
		return fmt.Errorf("cannot use %s as a mount point: a link leads on to %s; name that", at, end)
	}
	info, err := os.Lstat(at)
	if err != nil {
		return fmt.Errorf("cannot use %s as a mount point: %w", at, err)
	}
	if info.IsDir() != (mode == volume.FileSystem) {
		return fmt.Errorf("cannot use %s as a mount point: a %s volume needs a %s there", at, mode, map[bool]string{true: "directory", false: "file"}[mode == volume.FileSystem])
	}
	return nil
}

// changeFirst is a failure that something has to be changed about.
func (s step) changeFirst(err error) volume.Outcome {
	out := s.unsent(err)
	out.Err.Retry = volume.RetryChange
	return out
}

// unbind takes away the mount at the user's directory if it is the one that was
// made. Another one is the user's, and stays; one that lies over ours must go
// first.
func (s step) unbind() volume.Outcome {
	c := s.withMount(s.claim())
	sight := s.m.o.Host.Look(s.ctx, c.At)
	if sight.Seen == volume.SeenNothing {
		return volume.Outcome{Unseen: s.vanished(c.BoundMount)}
	}
	if !sight.Is(c.BoundMount) && !ours(c, sight) && (sight.Seen == volume.SeenMount || sight.Identity != volume.MountIdentity{}) {
		return s.notOurs(c)
	}
	s.a.Path = c.At
	if s.a.How != volume.WithPlugin {
		unseen, failed := s.climb(c.At)
		if failed.Err == nil {
			failed = s.stillMounted()
		}
		failed.Unseen = unseen
		return failed
	}
	if err := s.m.o.Host.Unmount(s.ctx, c.At, mount.Plain); err != nil {
		return s.busy(s.outcome(err), c.At)
	}
	return s.stillMounted()
}

// notOurs leaves what somebody else mounted at the user's directory, unless our
// own mount is underneath.
func (s step) notOurs(c volume.Claim) volume.Outcome {
	entries, err := s.m.o.Host.Under(c.At)
	if err != nil {
		return s.outcome(err)
	}
	for _, e := range entries {
		if e.Path == c.At && e.Covered && ours(c, volume.Sight{Identity: e.Identity}) {
			return s.outcome(fmt.Errorf("cannot unmount %s: something else is mounted over it", c.At))
		}
	}
	return volume.Outcome{Warning: fmt.Sprintf("what is mounted at %s is not this claim's and stays", c.At)}
}

// withMount completes a claim whose publish was cut short by a crash with what
// is mounted at its target now.
func (s step) withMount(c volume.Claim) volume.Claim {
	if sight := s.m.o.Host.Look(s.ctx, c.Target); c.Mount == nil && sight.Seen == volume.SeenMount {
		c.Mount = &sight.Identity
	}
	return c
}

// ours reports whether a mount shows the same directory of the same file
// system as the claim's target: it is a bind of it.
func ours(c volume.Claim, s volume.Sight) bool {
	return c.Mount != nil && s.Identity.Device == c.Mount.Device && s.Identity.Root == c.Mount.Root && s.Identity.Boot == c.Mount.Boot
}
