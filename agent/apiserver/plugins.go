package apiserver

import (
	"context"
	"net/http"
	"time"
)

func (s *Server) restartPlugin(w http.ResponseWriter, r *http.Request) error {
	return s.control(w, r, s.o.Plugins.RestartPlugin)
}

func (s *Server) stopPlugin(w http.ResponseWriter, r *http.Request) error {
	return s.control(w, r, s.o.Plugins.StopPlugin)
}

func (s *Server) startPlugin(w http.ResponseWriter, r *http.Request) error {
	return s.control(w, r, func(ctx context.Context, id string, _ bool, wait time.Duration) error {
		return s.o.Plugins.StartPlugin(ctx, id, wait)
	})
}

// control has something done to a plugin and answers with how it is then.
func (s *Server) control(w http.ResponseWriter, r *http.Request, do func(ctx context.Context, id string, force bool, wait time.Duration) error) error {
	wait, err := duration(r, "wait")
	if err != nil {
		return err
	}
	force, err := flag(r, "force")
	if err != nil {
		return err
	}
	id := r.PathValue("id")
	if _, ok := s.o.Plugins.Get(id); !ok {
		return noPlugin(id)
	}
	if err := do(r.Context(), id, force, wait); err != nil {
		return s.withLog(err, id)
	}
	p, ok := s.o.Plugins.Get(id)
	if !ok {
		return noPlugin(id)
	}
	return s.answer(w, p)
}
