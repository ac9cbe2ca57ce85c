package cli

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/volagent/volagent/agent/api"
)

// TestCreateSaysWhatItWaitsFor checks that "volctl volume create" shows the plugin for which it
// waits.
func TestCreateSaysWhatItWaitsFor(t *testing.T) {
	f := world()
	said := make(chan struct{})
	var asked atomic.Int32
	f.on["GET /v1/plugins/nfs"] = func(*http.Request) (any, error) {
		if asked.Add(1) == 2 {
			close(said) // the display has shown the first answer
		}
		return f.plugins[0], nil
	}
	f.on["POST /v1/volumes/new/create"] = func(r *http.Request) (any, error) {
		select {
		case <-said:
		case <-r.Context().Done():
		}
		return nil, &api.Error{Code: api.CodePluginUnavailable, Message: `plugin "nfs" is backing-off`}
	}
	r := with(t, f)
	r.looks = 2
	res := r.volctl("volume", "create", "new", "--plugin", "nfs")
	if res.code != exitPluginUnavailable || !strings.HasPrefix(res.stderr, `creating volume "new": waiting for plugin "nfs", which is backing-off: it exited 6 times`+"\n") {
		t.Errorf("got %+v", res)
	}
}

// TestDeleteInterrupted checks that an interrupted delete suggests the same command again, because
// its result is unknown.
func TestDeleteInterrupted(t *testing.T) {
	f := world()
	r := with(t, f)
	ctx, cancel := context.WithCancel(t.Context())
	r.ctx = ctx
	f.on["POST /v1/volumes/data/delete"] = func(r *http.Request) (any, error) {
		cancel()
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	res := r.volctl("volume", "delete", "data", "-y", "--confirm=data")
	if res.code != exitFailed || !strings.Contains(res.stderr, "it is unknown whether the data was destroyed\nhint: volctl volume delete data -y --confirm=data\n") {
		t.Errorf("got %+v", res)
	}
}

// TestErrorWithPluginLog checks that an error contains the last lines of the plugin's log, with
// control characters escaped.
func TestErrorWithPluginLog(t *testing.T) {
	f := world()
	f.on["PUT /v1/volumes/data/claims/a"] = func(*http.Request) (any, error) {
		return nil, &api.Error{Code: api.CodeFailed, Message: "NodeStageVolume: Internal: no", Hint: "volctl plugin logs ebs", Details: map[string]string{"plugin_log": "one\n\x1b[31mtwo"}}
	}
	const want = "volctl: cannot claim volume \"data\" for alloc \"a\": NodeStageVolume: failed in the plugin: no\nplugin log: one\nplugin log: \\x1b[31mtwo\nhint: volctl plugin logs ebs\n"
	if res := with(t, f).volctl("volume", "claim", "data", "--alloc", "a"); res.stderr != want {
		t.Errorf("got %q, want %q", res.stderr, want)
	}
}
