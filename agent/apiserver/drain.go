package apiserver

import (
	"net/http"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

func drainNode(s *Server, w http.ResponseWriter, r *http.Request) error {
	wait, err := duration(r, "wait")
	if err != nil {
		return err
	}

	left, err := s.o.Drainer.Drain(r.Context(), wait)
	if err != nil {
		return err
	}
	return s.answer(w, toDrain(left))
}

func undrainNode(s *Server, w http.ResponseWriter, r *http.Request) error {
	changed, err := s.o.Drainer.Undrain(r.Context())
	if err != nil {
		return err
	}
	return s.answer(w, api.Undrained{WasDraining: changed})
}

func toDrain(o volume.Occupancy) *api.Drain {
	return &api.Drain{Safe: o.Empty(), Waiting: toOccupants(o.Waiting), Left: toOccupants(o.Left)}
}

func toOccupants(list []volume.Occupant) []api.Occupant {
	out := make([]api.Occupant, len(list))
	for i, o := range list {
		out[i] = api.Occupant{
			Volume: o.Volume, Alloc: o.Alloc, Owner: o.Owner, Message: o.Message, Command: suggest.Words(o.Command), Else: suggest.Words(o.Else),
		}
	}
	return out
}
