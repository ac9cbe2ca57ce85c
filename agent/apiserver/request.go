package apiserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/service"
	"github.com/volagent/volagent/volmgr/volume"
)

// request is one request with its caller. The methods decode the path, query or body of the
// request, and store the first error in err.
type request struct {
	*http.Request
	w   http.ResponseWriter
	by  service.Caller
	err error
}

// A handler decodes a request and returns an action, which calls the service. The server runs the
// action only if the whole request is valid. An action that sends the answer itself returns nil.
type (
	handler func(s *Server, r *request) action
	action  func() (answer any, err error)
)

// fail stores the first error.
func (r *request) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// text reads a text from the query. It returns an empty text if the parameter is missing.
func (r *request) text(name string) string { return r.URL.Query().Get(name) }

// duration reads a duration from the query. It returns 0 if the parameter is missing.
func (r *request) duration(name string) time.Duration {
	raw := r.text(name)
	if raw == "" {
		return 0
	}

	d, err := time.ParseDuration(raw)
	if err != nil || d < 0 {
		r.fail(invalid("%s=%q is not a duration such as 30s", name, raw))
		return 0
	}
	return d
}

// flag reads a boolean from the query. It returns false if the parameter is missing.
func (r *request) flag(name string) bool {
	raw := r.text(name)
	if raw == "" {
		return false
	}

	b, err := strconv.ParseBool(raw)
	if err != nil {
		r.fail(invalid("%s=%q is neither true nor false", name, raw))
	}
	return b
}

// number reads an integer from the query. If the query does not contain it, number returns the
// default value without.
func (r *request) number(name string, without int) int {
	raw := r.text(name)
	if raw == "" {
		return without
	}

	n, err := strconv.Atoi(raw)
	if err != nil || n < 0 {
		r.fail(invalid("%s=%q is not a whole number", name, raw))
		return 0
	}
	return n
}

// time reads a time from the query. It returns the zero time if the parameter is missing.
func (r *request) time(name string) (t time.Time) {
	var err error
	if raw := r.text(name); raw != "" {
		if t, err = time.Parse(time.RFC3339Nano, raw); err != nil {
			r.fail(invalid("%s=%q is not a time such as 2006-01-02T15:04:05Z", name, raw))
		}
	}
	return t
}

// eventTypes reads types of events from the query, which may contain several.
func (r *request) eventTypes(name string) (types []volume.EventType) {
	for _, raw := range r.URL.Query()[name] {
		typ := volume.EventType(raw)
		if err := typ.Check(); err != nil {
			r.fail(service.APIError(err))
		}
		types = append(types, typ)
	}
	return types
}

// secrets reads references to secrets from the query. It returns nil if the query contains none.
func (r *request) secrets() map[string]api.Secret {
	raw := r.text("secrets")
	if raw == "" {
		return nil
	}

	refs := map[string]api.Secret{}
	if err := json.Unmarshal([]byte(raw), &refs); err != nil {
		r.fail(invalid("cannot read the secrets of the request")) // omit err, which may contain a secret
	}
	return refs
}

// maxBody limits the size of a request's body, in bytes.
const maxBody = 1 << 20

// body decodes the JSON body of a request. It rejects unknown fields.
func body[T any](r *request) (v T) {
	dec := json.NewDecoder(http.MaxBytesReader(r.w, r.Body, maxBody))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&v); err != nil {
		r.fail(invalid("cannot read the request: %v", err))
	} else if dec.More() {
		r.fail(invalid("cannot read the request: there is data after its end"))
	}
	return v
}

// invalid returns an error about a request that the server cannot decode.
func invalid(format string, args ...any) error {
	return &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf(format, args...)}
}

// flush sends the data that was written so far. It does nothing if the writer cannot flush.
func flush(w http.ResponseWriter) {
	if f, ok := w.(http.Flusher); ok {
		f.Flush()
	}
}

// lines sends JSON values, one in each line.
type lines struct {
	w     http.ResponseWriter
	begun bool // the answer has begun, so an error cannot change its status
}

// begin starts the answer. An answer without lines needs this call too.
func (l *lines) begin() {
	l.w.Header().Set("Content-Type", "application/x-ndjson")
	l.begun = true
}

// send sends one value.
func (l *lines) send(v any) error {
	if !l.begun {
		l.begin()
	}
	return api.EncodeJSON(l.w, v)
}
