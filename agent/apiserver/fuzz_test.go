package apiserver

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/peer"
	"github.com/volagent/volagent/volmgr/volume"
)

// FuzzVolume checks that the server either rejects a volume file or converts it into a volume. The
// volume must convert back to the same file. An answer never contains the value of a secret.
func FuzzVolume(f *testing.F) {
	for _, text := range []string{
		"", "{}", "null", "[]", `{"id":"a"} {"id":"b"}`, `{"id":"data","plugin_id":"p","secrets":{"k":"hunter2hunter2","f":{"file":"/k"}}}`, `{"id":"a","ID":"b"}`, `{"unknown":1}`, `{"id":1}`, "\xff",
		`{"id":"data","plugin_id":"p","capabilities":[{},{"access_mode":"single-node-writer"}],"mount_options":{"fs_type":"xfs","mount_flags":["ro"]},"topology_request":{"required":[{"a":"b"}]},"capacity_min":-1}`,
		`{"secrets":{"k":{"sealed":true,"literal":"x"}}}`, `{"secrets":{"k":null}}`, `{"secrets":null,"mount_options":null}`,
	} {
		f.Add(text, "hunter2hunter2")
	}
	f.Fuzz(func(t *testing.T, text, secret string) {
		var s api.VolumeSpec
		err := body(httptest.NewRecorder(), httptest.NewRequest(http.MethodPut, "/", strings.NewReader(text)), &s)
		if err != nil {
			if !errors.Is(err, volume.ErrInvalid) {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		const key = "the key of the secret"
		if s.Secrets == nil {
			s.Secrets = map[string]api.Secret{}
		}
		s.Secrets[key] = api.Secret{Literal: api.NewLiteral(secret)}
		v := fromSpec(s)
		if v.Secrets[key].Literal.Reveal() != secret || len(v.Capabilities) == 0 || v.Reclaim == "" {
			t.Errorf("%q is %+v", text, v)
		}
		shown := toSpec(v)
		for name, one := range shown.Secrets {
			if _, is := one.Literal.Reveal(); is {
				t.Errorf("the value of secret %q is shown", name)
			}
		}
		again := fromSpec(shown)
		if second := toSpec(again); !reflect.DeepEqual(second, shown) {
			t.Errorf("%q is shown as %+v, and that as %+v", text, shown, second)
		}
	})
}

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
	s := New(Options{Plugins: a, Records: a, Snapshots: a, MayWrite: func(peer.Peer) bool { return true }, Log: hclog.NewNullLogger()})
	f.Fuzz(func(t *testing.T, method, path, name, value, second, other string) {
		query := url.Values{name: {value}, second: {other}}
		target := &url.URL{Path: "/v1/" + path, RawQuery: query.Encode()}
		r := httptest.NewRequest(http.MethodGet, "/", strings.NewReader(value))
		r.URL = target
		for _, name := range []string{name, second} {
			d, err := duration(r, name)
			n, nerr := number(r, name, 7)
			_, ferr := flag(r, name)
			if d < 0 || n < 0 {
				t.Errorf("%q is %s, %d", query.Get(name), d, n)
			}
			for _, err := range []error{err, nerr, ferr} {
				if err != nil && !errors.Is(err, volume.ErrInvalid) {
					t.Errorf("%q: %v", query, err)
				}
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
