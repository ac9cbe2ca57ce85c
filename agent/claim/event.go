package claim

import (
	"errors"

	"github.com/volagent/volagent/volmgr/volume"
)

// decided emits an event if the agent refused or admitted a claim.
func (s *Service) decided(req request, made bool, err error) {
	switch {
	case errors.Is(err, volume.ErrRefused):
		s.say(req.Volume, req.Alloc, volume.EventRefused, err.Error())
	case err == nil && made:
		how := "admitted for writing"
		if req.ReadOnly {
			how = "admitted for reading"
		}
		s.say(req.Volume, req.Alloc, "claim-"+string(volume.Pending), how)
	}
}

func (s *Service) say(id, alloc, typ, message string) {
	if s.Events != nil {
		s.Events(volume.Event{Type: typ, Volume: id, Alloc: alloc, Message: message})
	}
}
