package claim

import (
	"context"
	"errors"
	"time"

	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// awaitVolume returns the record of the requested volume. If the request waits, awaitVolume also
// waits for a volume that is about to be registered.
func (s *Service) awaitVolume(wait context.Context, req request) (volume.Record, error) {
	if err := s.fetch(wait, req); err != nil {
		return volume.Record{}, err
	}

	r, ok := s.Store.Volume(req.Volume)
	if ok {
		return r, nil
	}
	if s.Coming == nil {
		return r, unknownVolume(req.Volume)
	}

	if !req.Waits { // a cancelled context makes Coming return at once
		var cancel context.CancelFunc
		wait, cancel = context.WithCancel(wait)
		cancel()
	}

	if err := s.Coming(wait, req.Volume); err != nil {
		return r, err
	}
	if r, ok = s.Store.Volume(req.Volume); !ok {
		return r, unknownVolume(req.Volume)
	}

	return r, nil
}

// fetchEvery is the interval at which a request looks again whether the cluster is reachable.
const fetchEvery = time.Second

// fetch makes sure that this host has a record of a shared volume. If the cluster is not reachable,
// a request that waits goes on until its deadline.
func (s *Service) fetch(wait context.Context, req request) error {
	if s.Fetch == nil {
		return nil
	}

	for {
		err := s.Fetch(context.WithoutCancel(wait), req.Volume)
		if !errors.Is(err, volume.ErrPluginUnavailable) || !req.Waits {
			return err
		}

		select {
		case <-time.After(fetchEvery):
		case <-s.Down:
			return errDown
		case <-wait.Done():
			return err
		}
	}
}

func unknownVolume(id string) error {
	return volume.Errorf(volume.ErrNotFound, "no volume %q", id).WithHint("volctl volume list")
}

func (s *Service) findClaim(id, alloc string) (volume.Record, volume.Claim, error) {
	r, ok := s.Store.Volume(id)
	if !ok {
		return r, volume.Claim{}, unknownVolume(id)
	}

	c, ok := r.Claims[alloc]
	if !ok {
		return r, c, volume.Errorf(volume.ErrNotFound, "%q has no claim on volume %q", alloc, id).WithRemedy(remedy.Of(remedy.ShowVolume, id))
	}

	return r, c, nil
}

// findAdmitted returns the claim of an admitted request. Another caller may detach the claim at any
// time, so it may be gone already.
func (s *Service) findAdmitted(req request) (volume.Record, volume.Claim, error) {
	r, ok := s.Store.Volume(req.Volume)
	if !ok {
		return r, volume.Claim{}, unknownVolume(req.Volume)
	}

	c, ok := r.Claims[req.Alloc]
	if !ok {
		return r, c, detachedError(req)
	}
	return r, c, nil
}

func detachedError(req request) error {
	return volume.Errorf(volume.ErrRefused, "the claim of %q on volume %q was detached meanwhile", req.Alloc, req.Volume)
}

// checkPlugin returns an error if the plugin of the volume cannot become ready without an action of
// the operator. Waiting for such a plugin is useless.
func (s *Service) checkPlugin(r volume.Record) error {
	p := s.Plugins.View(r.Volume.PluginID)
	why := r.FinalLack(p)
	if why == "" {
		return nil
	}
	return volume.Errorf(volume.ErrPluginUnavailable, "volume %q is not mounted: %s", r.Volume.ID, why).WithRemedy(p.Remedy(r.Volume.PluginID))
}
