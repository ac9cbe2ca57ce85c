package claim

import "github.com/volagent/volagent/volmgr/volume"

// errDown refuses claims while the host shuts down.
var errDown = volume.Errorf(volume.ErrRefused, "cannot claim: this host is shutting down")

// goesDown reports whether this host is shutting down.
func (s *Service) goesDown() bool {
	select {
	case <-s.Down:
		return true
	default:
		return false
	}
}
