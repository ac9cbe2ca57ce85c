// Package apiserver serves the agent's HTTP API on its unix socket. It routes and decodes the
// requests, calls agent/service, and encodes the answers. The kernel reports the identity of the
// caller (SO_PEERCRED).
package apiserver

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/peer"
	"github.com/volagent/volagent/agent/service"
	"github.com/volagent/volagent/volmgr/volume"
)

// Metrics writes the metrics in the format that ContentType names.
type Metrics interface {
	Write(w io.Writer) error
	ContentType() string
}

// Options are the dependencies of a Server.
type Options struct {
	*service.Service
	Metrics Metrics

	// MayWrite reports whether a caller may change state. Only root and the members of the socket's
	// group may do so. Every caller that can open the socket may read.
	MayWrite func(peer.Peer) bool
	Log      hclog.Logger
}

// Server answers the requests of the API.
type Server struct {
	o      Options
	http   *http.Server
	cancel context.CancelCauseFunc // ends all running requests
}

// Serve answers requests on a listener until Close.
func (s *Server) Serve(l net.Listener) error {
	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Close stops accepting connections and ends the waits of running requests. It gives these requests
// until the end of ctx to send their answers, and then closes their connections.
func (s *Server) Close(ctx context.Context) error {
	s.cancel(volume.ErrStopping)
	if err := s.http.Shutdown(ctx); err != nil {
		return s.http.Close()
	}
	return nil
}

// fail sends an error as the answer.
func (s *Server) fail(w http.ResponseWriter, err error) {
	e := service.APIError(err)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(e.Code.HTTPStatus())
	s.unsent("an error", api.EncodeJSON(w, api.ErrorBody{Error: e}))
}

// unsent logs, at debug level only, that the server could not send an answer, because such an error
// means that the caller has disconnected. It ignores a nil error.
func (s *Server) unsent(what string, err error) {
	if err != nil {
		s.o.Log.Debug("cannot send "+what, "error", err)
	}
}
