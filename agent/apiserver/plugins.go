package apiserver

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/volume"
)

func restartPlugin(s *Server, w http.ResponseWriter, r *http.Request) error {
	return s.control(w, r, s.o.Plugins.RestartPlugin)
}

func stopPlugin(s *Server, w http.ResponseWriter, r *http.Request) error {
	brief, err := flag(r, "until_restart")
	if err != nil {
		return err
	}
	return s.control(w, r, func(ctx context.Context, id string, which api.Part, force bool, wait time.Duration) error {
		return s.o.Plugins.StopPlugin(ctx, id, which, force, brief, wait)
	})
}

func startPlugin(s *Server, w http.ResponseWriter, r *http.Request) error {
	return s.control(w, r, func(ctx context.Context, id string, which api.Part, _ bool, wait time.Duration) error {
		return s.o.Plugins.StartPlugin(ctx, id, which, wait)
	})
}

// control performs an action on a plugin and answers with the plugin's state afterwards.
func (s *Server) control(w http.ResponseWriter, r *http.Request, do func(ctx context.Context, id string, which api.Part, force bool, wait time.Duration) error) error {
	wait, err := duration(r, "wait")
	if err != nil {
		return err
	}

	force, err := flag(r, "force")
	if err != nil {
		return err
	}

	which, err := which(r)
	if err != nil {
		return err
	}

	id := r.PathValue("id")
	if _, ok := s.o.Plugins.Get(id); !ok {
		return noPlugin(id)
	}
	if err := do(r.Context(), id, which, force, wait); err != nil {
		return s.withLog(err, id)
	}

	p, ok := s.o.Plugins.Get(id)
	if !ok {
		return noPlugin(id)
	}
	return s.answer(w, p)
}

// which reads the parts of a plugin that a request names: ?type=, ?instance=.
func which(r *http.Request) (api.Part, error) {
	w := api.Part{Type: r.URL.Query().Get("type"), Instance: r.URL.Query().Get("instance")}
	switch w.Type {
	case "", "node", "controller", "monolith":
		return w, nil
	default:
		return w, volume.Errorf(volume.ErrInvalid, "type=%q is none of node, controller, monolith", w.Type)
	}
}

// unnamed stands for the name of a plugin file in errors, if the request contains no name.
const unnamed = "the plugin file"

// registerPlugin passes the text of a plugin file to the parser unchanged, so that errors contain
// the right line numbers.
func registerPlugin(s *Server, w http.ResponseWriter, r *http.Request) error {
	wait, err := duration(r, "wait")
	if err != nil {
		return err
	}

	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return volume.Errorf(volume.ErrInvalid, "cannot read the request: %v", err)
	}

	name := r.URL.Query().Get("name")
	if name == "" {
		name = unnamed
	}
	id, outcome, err := s.o.Plugins.RegisterPlugin(r.Context(), name, text, wait)
	if err != nil {
		return s.withLog(err, id)
	}

	p, ok := s.o.Plugins.Get(id)
	if !ok {
		return noPlugin(id)
	}
	return s.answer(w, api.PluginResult{Outcome: outcome, Plugin: p})
}

// deregisterPlugin answers when no process of the plugin is running.
func deregisterPlugin(s *Server, w http.ResponseWriter, r *http.Request) error {
	wait, err := duration(r, "wait")
	if err != nil {
		return err
	}

	force, err := flag(r, "force")
	if err != nil {
		return err
	}
	if err := s.o.Plugins.DeregisterPlugin(r.Context(), r.PathValue("id"), force, wait); err != nil {
		return err
	}
	return s.answer(w, api.Done{})
}

func noPlugin(id string) error {
	return volume.Errorf(volume.ErrNotFound, "no plugin %q", id).WithHint("volctl plugin list")
}
