package apiserver

import (
	"net/http"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/volume"
)

func examine(s *Server, w http.ResponseWriter, r *http.Request) error {
	return s.answer(w, s.o.Doctor.Examine(r.Context()))
}

func fix(s *Server, w http.ResponseWriter, r *http.Request) error {
	var ask api.DoctorFix
	if err := body(w, r, &ask); err != nil {
		return err
	}
	if len(ask.IDs) == 0 {
		return volume.Errorf(volume.ErrInvalid, "the request names no finding to fix").WithHint("volctl doctor -o json shows the ids")
	}
	return s.answer(w, s.o.Doctor.Fix(r.Context(), ask.IDs))
}
