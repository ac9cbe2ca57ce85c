package claim

import "github.com/volagent/volagent/volmgr/volume"

// next is the claim as it is now, with what is closed at the next change of its volume.
func (s *Service) next(req request) (<-chan struct{}, volume.Record, volume.Claim, error) {
	changed := s.Queue.Changed(req.Volume)
	r, c, err := s.find(req.Volume, req.Alloc)
	return changed, r, c, err
}

// unserved is the error for a volume whose plugin does not become ready by itself, so that
// waiting for it is of no use.
func (s *Service) unserved(r volume.Record) error {
	p := s.Plugins.View(r.Volume.PluginID)
	why := p.FinalLack(r)
	if why == "" {
		return nil
	}
	return volume.Errorf(volume.ErrPluginUnavailable, "volume %q is not mounted: %s", r.Volume.ID, why).WithHint("%s", p.Remedy(r.Volume.PluginID))
}

// lack is the part of a plugin that is waited for, in words; empty if it is
// something else.
func lack(p volume.PluginView, r volume.Record, at *volume.Attempt) string {
	switch {
	case at == nil:
		return p.Lack(r)
	case at.Err == nil && at.Action.Cause == volume.CausePlugin:
		return at.Action.Reason
	default:
		return ""
	}
}
