package hold

import (
	"context"
	"crypto/rand"

	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// scopes decides whether a volume belongs to this host alone or to the cluster.
type scopes struct {
	*keys

	moving map[string]bool // volumes whose scope is being changed
}

// Move records that the scope of a volume is being changed, until the returned function is called.
// Meanwhile, no claim and no registration of this host draws conclusions from the cluster's state.
func (s *scopes) Move(id string) (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.moving[id] = true
	return func() {
		s.mu.Lock()
		delete(s.moving, id)
		s.mu.Unlock()
		if r, ok := s.Records.Volume(id); ok && r.Rescoping {
			s.CompareAgain() // the outcome is unknown
		}
	}
}

// isMoving reports whether the scope of a volume is being changed.
func (s *scopes) isMoving(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.moving[id]
}

// resolveScopes asks the cluster for the scopes of the volumes whose share or unshare was interrupted.
// Until then, these volumes make no step that depends on the scope.
func (s *scopes) resolveScopes(ctx context.Context) {
	for _, r := range s.Records.Volumes() {
		if !r.Rescoping || s.isMoving(r.Volume.ID) {
			continue
		}
		if err := s.checkOwn(ctx, r); err != nil {
			s.Log.Warn("cannot end an interrupted change of a scope; the next claim tries again", "volume", r.Volume.ID, "error", err)
		}
		s.Wake(r.Volume.ID)
	}
}

// checkOwn refuses the first claim of a volume of this host if the cluster has another volume with
// the same id. If the cluster does not answer, checkOwn permits the claim.
//
// A volume whose share or unshare was interrupted gets the scope that the cluster shows. It needs an
// answer of the cluster before its first claim.
func (s *scopes) checkOwn(ctx context.Context, r volume.Record) error {
	id := r.Volume.ID
	if r.Held() && !r.Rescoping {
		return nil
	}
	if s.isMoving(id) {
		return volume.Errorf(volume.ErrPluginUnavailable, "the scope of volume %q is being changed", id).WithRemedy(remedy.Of(remedy.ShowVolume, id))
	}

	look, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()

	_, err := s.Asker()
	var p shared.Place
	if err == nil {
		p, err = s.readPlace(look, r.Volume)
	}
	switch {
	case err != nil && r.Rescoping && !r.Held():
		return s.cannotLook(id, err)
	case err != nil:
		return nil
	case !p.Volume.Exists() && r.Rescoping && !r.Held():
		return s.keepUnused(ctx, r)
	case !p.Volume.Exists():
		return s.keepOwn(ctx, r)
	case sameVolume(p, r.Volume):
		return s.adopt(ctx, p.Shown().Volume, heldBy(p))
	case r.Held():
		return s.keepOwn(ctx, r)
	default:
		return p.Elsewhere(shared.Asker{Node: s.Node})
	}
}

// keepUnused is keepOwn for a volume that this host does not use. Another host may have taken the volume
// out of the cluster since the interruption, so all hosts are asked first.
func (s *scopes) keepUnused(ctx context.Context, r volume.Record) error {
	question, err := s.Ask(ctx, r.Volume)
	if err != nil {
		return volume.Errorf(volume.ErrRefused, "a change of the scope of volume %q was interrupted, and it is not clear which host has the volume now: %v", r.Volume.ID, err).
			WithHint("start the agents of all hosts. If another host has the volume, run here: volctl volume deregister")
	}
	s.EndQuestion(ctx, r.Volume, question)
	return s.keepOwn(ctx, r)
}

// keepOwn records that a volume belongs to this host alone, after a share or unshare was interrupted.
func (s *scopes) keepOwn(ctx context.Context, was volume.Record) error {
	if !was.Rescoping {
		return nil
	}
	return s.Records.ChangeShared(ctx, was.Volume.ID, func(r volume.Record, ok bool) (volume.Record, bool) {
		if !ok || !r.Rescoping || !r.Same(was) {
			return r, false
		}

		r.Rescoping = false
		return r, true
	})
}

// adopt makes a volume of this host shared, because the cluster shows that it is. Without a hold, other
// hosts may use the volume, so a host that uses it has lost it. It reports nothing if the record has
// changed meanwhile.
func (s *scopes) adopt(ctx context.Context, def volume.Volume, h volume.Hold) error {
	if s.isMoving(def.ID) {
		return nil // the share or unshare in progress decides
	}

	var evs []volume.Event
	err := s.Records.ChangeShared(ctx, def.ID, func(r volume.Record, ok bool) (volume.Record, bool) {
		evs = nil
		if !ok || r.Volume.Shared || !r.Same(volume.Record{Volume: def}) {
			return r, false
		}

		used := r.Held()
		r = r.Redefined(def)
		r.Rescoping, r.Node.Hold = false, h
		if used && h.State == volume.Absent {
			r.Node.Hold = volume.Hold{State: volume.Present, Operation: rand.Text()}
			r, evs = volume.LoseHold(r)
		}
		return r, true
	})
	if err == nil {
		s.Events(evs...)
	}
	return err
}

// Fetch makes sure that this host has a record of a shared volume that a claim needs. It reads the
// definition unless the host already uses the volume. It does nothing for a volume of this host, or
// if the cluster has no such volume.
func (s *scopes) Fetch(ctx context.Context, id string) error {
	r, known := s.Records.Volume(id)
	if known && r.Volume.Shared && r.Held() {
		return nil
	}
	if known && !r.Volume.Shared {
		return s.checkOwn(ctx, r)
	}

	v, found, err := s.Find(ctx, id)
	if err != nil {
		return err
	}
	if !found {
		return s.Records.ForgetIdle(ctx, id)
	}

	return s.Records.ChangeShared(ctx, id, func(r volume.Record, ok bool) (volume.Record, bool) {
		if ok && (!r.Volume.Shared || r.Held()) {
			return r, false
		}

		now := r.Redefined(v)
		return now, !ok || !now.SameDefinition(r)
	})
}
