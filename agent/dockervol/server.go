package dockervol

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/peer"
	"github.com/volagent/volagent/agent/service"
	"github.com/volagent/volagent/volmgr/volume"
)

// contentType is the content type of docker's plugin protocol.
const contentType = "application/vnd.docker.plugins.v1.1+json"

// maxBody limits the size of a request, in bytes.
const maxBody = 1 << 20

// request contains the fields of all calls.
type request struct {
	Name string
	ID   string
	Opts map[string]string
}

// calls maps the path of each call to its function.
var calls = map[string]func(s *Service, ctx context.Context, from Caller, q request) (any, error){
	"/Plugin.Activate": func(*Service, context.Context, Caller, request) (any, error) {
		return map[string]any{"Implements": []string{"VolumeDriver"}}, nil
	},
	"/VolumeDriver.Capabilities": func(_ *Service, _ context.Context, from Caller, _ request) (any, error) {
		return map[string]any{"Capabilities": map[string]string{"Scope": from.scope()}}, nil
	},
	"/VolumeDriver.Create": func(s *Service, ctx context.Context, from Caller, q request) (any, error) {
		return nil, s.Create(ctx, from, q.Name, q.Opts)
	},
	"/VolumeDriver.Remove": func(s *Service, ctx context.Context, from Caller, q request) (any, error) {
		return nil, s.Remove(ctx, from, q.Name)
	},
	"/VolumeDriver.Mount": func(s *Service, ctx context.Context, from Caller, q request) (any, error) {
		path, err := s.Mount(ctx, from, q.Name, q.ID)
		return map[string]string{"Mountpoint": path}, err
	},
	"/VolumeDriver.Unmount": func(s *Service, ctx context.Context, from Caller, q request) (any, error) {
		return nil, s.Unmount(ctx, from, q.Name, q.ID)
	},
	"/VolumeDriver.Path": func(s *Service, _ context.Context, from Caller, q request) (any, error) {
		path, err := s.Path(from, q.Name)
		return map[string]string{"Mountpoint": path}, err
	},
	"/VolumeDriver.Get": func(s *Service, _ context.Context, from Caller, q request) (any, error) {
		v, err := s.Get(from, q.Name)
		return map[string]View{"Volume": v}, err
	},
	"/VolumeDriver.List": func(s *Service, _ context.Context, from Caller, _ request) (any, error) {
		return map[string][]View{"Volumes": s.List(from)}, nil
	},
}

// nameless contains the errors for calls without a volume name. Docker (seen with 20.10) repeats a
// call when its connection breaks, but sends the content only the first time. If the repeated Get
// fails, docker assumes "no such volume" and creates its own volume of that name on the host's
// disk. If the connection breaks again, docker retries until it gives up, and starts no container.
var nameless = map[string]error{
	// docker would understand any answer as "no such volume"
	"/VolumeDriver.Get":  errCutOff,
	"/VolumeDriver.Path": errCutOff,

	"/VolumeDriver.Create": errRepeated,
	"/VolumeDriver.Remove": errRepeated,
	"/VolumeDriver.Mount":  errRepeated,
	// Unmount has no entry here. After an error, docker would continue to count a mount that it
	// cannot unmount. The reaper later removes the reference.
}

var (
	// errCutOff makes the server close the connection without an answer.
	errCutOff   = errors.New("the request names no volume")
	errRepeated = volume.Errorf(volume.ErrInvalid, "the request names no volume: docker repeated it without its content, because the agent ended during the first attempt").
			WithHint("repeat the command")
)

// Server serves the volume plugin API on a socket.
type Server struct {
	s      *Service
	shared bool // the socket is that of the plugin for shared volumes
	http   *http.Server
	stop   context.CancelCauseFunc
}

// NewServer returns a server for the volumes of this host. Serve starts it.
func NewServer(s *Service) *Server { return newServer(s, false) }

// NewSharedServer returns a server for shared volumes. Serve starts it.
func NewSharedServer(s *Service) *Server { return newServer(s, true) }

func newServer(s *Service, shared bool) *Server {
	ctx, stop := context.WithCancelCause(context.Background())
	v := &Server{s: s, shared: shared, stop: stop}
	v.http = &http.Server{
		Handler: http.HandlerFunc(v.serve), ReadHeaderTimeout: 10 * time.Second,
		ConnContext: peer.With, BaseContext: func(net.Listener) context.Context { return ctx },
	}
	return v
}

// Serve answers requests until Close.
func (v *Server) Serve(l net.Listener) error {
	if err := v.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Close cancels the running calls and waits until they have ended. The runtimes repeat these calls.
func (v *Server) Close(ctx context.Context) error {
	v.stop(volume.ErrStopping)
	return v.http.Shutdown(ctx)
}

// serve answers one call.
func (v *Server) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", contentType)
	answer, err := v.call(w, r)
	stopping := err != nil && errors.Is(context.Cause(r.Context()), volume.ErrStopping)
	if stopping || errors.Is(err, errCutOff) {
		// The call has had no effect. The runtime repeats a call whose connection breaks.
		panic(http.ErrAbortHandler)
	}
	if err != nil {
		v.s.Log.Debug("refused a runtime", "call", r.URL.Path, "error", err)
		// Podman treats any answer with status 200 as a success.
		w.WriteHeader(http.StatusInternalServerError)
		answer = map[string]string{"Err": words(err)}
	}

	if answer == nil {
		answer = struct{}{}
	}
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		v.s.Log.Debug("cannot answer a runtime", "call", r.URL.Path, "error", err)
	}
}

func (v *Server) call(w http.ResponseWriter, r *http.Request) (any, error) {
	do, ok := calls[r.URL.Path]
	if !ok || r.Method != http.MethodPost {
		return nil, volume.Errorf(volume.ErrNotFound, "%s %s is not a call of the volume plugin API", r.Method, r.URL.Path)
	}

	from, err := caller(peer.Of(r.Context()))
	if err != nil {
		return nil, err
	}
	from.Shared = v.shared

	var q request
	// For some calls, podman sends no body, and docker sends "{}" or "null".
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&q); err != nil && !errors.Is(err, io.EOF) {
		if errors.Is(nameless[r.URL.Path], errCutOff) {
			return nil, errCutOff
		}
		return nil, volume.Errorf(volume.ErrInvalid, "cannot read the request: %v", err)
	}
	if err := nameless[r.URL.Path]; q.Name == "" && err != nil {
		return nil, err
	}
	return do(v.s, r.Context(), from, q)
}

// words returns the error and its hint in one line, because the runtime shows only this text.
func words(err error) string {
	e := service.APIError(err)
	text := e.Message
	if e.Hint != "" {
		text += " (hint: " + e.Hint + ")"
	}
	return strings.ReplaceAll(text, "\n", "; ")
}
