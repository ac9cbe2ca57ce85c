package apiserver

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/peer"
	"github.com/volagent/volagent/agent/service"
)

// FuzzQuery checks that the server answers a request to any URL, either with data or with an error
// that has a code. The server must reject negative durations and negative numbers.
func FuzzQuery(f *testing.F) {
	for _, value := range []string{"", "1", "-1", "30s", "-30s", "1e9h", "true", "maybe", "99999999999999999999", "\x00", "é", `{"k":{"file":"/k"}}`, `{"k":"v"}`, "{", "2026-01-01T00:00:00Z"} {
		for _, path := range []string{"snapshots", "snapshots/p/s1/delete", "snapshots/groups/p/g", "volumes/data", "events", "..", "snapshots//x", "plugins/p"} {
			f.Add("GET", path, "secrets", value, "wait", value)
		}
		f.Add("POST", "snapshots/p/s1/delete", "wait", value, "secrets", value)
		f.Add("GET", "snapshots/groups/p/g", "snapshot", value, "secrets", value)
	}
	a := &album{}
	s := New(Options{Service: service.New(service.Options{Plugins: a, Records: a, Snapshots: a}), MayWrite: func(peer.Peer) bool { return true }, Log: hclog.NewNullLogger()})
	f.Fuzz(func(t *testing.T, method, path, name, value, second, other string) {
		query := url.Values{name: {value}, second: {other}}
		target := &url.URL{Path: "/v1/" + path, RawQuery: query.Encode()}
		r := httptest.NewRequest(http.MethodGet, "/", strings.NewReader(value))
		r.URL = target
		for _, name := range []string{name, second} {
			in := &request{Request: r}
			if d, n := in.duration(name), in.number(name, 7); d < 0 || n < 0 {
				t.Errorf("%q is %s, %d", query.Get(name), d, n)
			}
			in.flag(name)
			in.eventTypes(name)
			if in.err != nil && service.APIError(in.err).Code != api.CodeInvalid {
				t.Errorf("%q: %v", query, in.err)
			}
		}
		if method != http.MethodGet && method != http.MethodPost || !strings.HasPrefix(target.Path, "/v1/snapshots") {
			return // the fakes support only GET and POST requests for snapshots
		}
		r.Method = method
		w := httptest.NewRecorder()
		s.http.Handler.ServeHTTP(w, r)
		var e api.ErrorBody
		moved := w.Code >= 300 && w.Code < 400 // a redirect to the canonical form of the same path
		if failed := w.Code >= 400; failed && (json.Unmarshal(w.Body.Bytes(), &e) != nil || e.Error == nil || e.Error.Code == "") || !failed && !moved && !json.Valid(w.Body.Bytes()) {
			t.Errorf("%s %s: %d %q", method, target, w.Code, w.Body)
		}
	})
}
