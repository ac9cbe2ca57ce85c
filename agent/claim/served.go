package claim

import "github.com/volagent/volagent/volmgr/volume"

// next returns the current claim, and a channel that is closed at the next change of its volume.
func (s *Service) next(req request) (<-chan struct{}, volume.Record, volume.Claim, error) {
	changed := s.Queue.Changed(req.Volume)
	r, c, err := s.find(req.Volume, req.Alloc)
	return changed, r, c, err
}

// unserved returns an error if the volume's plugin will not become ready by itself, because waiting
// for it is useless.
func (s *Service) unserved(r volume.Record) error {
	p := s.Plugins.View(r.Volume.PluginID)
	why := r.FinalLack(p)
	if why == "" {
		return nil
	}
	return volume.Errorf(volume.ErrPluginUnavailable, "volume %q is not mounted: %s", r.Volume.ID, why).WithRemedy(p.Remedy(r.Volume.PluginID))
}

// lack names the part of a plugin that the claim waits for. It returns "" if the claim waits for
// something else.
func lack(p volume.PluginView, r volume.Record, at *volume.Attempt) string {
	switch {
	case at == nil:
		return r.Lack(p)
	case at.Err == nil && at.Action.Cause == volume.CausePlugin:
		return at.Action.Reason
	default:
		return ""
	}
}
