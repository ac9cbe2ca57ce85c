// Package apiserver serves the agent's HTTP API on its unix socket. It contains the routes and the
// permission checks. It is the only place that converts domain errors into API codes. The kernel
// reports the identity of the caller (SO_PEERCRED).
package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/peer"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// Claims makes and detaches claims.
type Claims interface {
	Claim(ctx context.Context, id string, ask volume.Request, wait time.Duration) (volume.Record, volume.Claim, error)
	Detach(ctx context.Context, id, alloc string, force bool, wait time.Duration) error
	DetachWithout(ctx context.Context, id, alloc string, force bool, how volume.Without, wait time.Duration) (left []string, err error)
}

// Volumes registers, creates and forgets volumes.
type Volumes interface {
	Register(ctx context.Context, spec volume.Volume, dry bool) (volume.Record, volume.Change, error)

	// CreateWithin repeats the call for at most the duration wait, as long as the plugin answers
	// that it is still working.
	CreateWithin(ctx context.Context, spec volume.Volume, dry bool, wait time.Duration) (volume.Record, volume.Change, error)
	Delete(ctx context.Context, id, confirm string) error
	Deregister(ctx context.Context, id string, force bool) (left []string, err error)
	Forget(ctx context.Context, id string) (left []string, err error)
	Modify(ctx context.Context, id string, mutable map[string]string) (volume.Record, volume.Change, error)
	Stats(ctx context.Context, id string) (volume.Report, error)

	// Report asks the plugin about a volume, within a time limit. LastReport returns the result of
	// the last such call.
	Report(ctx context.Context, id string, within time.Duration, storage bool) (volume.Report, error)
	LastReport(r volume.Record) volume.Report

	// List, Capacity and Health concern a plugin's storage as a whole.
	List(ctx context.Context, pluginID string, limit int, each func(call.StorageVolume) error) (more bool, err error)
	Capacity(ctx context.Context, pluginID string, q call.CapacityRequest) (call.CapacityResult, error)
	Health(ctx context.Context, pluginID string) (volume.PluginHealth, error)
	Expand(ctx context.Context, id string, size int64, wait time.Duration) (volume.Record, volume.Change, error)
	WithdrawExpansion(ctx context.Context, id string) (volume.Record, volume.Change, error)
}

// Records reads the stored records. It shows a claim as detaching if the claim's owner has ended.
type Records interface {
	Volume(id string) (volume.Record, bool)
	Volumes() []volume.Record
}

// Queue reports the current state of volumes and the changes of that state.
type Queue interface {
	Look(ctx context.Context, r volume.Record) (volume.Observed, *volume.Attempt)
	Changed(id string) <-chan struct{}
}

// Plugins reports the state of plugins and controls them. It returns API types, because its
// implementation knows both the domain and the API.
type Plugins interface {
	List() []api.Plugin
	View(id string) plugin.View
	Get(id string) (api.Plugin, bool)
	Changed(id string) <-chan struct{}

	// Log writes the last lines and, with follow, new ones until ctx ends.
	Log(ctx context.Context, id string, w api.Part, lines int, follow bool, write func([]byte) error) error

	// Tail returns the last lines of a plugin's log, without the secrets that the agent knows. It
	// returns none if another program stores the log.
	Tail(id string, lines int) []string

	// RestartPlugin, StopPlugin and StartPlugin wait for the plugin, for at most the duration wait;
	// with 0 they do not wait. The first two need force while volumes are in use through the
	// plugin.
	RestartPlugin(ctx context.Context, id string, w api.Part, force bool, wait time.Duration) error

	// A brief stop ends with this agent.
	StopPlugin(ctx context.Context, id string, w api.Part, force, brief bool, wait time.Duration) error
	StartPlugin(ctx context.Context, id string, w api.Part, wait time.Duration) error

	// RegisterPlugin registers the text of a plugin file. Errors refer to the file as name.
	// RegisterPlugin returns the id as soon as it knows the id, even with an error.
	// DeregisterPlugin removes all registrations of an id.
	RegisterPlugin(ctx context.Context, name string, text []byte, wait time.Duration) (id, outcome string, err error)
	DeregisterPlugin(ctx context.Context, id string, force bool, wait time.Duration) error
}

