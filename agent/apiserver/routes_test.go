package apiserver

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/peer"
	"github.com/volagent/volagent/agent/service"
)

// TestWriteRoutes checks that the field write of each route agrees with the service. The test
// bypasses the server's check of that field, and calls each route for a caller without write
// permission. The service has no domain, so a call that the service does not refuse panics or
// returns another error.
func TestWriteRoutes(t *testing.T) {
	s := New(Options{Service: service.New(service.Options{}), Log: hclog.NewNullLogger()})
	refused := func(rt route) bool {
		defer func() { _ = recover() }()
		_, err := rt.handler(s, &request{Request: httptest.NewRequest(http.MethodPost, "/", strings.NewReader("{}")), w: httptest.NewRecorder()})()
		var e *api.Error
		return errors.As(err, &e) && e.Code == api.CodePermission
	}
	for _, rt := range routes() {
		if got := refused(rt); got != rt.write {
			t.Errorf("%s: the route says %t, and the service refuses: %t", rt.pattern, rt.write, got)
		}
	}
}

// TestRefusedFirst checks that the server refuses a caller without permission even if it cannot
// decode the request.
func TestRefusedFirst(t *testing.T) {
	s := New(Options{Service: service.New(service.Options{}), MayWrite: func(peer.Peer) bool { return false }, Log: hclog.NewNullLogger()})
	for _, rt := range routes() {
		if !rt.write {
			continue
		}
		method, path, _ := strings.Cut(rt.pattern, " ")
		w := httptest.NewRecorder()
		target := strings.NewReplacer("{", "", "}", "").Replace(path) + "?wait=soon&force=perhaps&lines=few"
		s.http.Handler.ServeHTTP(w, httptest.NewRequest(method, target, strings.NewReader("{")))
		if w.Code != http.StatusForbidden {
			t.Errorf("%s: %d %s", rt.pattern, w.Code, w.Body)
		}
	}
}
