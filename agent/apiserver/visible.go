package apiserver

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/peer"
)

// mayReadLogs reports whether a caller may see the logs of plugins. The logs may contain secrets
// that the agent does not know and cannot mask.
func (s *Server) mayReadLogs(ctx context.Context) bool { return s.o.MayWrite(peer.Of(ctx)) }

// forReader removes the lines of a plugin's log from an error if the caller may not read them.
func (s *Server) forReader(r *http.Request, err error) error {
	var e *api.Error
	if s.mayReadLogs(r.Context()) || !errors.As(err, &e) || e.Details["plugin_log"] == "" {
		return err
	}

	less := *e
	less.Details = maps.Clone(e.Details)
	delete(less.Details, "plugin_log")

	return &less
}

// visible returns a plugin without the data that the caller may not see.
func (s *Server) visible(ctx context.Context, p api.Plugin) api.Plugin {
	if s.mayReadLogs(ctx) {
		return p
	}

	p.LastLog, p.Parts = nil, slices.Clone(p.Parts)
	for i := range p.Parts {
		p.Parts[i].LastLog = nil
	}
	return p
}

// visiblePlugins returns all plugins without the data that the caller may not see.
func (s *Server) visiblePlugins(ctx context.Context) []api.Plugin {
	all := s.o.Plugins.List()
	for i, p := range all {
		all[i] = s.visible(ctx, p)
	}
	return all
}
