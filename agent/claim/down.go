package claim

import "github.com/volagent/volagent/volmgr/volume"

// errDown is the error for a claim while this host shuts down.
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
