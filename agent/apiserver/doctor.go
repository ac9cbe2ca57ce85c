package apiserver

import (
	"context"
	"net/http"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/volume"
)

// Doctor compares the agent's records with the state of the host. It returns API types, because its
// implementation knows both the domain and the API.
type Doctor interface {
	Examine(ctx context.Context) api.Doctor
	Fix(ctx context.Context, ids []string) []api.DoctorFixed
}

func (s *Server) doctor(w http.ResponseWriter, r *http.Request) error {
	return s.answer(w, s.o.Doctor.Examine(r.Context()))
}

func (s *Server) doctorFix(w http.ResponseWriter, r *http.Request) error {
	var ask api.DoctorFix
	if err := body(w, r, &ask); err != nil {
		return err
	}
	if len(ask.IDs) == 0 {
		return volume.Errorf(volume.ErrInvalid, "the request names no finding to fix").WithHint("volctl doctor -o json shows the ids")
	}
	return s.answer(w, s.o.Doctor.Fix(r.Context(), ask.IDs))
}
