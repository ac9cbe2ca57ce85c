package volmgr

import (
	"errors"
	"fmt"
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
	place, err := s.place(c)
	if err != nil {
		return s.noPlace(fmt.Errorf("cannot use %s as a mount point: %w", c.At, err))
	}
	defer place.Close()
	sight := s.lookAt(place)
	warning := ""
	like := mount.Like{ReadOnly: c.ReadOnly && c.Mode.Attachment == volume.FileSystem, Flags: c.Flags()}
	switch {
	case sight.Seen == volume.SeenMount && ours(c, sight): // made before a crash
		if err := s.m.o.Host.MakeLike(s.ctx, place, like); err != nil {
			return s.outcome(err)
		}
		sight.ReadOnly = sight.ReadOnly || like.ReadOnly
	case sight.Seen != volume.SeenNothing:
		return s.changeFirst(fmt.Errorf("cannot use %s as a mount point: something else is mounted there%s", c.At, detail(sight)))
	default:
		warning = s.guard(place, c)
		if sight, err = s.m.o.Host.Attach(s.ctx, c.Target, place, like); err != nil {
			return s.outcome(err)
		}
	}
	if sight.Seen != volume.SeenMount || !ours(c, sight) {
		return s.unverified("the volume was bound at %s, and something else shows there: %s", c.At, words(sight))
	}
	return volume.Outcome{Sight: &sight, Mount: &sight.Identity, Warning: warning}
}

// noPlace is a failure to get at the claim's own directory. A walk that got no answer
// may get one later; about all else something has to be changed.
func (s step) noPlace(err error) volume.Outcome {
	var hung *mount.HungError
	if errors.As(err, &hung) || s.ctx.Err() != nil {
		return s.unsent(err)
	}
	return s.changeFirst(err)
}

// lookAt is what is mounted at the claim's own directory, which nobody walks to while
// it is lent.
func (s step) lookAt(p *mount.Place) volume.Sight {
	if p != nil && p.Lent() {
		return p.Look()
	}
	return bindSight(s.m.o.Host.Look(s.ctx, s.claim().At))
}

// place is the directory, or file, that a claim's volume is to be bound at: the very
// one that the caller lends, or what its path leads to.
func (s step) place(c volume.Claim) (*mount.Place, error) {
	p := s.m.lent(s.r.Volume.ID, c)
	if p == nil {
		var err error
		if p, err = s.m.o.Host.OpenPlace(s.ctx, c.At); err != nil {
			return nil, err
		}
	}
	mode := c.Mode.Attachment
	if p.Dir() != (mode == volume.FileSystem) {
		p.Close()
		return nil, fmt.Errorf("a %s volume needs a %s there", mode, map[bool]string{true: "directory", false: "file"}[mode == volume.FileSystem])
	}
	return p, nil
}

// bindSight is what is seen where a user wants a volume. What mounts something there on
// demand (autofs) is under the volume, and nothing by itself.
func bindSight(s volume.Sight) volume.Sight {
	if mount.OnDemand(s) {
		return volume.Sight{}
	}
	return s
}

// detail is what a look says beyond what it saw.
func detail(s volume.Sight) string {
	if s.Detail == "" {
		return ""
	}
	return ": " + s.Detail
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
	if err := s.m.o.Host.Settled(s.ctx, c.At); err != nil { // else it would be bound with nobody to know of it
		return s.outcome(fmt.Errorf("cannot unmount %s yet: %w", c.At, err))
	}
	lent := s.m.lent(s.r.Volume.ID, c)
	if lent != nil {
		defer lent.Close()
	}
	sight := s.lookAt(lent)
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
