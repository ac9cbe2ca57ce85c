package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/peer"
	"github.com/volagent/volagent/agent/service"
	"github.com/volagent/volagent/volmgr/volume"
)

// New returns a server. The server does not listen yet.
func New(o Options) *Server {
	s := &Server{o: o}
	mux := http.NewServeMux()
	for _, r := range routes() {
		mux.HandleFunc(r.pattern, s.handle(r))
	}

	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("no route %s %s", r.Method, r.URL.Path)})
	})
	base, cancel := context.WithCancelCause(context.Background())
	s.cancel = cancel
	s.http = &http.Server{
		BaseContext:       func(net.Listener) context.Context { return base },
		Handler:           mux,
		ReadHeaderTimeout: 10 * time.Second,
		ConnContext:       peer.With,
		ErrorLog:          o.Log.StandardLogger(&hclog.StandardLoggerOptions{InferLevels: true}),
	}

	return s
}

// route is one route of the API.
type route struct {
	pattern string
	write   bool // the route changes state, or shows data that only root may see
	handler handler
}

// routes returns the routes of the API.
func routes() []route {
	return []route{
		{"GET /v1/health", false, getHealth},
		{"GET /v1/node", false, getNode},
		{"POST /v1/node/drain", true, drainNode},
		{"POST /v1/node/undrain", true, undrainNode},
		{"GET /v1/state/backup", true, takeBackup}, // a backup contains sealed secrets
		{"POST /v1/state/restore", true, restoreBackup},
		{"GET /metrics", false, writeMetrics},
		{"GET /v1/doctor", false, examine},
		{"POST /v1/doctor/fix", true, fix},
		{"GET /v1/events", false, listEvents},
		{"GET /v1/nodes", false, listHosts},
		{"GET /v1/nodes/{id}", false, getHost},
		{"POST /v1/nodes/{id}/fence", true, fenceHost},
		{"POST /v1/nodes/{id}/unfence", true, unfenceHost},
		{"POST /v1/nodes/{id}/fence-test", true, testFence},
		{"POST /v1/nodes/{id}/replace", true, replaceHost},
		{"GET /v1/volumes", false, listVolumes},
		{"GET /v1/volumes/{id}", false, getVolume},
		{"PUT /v1/volumes/{id}", true, registerVolume},
		{"POST /v1/volumes/{id}/create", true, createVolume},
		{"DELETE /v1/volumes/{id}", true, deregisterVolume},
		{"POST /v1/volumes/{id}/delete", true, deleteVolume},
		{"POST /v1/volumes/{id}/modify", true, modifyVolume},
		{"POST /v1/volumes/{id}/expand", true, expandVolume},
		{"DELETE /v1/volumes/{id}/expand", true, withdrawExpansion},
		{"POST /v1/volumes/{id}/share", true, shareVolume},
		{"DELETE /v1/volumes/{id}/share", true, unshareVolume},
		{"POST /v1/volumes/{id}/move", true, moveVolume},
		{"GET /v1/volumes/{id}/stats", false, getStats},
		{"GET /v1/volumes/{id}/report", false, getReport},
		{"GET /v1/volumes/{id}/claims/{alloc}", false, getClaim},
		{"PUT /v1/volumes/{id}/claims/{alloc}", true, makeClaim},
		{"DELETE /v1/volumes/{id}/claims/{alloc}", true, detachClaim},
		{"GET /v1/claims", false, listClaims},
		{"GET /v1/snapshots", false, listSnapshots},
		{"POST /v1/snapshots", true, createSnapshot},
		{"POST /v1/snapshots/{plugin}/{id}/delete", true, deleteSnapshot},
		{"POST /v1/snapshots/groups", true, createGroupSnapshot},
		{"GET /v1/snapshots/groups/{plugin}/{id}", false, getGroupSnapshot},
		{"POST /v1/snapshots/groups/{plugin}/{id}/delete", true, deleteGroupSnapshot},
		{"GET /v1/classes", false, listClasses},
		{"GET /v1/classes/{id}", false, getClass},
		{"GET /v1/plugins", false, listPlugins},
		{"POST /v1/plugins", true, registerPlugin},
		{"DELETE /v1/plugins/{id}", true, deregisterPlugin},
		{"GET /v1/plugins/{id}", false, getPlugin},
		{"GET /v1/plugins/{id}/logs", true, pluginLogs}, // a plugin may write secrets to its log
		{"GET /v1/plugins/{id}/volumes", false, pluginVolumes},
		{"GET /v1/plugins/{id}/health", false, pluginHealth},
		{"POST /v1/plugins/{id}/capacity", false, getCapacity}, // calls the plugin but changes nothing, so it needs no write permission
		{"POST /v1/plugins/{id}/restart", true, control(service.Plugins.Restart)},
		{"POST /v1/plugins/{id}/stop", true, control(service.Plugins.Stop)},
		{"POST /v1/plugins/{id}/start", true, control(service.Plugins.Start)},
		{"POST /v1/plugins/{id}/test", true, testPlugin},
	}
}

// handle returns the handler of a route.
func (s *Server) handle(rt route) http.HandlerFunc {
	return func(w http.ResponseWriter, hr *http.Request) {
		p := peer.Of(hr.Context())
		r := &request{Request: hr, w: w, by: service.Caller{Peer: p, MayWrite: s.o.MayWrite(p)}}
		answer, err := s.serve(rt, r)
		if err != nil && errors.Is(context.Cause(r.Context()), volume.ErrStopping) {
			// The request had no effect. The broken connection makes the caller repeat the request
			// after the agent's restart.
			panic(http.ErrAbortHandler)
		}

		switch {
		case err != nil:
			s.fail(w, err)
		case answer != nil:
			w.Header().Set("Content-Type", "application/json")
			s.unsent("an answer", api.EncodeJSON(w, answer))
		}
	}
}

// serve decodes a request and calls the service. It refuses a caller without permission before it
// decodes the request. The service checks the permission again.
func (s *Server) serve(rt route, r *request) (any, error) {
	if rt.write {
		if err := r.by.CheckWrite(); err != nil {
			return nil, err
		}
	}

	act := rt.handler(s, r)
	if r.err != nil {
		return nil, r.err
	}
	return act()
}
