package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/peer"
	"github.com/volagent/volagent/agent/service"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// registering is a fake service for plugins that records requests and returns err.
type registering struct {
	service.PluginSet
	asked string
	err   error
}

func (p *registering) View(string) plugin.View { return plugin.View{} }

func (p *registering) RegisterPlugin(_ context.Context, name string, text []byte, wait time.Duration) (string, string, error) {
	p.asked = fmt.Sprintf("register %s %d %s", name, len(text), wait)
	return "p", "updated", p.err
}

func (p *registering) DeregisterPlugin(_ context.Context, id string, force bool, wait time.Duration) error {
	p.asked = fmt.Sprintf("deregister %s %t %s", id, force, wait)
	return p.err
}

func (p *registering) Get(id string) (api.Plugin, bool) { return api.Plugin{ID: id}, true }

func (p *registering) Tail(string, int) []string { return []string{"its last words"} }

// TestRegistration checks that the server passes requests on to the service, but only from callers
// with write permission.
func TestRegistration(t *testing.T) {
	mayWrite := true
	plugins := &registering{}
	s := New(Options{Service: service.New(service.Options{Plugins: plugins}), MayWrite: func(peer.Peer) bool { return mayWrite }, Log: hclog.NewNullLogger()})
	call := func(method, target, body string) (int, string) {
		w := httptest.NewRecorder()
		plugins.asked = ""
		s.http.Handler.ServeHTTP(w, httptest.NewRequest(method, target, strings.NewReader(body)))
		return w.Code, w.Body.String()
	}
	for _, tt := range []struct {
		method, target, body string
		code                 int
		asked, says          string
	}{
		{"POST", "/v1/plugins?name=a%20b&wait=3s", "id: p", 200, "register a b 5 3s", `{"outcome":"updated","plugin":{"id":"p"`},
		{"POST", "/v1/plugins", "", 200, "register the plugin file 0 0s", "updated"},
		{"POST", "/v1/plugins?wait=soon", "id: p", 400, "", "soon"},
		{"POST", "/v1/plugins", strings.Repeat("x", maxBody+1), 400, "", "too large"},
		{"DELETE", "/v1/plugins/p?force=true&wait=1s", "", 200, "deregister p true 1s", "{}"},
		{"DELETE", "/v1/plugins/p", "", 200, "deregister p false 0s", "{}"},
		{"DELETE", "/v1/plugins/p?force=perhaps", "", 400, "", "perhaps"},
	} {
		code, says := call(tt.method, tt.target, tt.body)
		if code != tt.code || plugins.asked != tt.asked || !strings.Contains(says, tt.says) {
			t.Errorf("%s %s: %d, asked %q, says %s; want %d, %q, %q", tt.method, tt.target, code, plugins.asked, says, tt.code, tt.asked, tt.says)
		}
	}
	plugins.err = volume.Errorf(volume.ErrPluginUnavailable, "it hangs")
	if _, says := call("POST", "/v1/plugins", "id: p"); !strings.Contains(says, `"plugin_log":"its last words"`) {
		t.Errorf("not ready: %s", says)
	}
	mayWrite = false
	for _, route := range []string{"POST /v1/plugins", "DELETE /v1/plugins/p"} {
		method, target, _ := strings.Cut(route, " ")
		if code, says := call(method, target, "id: p"); code != http.StatusForbidden || plugins.asked != "" {
			t.Errorf("%s by who may only read: %d, %s", route, code, says)
		}
	}
}
