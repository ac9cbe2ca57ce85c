package apiserver

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/peer"
	"github.com/volagent/volagent/agent/service"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// stateful is a fake service that drains the host, and backs up and restores the state.
type stateful struct {
	asked string
	err   error
}

func (s *stateful) Drain(_ context.Context, wait time.Duration) (volume.Occupancy, error) {
	s.asked = "drain " + wait.String()
	return volume.Occupancy{Waiting: []volume.Occupant{{Volume: "a", Command: remedy.Of(remedy.EndProcess, "7")}}}, s.err
}

func (s *stateful) Undrain(context.Context) (bool, error) {
	s.asked = "undrain"
	return true, s.err
}

func (s *stateful) Look(context.Context) volume.Occupancy { return volume.Occupancy{} }

func (s *stateful) Backup(context.Context) (io.ReadCloser, int64, error) {
	s.asked = "backup"
	return io.NopCloser(strings.NewReader("state")), 5, s.err
}

func (s *stateful) Restore(_ context.Context, r io.Reader, dry bool) (api.Restore, error) {
	raw, err := io.ReadAll(r)
	s.asked = "restore " + string(raw)
	return api.Restore{Node: "n", DryRun: dry, Items: []api.Restored{}}, errors.Join(err, s.err)
}

// TestState checks that the server passes requests on to the service, but only from callers with
// write permission. Even a backup needs write permission, because it contains sealed secrets.
func TestState(t *testing.T) {
	mayWrite := true
	state := &stateful{}
	s := New(Options{Service: service.New(service.Options{Drainer: state, State: state}), MayWrite: func(peer.Peer) bool { return mayWrite }, Log: hclog.NewNullLogger()})
	call := func(method, target, body string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		state.asked = ""
		s.http.Handler.ServeHTTP(w, httptest.NewRequest(method, target, strings.NewReader(body)))
		return w
	}
	for _, tt := range []struct {
		method, target, body string
		code                 int
		asked, says          string
	}{
		{"POST", "/v1/node/drain", "", 200, "drain 0s", `{"safe":false,"waiting":[{"volume":"a","message":"","command":"kill 7"}],"left":[]}`},
		{"POST", "/v1/node/drain?wait=3s", "", 200, "drain 3s", "kill 7"},
		{"POST", "/v1/node/drain?wait=soon", "", 400, "", "soon"},
		{"POST", "/v1/node/undrain", "", 200, "undrain", `{"was_draining":true}`},
		{"GET", "/v1/state/backup", "", 200, "backup", "state"},
		{"POST", "/v1/state/restore", "state", 200, "restore state", `"node":"n"`},
		{"POST", "/v1/state/restore?dry_run=true", "state", 200, "restore state", `"dry_run":true`},
		{"POST", "/v1/state/restore?dry_run=perhaps", "state", 400, "", "perhaps"},
	} {
		w := call(tt.method, tt.target, tt.body)
		if w.Code != tt.code || state.asked != tt.asked || !strings.Contains(w.Body.String(), tt.says) {
			t.Errorf("%s %s: %d, asked %q, says %s", tt.method, tt.target, w.Code, state.asked, w.Body)
		}
	}
	if got := call("GET", "/v1/state/backup", "").Header().Get("Content-Length"); got != "5" {
		t.Errorf("the length of a backup is %q: one that is cut short is not noticed", got)
	}
	mayWrite = false
	for _, route := range []string{"POST /v1/node/drain", "POST /v1/node/undrain", "GET /v1/state/backup", "POST /v1/state/restore"} {
		method, target, _ := strings.Cut(route, " ")
		if w := call(method, target, ""); w.Code != http.StatusForbidden || state.asked != "" {
			t.Errorf("%s by who may only read: %d, %s", route, w.Code, w.Body)
		}
	}
}
