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

// mayReadLogs reports whether a caller may see what plugins wrote to their logs: they may
// hold secrets that the agent does not know.
func (s *Server) mayReadLogs(ctx context.Context) bool { return s.o.MayWrite(peer.Of(ctx)) }

// forReader takes a plugin's log out of an error for a caller who may not read it.
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

// visible is a plugin as the caller may see it.
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

// visiblePlugins are all plugins as the caller may see them.
func (s *Server) visiblePlugins(ctx context.Context) []api.Plugin {
	all := s.o.Plugins.List()
	for i, p := range all {
		all[i] = s.visible(ctx, p)
	}
	return all
}
