package claim

import "github.com/volagent/volagent/volmgr/volume"

// admitted returns the claim of an admitted request. Another caller may detach the claim at any
// time, so it may be gone already.
func (s *Service) admitted(req request) (volume.Record, volume.Claim, error) {
	r, ok := s.Store.Volume(req.Volume)
	if !ok {
		return r, volume.Claim{}, unknown(req.Volume)
	}

	c, ok := r.Claims[req.Alloc]
	if !ok {
		return r, c, detached(req)
	}
	return r, c, nil
}

func detached(req request) error {
	return volume.Errorf(volume.ErrRefused, "the claim of %q on volume %q was detached meanwhile", req.Alloc, req.Volume)
}

// next returns the current claim, and a channel that is closed when its volume changes again.
func (s *Service) next(req request) (<-chan struct{}, volume.Record, volume.Claim, error) {
	changed := s.Queue.Changed(req.Volume)
	r, c, err := s.admitted(req)
	return changed, r, c, err
}

// unserved returns an error if the plugin of the volume cannot become ready without an action of
// the operator. Waiting for such a plugin is useless.
func (s *Service) unserved(r volume.Record) error {
	p := s.Plugins.View(r.Volume.PluginID)
	why := r.FinalLack(p)
	if why == "" {
		return nil
	}
	return volume.Errorf(volume.ErrPluginUnavailable, "volume %q is not mounted: %s", r.Volume.ID, why).WithRemedy(p.Remedy(r.Volume.PluginID))
}
