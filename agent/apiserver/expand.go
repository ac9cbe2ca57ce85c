package apiserver

import (
	"net/http"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/volume"
)

func expandVolume(s *Server, w http.ResponseWriter, r *http.Request) error {
	wait, err := duration(r, "wait")
	if err != nil {
		return err
	}

	var req api.ExpandRequest
	if err := body(w, r, &req); err != nil {
		return err
	}

	id := r.PathValue("id")
	if err := volume.CheckID("volume id", id); err != nil {
		return err
	}

	rec, change, err := s.o.Volumes.Expand(r.Context(), id, req.CapacityMin, wait)
	if err != nil {
		return s.withLog(err, s.pluginOf(id), id)
	}
	return s.answer(w, api.VolumeResult{Outcome: change.Outcome, Changes: change.Fields, Volume: s.describe(r.Context(), rec)})
}

func withdrawExpansion(s *Server, w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	if err := volume.CheckID("volume id", id); err != nil {
		return err
	}

	rec, change, err := s.o.Volumes.WithdrawExpansion(r.Context(), id)
	if err != nil {
		return err
	}
	return s.answer(w, api.VolumeResult{Outcome: change.Outcome, Changes: change.Fields, Volume: s.describe(r.Context(), rec)})
}