// Events reads the events of the last days.
type Events interface {
	// Read calls each for the events since a time, of one volume or of all. If n is not 0, it reads
	// only the last n events. It returns the number of the last event.
	Read(ctx context.Context, volumeID string, since time.Time, n int, each func(api.Event) error) (uint64, error)
	// After returns the events in memory that follow an event number, and a channel that the next
	// event closes.
	After(seq uint64) ([]api.Event, <-chan struct{})
}

// Metrics writes the metrics in the format that ContentType names.
type Metrics interface {
	Write(w io.Writer) error
	ContentType() string
}

// Options are the dependencies of a Server.
type Options struct {
	Claims    Claims
	Volumes   Volumes
	Records   Records
	Queue     Queue
	Plugins   Plugins
	Snapshots Snapshots
	Tests     Tests
	Drainer   Drainer
	State     State
	Owners    volume.Owners
	Events    Events
	Metrics   Metrics
	Doctor    Doctor
	Node      func() api.Node // without plugins, counts and problems, which the server adds

	// MayWrite reports whether a caller may change state. Root and the members of the socket's
	// group may. Every caller that can open the socket may read.
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

// Close stops accepting connections and ends the waits of running requests. It waits for their
// answers until ctx ends, and then closes their connections.
func (s *Server) Close(ctx context.Context) error {
	s.cancel(volume.ErrStopping)
	if err := s.http.Shutdown(ctx); err != nil {
		return s.http.Close()
	}
	return nil
}

// maxBody limits the size of a request's body, in bytes.
const maxBody = 1 << 20

// body decodes the JSON body of a request. It rejects unknown fields.
func body(w http.ResponseWriter, r *http.Request, v any) error {
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return volume.Errorf(volume.ErrInvalid, "cannot read the request: %v", err)
	}
	if dec.More() {
		return volume.Errorf(volume.ErrInvalid, "cannot read the request: there is data after its end")
	}
	return nil
}

// answer sends v as JSON. It logs an error and does not return it, because the error means that the
// caller has disconnected.
func (s *Server) answer(w http.ResponseWriter, v any) error {
	w.Header().Set("Content-Type", "application/json")
	if err := api.EncodeJSON(w, v); err != nil {
		s.o.Log.Debug("cannot send an answer", "error", err)
	}
	return nil
}

// fail sends an error as the answer.
func (s *Server) fail(w http.ResponseWriter, err error) {
	e := toAPI(err)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(e.Code.HTTPStatus())
	if err := api.EncodeJSON(w, api.ErrorBody{Error: e}); err != nil {
		s.o.Log.Debug("cannot send an error", "error", err)
	}
}

// toAPI converts an error to an API error. No other function assigns codes to errors.
func toAPI(err error) *api.Error {
	var done *api.Error
	if errors.As(err, &done) {
		return done
	}

	e := &api.Error{Code: api.CodeFailed, Message: err.Error()}
	for _, k := range []struct {
		kind error
		code api.Code
	}{
		{volume.ErrInvalid, api.CodeInvalid},
		{volume.ErrNotFound, api.CodeNotFound},
		{volume.ErrRefused, api.CodeRefused},
		{volume.ErrTimeout, api.CodeTimeout},
		{volume.ErrPluginUnavailable, api.CodePluginUnavailable},
		{context.DeadlineExceeded, api.CodeTimeout},
	} {
		if errors.Is(err, k.kind) {
			e.Code = k.code
			break
		}
	}

	var de *volume.Error
	if errors.As(err, &de) {
		e.Hint = suggest.Hint(de.Remedy, de.Hint)
	}
	var ce *volume.CallError
	if errors.As(err, &ce) {
		e.Details = map[string]string{"step": ce.Step, "grpc_code": ce.Code, "plugin_said": ce.Message, "retry": string(ce.Retry)}
		if len(ce.HeldBy) > 0 {
			e.Details["held_by"] = strings.Join(ce.HeldBy, "; ")
		}
		switch {
		case e.Code != api.CodeFailed:
		case ce.Code == volume.CodeUnavailable:
			e.Code = api.CodePluginUnavailable
		case ce.Code == volume.CodeDeadlineExceeded:
			e.Code = api.CodeTimeout
		}

		if e.Hint == "" {
			e.Hint = suggest.Words(ce.Remedy)
		}
	}

	var aw *volume.Awaited
	if errors.As(err, &aw) && ce != nil {
		e.Details["tries"] = strconv.Itoa(aw.At.Tries)
		if !aw.At.First.IsZero() {
			e.Details["first"] = aw.At.First.UTC().Format(time.RFC3339)
		}
		if time.Until(aw.At.Next) > 0 {
			e.Details["next"] = aw.At.Next.UTC().Format(time.RFC3339)
		}
	}

	return e
}

