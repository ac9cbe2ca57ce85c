package claim

import (
	"context"

	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// known returns the record of the requested volume. If the request waits, known also waits for a
// volume that is about to be registered.
func (s *Service) known(wait context.Context, req request) (volume.Record, error) {
	r, ok := s.Store.Volume(req.Volume)
	if ok {
		return r, nil
	}
	if s.Coming == nil {
		return r, unknown(req.Volume)
	}

	if !req.Waits { // with an ended context, Coming returns at once
		var cancel context.CancelFunc
		wait, cancel = context.WithCancel(wait)
		cancel()
	}

	if err := s.Coming(wait, req.Volume); err != nil {
		return r, err
	}
	if r, ok = s.Store.Volume(req.Volume); !ok {
		return r, unknown(req.Volume)
	}

	return r, nil
}

func unknown(id string) error {
	return volume.Errorf(volume.ErrNotFound, "no volume %q", id).WithHint("volctl volume list")
}

func (s *Service) find(id, alloc string) (volume.Record, volume.Claim, error) {
	r, ok := s.Store.Volume(id)
	if !ok {
		return r, volume.Claim{}, unknown(id)
	}

	c, ok := r.Claims[alloc]
	if !ok {
		return r, c, volume.Errorf(volume.ErrNotFound, "%q has no claim on volume %q", alloc, id).WithRemedy(remedy.Of(remedy.ShowVolume, id))
	}

	return r, c, nil
}
