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
	if known && (!r.Volume.Shared || r.Held()) {
		return nil
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

		r.Volume = v
		return r, true
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

// Define adds a volume to the cluster.
func (s *Service) Define(ctx context.Context, v volume.Volume) error {
	return s.change(ctx, v, func(who shared.Asker, p shared.Place) (shared.Txn, error) {
		if p.Volume.Exists() && p.Volume.Value.Volume.RegisteredAt.Equal(v.RegisteredAt) {
			return shared.Txn{}, nil // an earlier transaction with a lost answer has done it
		}
		return p.Define(who, v)
	})
}

// Undefine removes a volume from the cluster. It refuses a volume that a host uses.
func (s *Service) Undefine(ctx context.Context, v volume.Volume) error {
	missing := false
	return s.change(ctx, v, func(who shared.Asker, p shared.Place) (shared.Txn, error) {
		if missing && !p.Volume.Exists() {
			return shared.Txn{}, nil // an earlier transaction with a lost answer has done it
		}
		missing = p.Volume.Exists()
		return p.Undefine(who)
	})
}

// change executes a decision about a definition. If another host changes the keys meanwhile, it
// decides again.
func (s *Service) change(ctx context.Context, v volume.Volume, by func(shared.Asker, shared.Place) (shared.Txn, error)) error {
	who, err := s.Asker()
	if err != nil {
		return err
	}

	res, err := s.Store.Do(ctx, shared.Txn{Then: shared.PlaceReads(s.Node, v)})
	for range mostTries {
		if err != nil {
			s.noteError(err)
			return s.cannotLook(v.ID, err)
		}

		place, perr := shared.ParsePlace(s.Node, v, res.Reads)
		if perr != nil {
			return perr
		}
		txn, terr := by(who, place)
		if terr != nil || len(txn.Then) == 0 {
			return terr
		}
		if res, err = shared.DoSure(ctx, s.Store, txn); err == nil && res.Done {
			return nil
		}
	}

	return volume.Errorf(volume.ErrRefused, "volume %q is changed by other hosts all the time", v.ID)
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
