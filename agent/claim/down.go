package claim

import "github.com/volagent/volagent/volmgr/volume"

// errDown is why no claim can be had.
var errDown = volume.Errorf(volume.ErrRefused, "cannot claim: this host is shutting down")

// goesDown reports whether this host goes down.
func (s *Service) goesDown() bool {
	select {
	case <-s.Down:
		return true
	default:
		return false
	}
}
