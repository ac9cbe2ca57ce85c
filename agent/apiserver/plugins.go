package apiserver

import (
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/service"
	"github.com/volagent/volagent/volmgr/volume"
)

func listPlugins(s *Server, r *request) action {
	return func() (any, error) { return s.o.Plugins.List(r.by), nil }
}

func getPlugin(s *Server, r *request) action {
	wait := r.duration("wait")
	return func() (any, error) { return s.o.Plugins.Get(r.Context(), r.by, r.PathValue("id"), r.text("for"), wait) }
}

// control returns the handler for a restart, stop or start of a plugin.
func control(do func(service.Plugins, context.Context, service.Caller, string, service.Control) (api.Plugin, error)) handler {
	return func(s *Server, r *request) action {
		how := service.Control{Parts: parts(r), Force: r.flag("force"), Brief: r.flag("until_restart"), Wait: r.duration("wait")}
		return func() (any, error) { return do(s.o.Plugins, r.Context(), r.by, r.PathValue("id"), how) }
	}
}

// parts reads the parts of a plugin that a request selects with ?type= and ?instance=.
func parts(r *request) api.Part {
	return api.Part{Type: r.text("type"), Instance: r.text("instance")}
}

func registerPlugin(s *Server, r *request) action {
	wait := r.duration("wait")
	text, err := io.ReadAll(http.MaxBytesReader(r.w, r.Body, maxBody))
	if err != nil {
		r.fail(invalid("cannot read the request: %v", err))
	}
	return func() (any, error) { return s.o.Plugins.Register(r.Context(), r.by, r.text("name"), text, wait) }
}

func deregisterPlugin(s *Server, r *request) action {
	wait, force := r.duration("wait"), r.flag("force")
	return func() (any, error) { return s.o.Plugins.Deregister(r.Context(), r.by, r.PathValue("id"), force, wait) }
}

func pluginLogs(s *Server, r *request) action {
	n, follow := r.number("lines", 100), r.flag("follow")
	return func() (any, error) {
		r.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		return nil, s.o.Plugins.Log(r.Context(), r.by, r.PathValue("id"), parts(r), n, follow, func(b []byte) error {
			_, err := r.w.Write(b)
			flush(r.w)
			return err
		})
	}
}

func pluginHealth(s *Server, r *request) action {
	return func() (any, error) { return s.o.Storage.Health(r.Context(), r.by, r.PathValue("id")) }
}

func getCapacity(s *Server, r *request) action {
	ask := body[api.CapacityRequest](r)
	return func() (any, error) { return s.o.Storage.Capacity(r.Context(), r.by, r.PathValue("id"), ask) }
}

// pluginVolumes lists the volumes that a plugin reports, one in each line, as they arrive. The list
// ends when the caller disconnects.
func pluginVolumes(s *Server, r *request) action {
	limit := r.number("limit", 0)
	return func() (any, error) {
		out := lines{w: r.w}
		more, err := s.o.Storage.Volumes(r.Context(), r.by, r.PathValue("id"), limit, func(v *api.StorageVolume) error {
			return out.send(api.StorageVolumeLine{Volume: v})
		})

		switch {
		case r.Context().Err() != nil && out.begun:
			panic(http.ErrAbortHandler) // shows the caller that the answer is incomplete
		case err == nil:
			s.unsent("the end of a list", out.send(api.StorageVolumeLine{End: &api.ListEnd{More: more}}))
		case out.begun:
			s.unsent("the end of a list", out.send(api.StorageVolumeLine{Error: service.APIError(err)}))
		default:
			return nil, err
		}
		return nil, nil
	}
}

// testPlugin sends one line after each check. The test ends when the caller disconnects.
func testPlugin(s *Server, r *request) action {
	ask := body[api.PluginTest](r)
	return func() (any, error) {
		out := lines{w: r.w}
		sum, err := s.o.Tests.Run(r.Context(), r.by, r.PathValue("id"), ask, func(c api.PluginCheck) error {
			err := out.send(api.PluginTestLine{Check: &c})
			flush(r.w)
			return err
		})

		last := api.PluginTestLine{Summary: &sum}
		switch {
		case errors.Is(context.Cause(r.Context()), volume.ErrStopping) && out.begun:
			panic(http.ErrAbortHandler) // shows the caller that the answer is incomplete
		case err != nil && !out.begun:
			return nil, err
		case err != nil:
			last.Error = service.APIError(err)
		}
		s.unsent("the end of a test", out.send(last))
		return nil, nil
	}
}
