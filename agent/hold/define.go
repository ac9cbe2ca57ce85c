package hold

import (
	"context"
	"errors"

	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// Fetch makes sure that this host has a record of a shared volume that a claim needs. It reads the
// definition unless the host already uses the volume. It does nothing for a volume of this host, or
// if the cluster has no such volume.
func (s *Service) Fetch(ctx context.Context, id string) error {
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

// Find returns the definition of a shared volume. The result ok is false if the cluster has no such
// volume. While the cluster is not reachable, Find returns ErrPluginUnavailable. So it does if this host
// finds no volume and is not registered, because it may look in the wrong place.
func (s *Service) Find(ctx context.Context, id string) (v volume.Volume, ok bool, err error) {
	v, ok, err = s.Definition(ctx, id)
	if err == nil && !ok {
		_, err = s.Asker()
	}
	if err != nil {
		return v, false, s.cannotLook(id, err)
	}
	return v, ok, nil
}

// cannotLook returns the error for a volume whose definition cannot be read now.
func (s *Service) cannotLook(id string, err error) error {
	var refused *volume.Error
	passing := errors.Is(err, volume.ErrPluginUnavailable) || errors.Is(err, shared.ErrWentBack)
	if errors.As(err, &refused) && !passing {
		return err
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	why := err.Error()
	if s.away != "" {
		why = s.awayWords()
	}
	return volume.Errorf(volume.ErrPluginUnavailable, "cannot look for volume %q in the cluster: %s", id, why).WithHint("is etcd up, and does its log show a reason? See cluster.endpoints in the configuration of volagent")
}

// Idle forgets the record of a shared volume that this host no longer uses.
func (s *Service) Idle(ctx context.Context, r volume.Record) error {
	s.setEnding(r.Volume.ID, "")
	s.stopAwaiting(r.Volume.ID)
	s.takeCached(r.Volume.ID)
	if err := s.Records.ForgetIdle(ctx, r.Volume.ID); err != nil {
		return err
	}
	return s.explainStray(ctx, r.Volume.ID)
}

// List returns all definitions of shared volumes.
func (s *Service) List(ctx context.Context) ([]shared.Entry[shared.Definition], error) {
	var all []shared.Entry[shared.Definition]
	for part, err := range shared.RangeAll(ctx, s.Store, shared.Volumes(), rangePage) {
		if err != nil {
			s.noteError(err)
			return nil, err
		}
		if part.First {
			all = nil
		}

		for _, kv := range part.KVs {
			e, err := shared.Decode[shared.Definition](kv)
			if err != nil {
				return nil, err
			}
			all = append(all, e)
		}
	}

	return all, nil
}