// errorLines and statusLines are the numbers of log lines that an error and a volume's status
// contain.
const (
	errorLines  = 3
	statusLines = 3
)

// withLog adds the last lines of the plugin's log to an error, if a call failed or the plugin is
// not ready. The log often explains more than the plugin's answer. If volumes are given, withLog
// omits lines that name only other volumes of the plugin.
func (s *Server) withLog(err error, pluginID string, volumes ...string) error {
	var ce *volume.CallError
	called := errors.As(err, &ce) && ce.Code != volume.CodeHost
	if err == nil || pluginID == "" || !called && !errors.Is(err, volume.ErrPluginUnavailable) {
		return err
	}

	e := toAPI(err)
	if lines := s.logOf(pluginID, errorLines, volumes...); len(lines) > 0 {
		if e.Details == nil {
			e.Details = map[string]string{}
		}
		e.Details["plugin_log"] = strings.Join(lines, "\n")
	}

	if e.Hint == "" {
		e.Hint = suggest.Words(s.o.Plugins.View(pluginID).LogRemedy(pluginID))
	}
	return e
}

// pluginOf returns the plugin id of a volume, or an empty string if there is no such volume.
func (s *Server) pluginOf(id string) string {
	r, _ := s.o.Records.Volume(id)
	return r.Volume.PluginID
}

// Doctor compares the agent's records with the state of the host. It returns API types, because its
// implementation knows both the domain and the API.
type Doctor interface {
	Examine(ctx context.Context) api.Doctor
	Fix(ctx context.Context, ids []string) []api.DoctorFixed
}

// Drainer drains the host of all volumes, and ends a drain.
type Drainer interface {
	Drain(ctx context.Context, wait time.Duration) (volume.Occupancy, error)
	Undrain(ctx context.Context) (changed bool, err error)
	Look(ctx context.Context) volume.Occupancy
}

// Tests runs the tests of plugins.
type Tests interface {
	// TestPlugin calls each after every check. It returns when it has removed the traces of the
	// test. An error from each ends the test.
	TestPlugin(ctx context.Context, id string, q api.PluginTest, each func(api.PluginCheck) error) (api.PluginTestSummary, error)
}

// Snapshots makes, lists and deletes snapshots. If wait is 0, a method calls the plugin only once.
type Snapshots interface {
	Snapshot(ctx context.Context, ask volume.SnapshotAsk, wait time.Duration) (volume.MadeSnapshot, error)
	Snapshots(ctx context.Context, ask volume.SnapshotsAsk) (volume.Snapshots, error)
	DeleteSnapshot(ctx context.Context, at volume.SnapshotAt, wait time.Duration) error
	ForgetSnapshot(ctx context.Context, at volume.SnapshotAt) (left []string, err error)
	GroupSnapshot(ctx context.Context, at volume.SnapshotAt) (call.GroupSnapshot, error)
}

// State makes backups of the agent's state and restores them.
type State interface {
	Backup(ctx context.Context) (copied io.ReadCloser, size int64, err error)
	Restore(ctx context.Context, r io.Reader, dry bool) (api.Restore, error)
}
