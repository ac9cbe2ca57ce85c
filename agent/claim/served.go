package claim

import "github.com/volagent/volagent/volmgr/volume"

// next returns the current claim, and a channel that is closed when its volume changes again.
func (s *Service) next(req request) (<-chan struct{}, volume.Record, volume.Claim, error) {
	changed := s.Queue.Changed(req.Volume)
	r, c, err := s.find(req.Volume, req.Alloc)
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
