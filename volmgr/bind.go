package volmgr

import (
	"errors"
	"fmt"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// bindStep bind-mounts a volume on the own directory of a claim, or unmounts it there.
type bindStep struct{ step }

// bind bind-mounts a published target on the claim's own directory.
func (s bindStep) bind() volume.Outcome {
	c := s.claim()
	place, err := s.place(c)
	if err != nil {
		return s.noPlace(fmt.Errorf("cannot use %s as a mount point: %w", c.At, err))
	}
	defer place.Close()

	sight := s.lookAt(place)
	warning := ""
	opts := mount.Options{ReadOnly: c.ReadOnly && c.Mode.Attachment == call.FileSystem, Flags: c.Flags()}

	switch {
	case sight.Seen == volume.SeenMount && ours(c, sight): // an earlier agent made the bind mount before it crashed
		if err := place.SetOptions(s.ctx, opts); err != nil {
			return s.outcome(err)
		}
		sight.ReadOnly = sight.ReadOnly || opts.ReadOnly
	case sight.Seen != volume.SeenNothing:
		return s.changeFirst(fmt.Errorf("cannot use %s as a mount point: something else is mounted there%s", c.At, detail(sight)))
	default:
		warning = s.guard(place, c)
		if sight, err = place.Attach(s.ctx, c.Target, opts); err != nil {
			return s.outcome(err)
		}
	}

	if sight.Seen != volume.SeenMount || !ours(c, sight) {
		return s.unverified("the volume was bound at %s, and something else shows there: %s", c.At, words(sight))
	}

	return volume.Outcome{Sight: &sight, Mount: &sight.Identity, Warning: warning}
}

// noPlace returns the outcome of a bind that could not open the claim's own directory. If the
// storage of the directory did not answer, the agent retries. In all other cases, the user must
// change something first.
func (s bindStep) noPlace(err error) volume.Outcome {
	var hung *mount.HungError
	if errors.As(err, &hung) || s.ctx.Err() != nil {
		return s.unsent(err)
	}
	return s.changeFirst(err)
}

// lookAt observes the mount on the claim's own directory. If the caller of the request has passed a
// descriptor of the directory, lookAt uses the descriptor p and does not open the path.
func (s bindStep) lookAt(p *mount.Place) volume.Sight {
	if p != nil && p.Lent() {
		return p.Look()
	}
	return bindSight(s.m.o.Host.Look(s.ctx, s.claim().At))
}

// place returns the directory or file on which the agent must bind-mount the volume. It uses the
// descriptor that the caller of the request has passed. Without a descriptor, it opens the claim's
// path.
func (s bindStep) place(c volume.Claim) (*mount.Place, error) {
	p := s.m.loans.lent(s.r.Volume.ID, c)
	if p == nil {
		var err error
		if p, err = s.m.o.Host.OpenPlace(s.ctx, c.At); err != nil {
			return nil, err
		}
	}

	mode := c.Mode.Attachment
	if p.Dir() != (mode == call.FileSystem) {
		p.Close()
		return nil, fmt.Errorf("a %s volume needs a %s there", mode, map[bool]string{true: "directory", false: "file"}[mode == call.FileSystem])
	}

	return p, nil
}

// bindSight corrects the observation of a claim's own directory. An on-demand mount (autofs) is
// below the volume's mount, so bindSight treats it as no mount.
func bindSight(s volume.Sight) volume.Sight {
	if mount.OnDemand(s) {
		return volume.Sight{}
	}
	return s
}

// detail returns the detail of an observation as a suffix for a message.
func detail(s volume.Sight) string {
	if s.Detail == "" {
		return ""
	}
	return ": " + s.Detail
}

// changeFirst returns the outcome of a failure that the agent does not retry until a user changes
// something.
func (s step) changeFirst(err error) volume.Outcome {
	out := s.unsent(err)
	out.Err.Retry = volume.RetryChange
	return out
}

// unbind unmounts the claim's own directory if the agent made the mount. Any other mount belongs to
// the user and remains. If such a mount covers the mount of the agent, the user must first remove
// the covering mount.
func (s bindStep) unbind() volume.Outcome {
	c := s.withMount(s.claim())
	if err := s.m.o.Host.Settled(s.ctx, c.At); err != nil { // without this wait, a late bind mount could remain undetected
		return s.outcome(fmt.Errorf("cannot unmount %s yet: %w", c.At, err))
	}

	lent := s.m.loans.lent(s.r.Volume.ID, c)
	if lent != nil {
		defer lent.Close()
	}

	sight := s.lookAt(lent)
	if sight.Seen == volume.SeenNothing {
		return volume.Outcome{Unseen: unmountStep(s).vanished(c.BoundMount)}
	}
	if !sight.Is(c.BoundMount) && !ours(c, sight) && (sight.Seen == volume.SeenMount || sight.Identity != volume.MountIdentity{}) {
		return s.notOurs(c)
	}
	s.a.Path = c.At
	if s.a.How != volume.WithPlugin {
		unseen, failed := unmountStep(s).climb(c.At)
		if failed.Err == nil {
			failed = s.nothing(s.lookAt(lent))
		}
		failed.Unseen = unseen
		return failed
	}
	if err := s.m.o.Host.Unmount(s.ctx, c.At, mount.Plain); err != nil {
		return s.busy(s.outcome(err), c.At)
	}

	return s.nothing(s.lookAt(lent))
}

// notOurs returns the outcome if a foreign mount is on the claim's own directory. The agent leaves
// this mount in place. If the foreign mount covers the mount of the agent, the outcome is an error.
func (s bindStep) notOurs(c volume.Claim) volume.Outcome {
	entries, err := s.m.o.Host.Under(c.At)
	if err != nil {
		return s.outcome(err)
	}

	for _, e := range entries {
		if e.Path == c.At && e.Covered && ours(c, volume.Sight{Identity: e.Identity}) {
			return s.outcome(fmt.Errorf("cannot unmount %s: another mount covers it", c.At))
		}
	}

	return volume.Outcome{Warning: fmt.Sprintf("the mount at %s does not belong to this claim and stays", c.At)}
}

// withMount returns the claim with the mount that is now at its target. A crash may have
// interrupted the publish before the agent recorded the mount.
func (s bindStep) withMount(c volume.Claim) volume.Claim {
	if sight := s.m.o.Host.Look(s.ctx, c.Target); c.Mount == nil && sight.Seen == volume.SeenMount {
		c.Mount = &sight.Identity
	}
	return c
}

// ours reports whether a mount is a bind mount of the claim's target. In that case, it shows the
// same directory of the same file system.
func ours(c volume.Claim, s volume.Sight) bool {
	return c.Mount != nil && s.Identity.Device == c.Mount.Device && s.Identity.Root == c.Mount.Root && s.Identity.Boot == c.Mount.Boot
}
