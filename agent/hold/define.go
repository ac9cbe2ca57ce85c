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

	v, found, err := s.Definition(ctx, id)
	if err != nil {
		return s.cannotLook(id, err)
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

// cannotLook returns the error for a volume whose definition cannot be read now.
func (s *Service) cannotLook(id string, err error) error {
	var refused *volume.Error
	if errors.As(err, &refused) && !errors.Is(err, volume.ErrPluginUnavailable) {
		return err
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	why := err.Error()
	if s.away != "" {
		why = s.awayWords()
	}
	return volume.Errorf(volume.ErrPluginUnavailable, "cannot look for volume %q in the cluster: %s", id, why).WithHint("volctl cluster status")
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
	for span := shared.Volumes(); ; {
		page, err := s.Store.Range(ctx, span, rangePage, 0)
		if err != nil {
			s.noteError(err)
			return nil, err
		}

		for _, kv := range page.KVs {
			e, err := shared.Decode[shared.Definition](kv)
			if err != nil {
				return nil, err
			}
			all = append(all, e)
			span.Key = kv.Key + "\x00"
		}
		if !page.More {
			return all, nil
		}
	}
}
