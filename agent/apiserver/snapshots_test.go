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

	"github.com/volagent/volagent/agent/peer"
	"github.com/volagent/volagent/agent/service"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// album is a fake service for snapshots that records requests.
type album struct {
	service.PluginSet
	asked  string
	err    error
	listed volume.Snapshots
}

func (a *album) Volume(string) (volume.Record, bool) { return volume.Record{}, false }
func (a *album) Tail(string, int) []string           { return nil }
func (a *album) View(string) plugin.View {
	return plugin.View{Info: plugin.Info{Driver: "d"}}
}
func (a *album) note(format string, args ...any) error {
	a.asked = fmt.Sprintf(format, args...)
	return a.err
}

func (a *album) Volumes() []volume.Record {
	return []volume.Record{{Volume: volume.Volume{ID: "data", Driver: "d", ExternalID: "x"}}}
}

func (a *album) Snapshot(_ context.Context, q volume.SnapshotAsk, wait time.Duration) (volume.MadeSnapshot, error) {
	in := volume.SnapshotIntent{PluginID: "p", Driver: "d", Name: q.Name, Group: q.Group, Volumes: q.Volumes, Sources: []string{"x"}}
	made := volume.MadeSnapshot{Intent: in, GroupSnapshot: call.GroupSnapshot{ID: "s1", Snapshots: []call.Snapshot{{ID: "s1", SourceID: "x"}}}}
	if q.Name == "slow" {
		made.GroupSnapshot = call.GroupSnapshot{}
	}
	return made, a.note("make %s of %v, group %t, %v, %v, %s", q.Name, q.Volumes, q.Group, q.Parameters, q.Secrets["k"].File, wait)
}

func (a *album) Snapshots(_ context.Context, q volume.SnapshotsAsk) (volume.Snapshots, error) {
	return a.listed, a.note("list %s %s %s %t", q.PluginID, q.VolumeID, q.Secrets["k"].File, q.Pending)
}

func (a *album) DeleteSnapshot(_ context.Context, at volume.SnapshotAt, wait time.Duration) error {
	return a.note("delete %s %s %t %v %s %s", at.PluginID, at.ID, at.Group, at.Members, at.Secrets["k"].File, wait)
}

func (a *album) ForgetSnapshot(_ context.Context, at volume.SnapshotAt) ([]string, error) {
	return []string{"it"}, a.note("forget %s %s", at.PluginID, at.ID)
}

func (a *album) GroupSnapshot(_ context.Context, at volume.SnapshotAt) (call.GroupSnapshot, error) {
	return call.GroupSnapshot{ID: at.ID, Ready: true}, a.note("group %s %s %v %s", at.PluginID, at.ID, at.Members, at.Secrets["k"].File)
}

// TestSnapshotRoutes checks that the server passes requests on to the service, and answers in the
// API's form. A request needs write permission if it changes state or makes the agent read secrets.
func TestSnapshotRoutes(t *testing.T) {
	mayWrite := true
	a := &album{listed: volume.Snapshots{
		Listed: []volume.ListedSnapshot{{PluginID: "p", Driver: "d", Name: "n", Snapshot: call.Snapshot{ID: "s1", SourceID: "x", GroupID: "g", Ready: true}}},
		Pending: []volume.PendingSnapshot{
			{SnapshotIntent: volume.SnapshotIntent{PluginID: "p", Name: "n2", Volumes: []string{"data"}, Sources: []string{"x"}}, Doing: "copying"},
			{SnapshotIntent: volume.SnapshotIntent{PluginID: "p", Name: "n3", ID: "g2", Group: true, Volumes: []string{"data"}, Sources: []string{"x"}}},
		},
		Notes: []string{"a note"},
	}}
	s := New(Options{Service: service.New(service.Options{Plugins: a, Records: a, Snapshots: a}), MayWrite: func(peer.Peer) bool { return mayWrite }, Log: hclog.NewNullLogger()})
	call := func(route, body string) (int, string) {
		method, target, _ := strings.Cut(route, " ")
		w := httptest.NewRecorder()
		a.asked = ""
		s.http.Handler.ServeHTTP(w, httptest.NewRequest(method, target, strings.NewReader(body)))
		return w.Code, w.Body.String()
	}
	const key = `"secrets":{"k":{"file":"/k"}}`
	const query = "secrets=%7B%22k%22%3A%7B%22file%22%3A%22%2Fk%22%7D%7D"
	for _, tt := range []struct {
		route, body string
		code        int
		asked, says string
	}{
		{"POST /v1/snapshots?wait=3s", `{"volume":"data","name":"n","parameters":{"a":"b"},` + key + `}`, 200, "make n of [data], group false, map[a:b], /k, 3s",
			`{"id":"s1","name":"n","plugin_id":"p","volume":"data","source_id":"x","state":"creating"}`},
		{"POST /v1/snapshots", `{"volume":"data","name":"slow"}`, 200, "make slow of [data], group false, map[], , 0s", `"state":"unknown"`},
		{"POST /v1/snapshots?wait=soon", `{}`, 400, "", "soon"},
		{"POST /v1/snapshots", `{"nme":"n"}`, 400, "", "nme"},
		{"POST /v1/snapshots/groups?wait=1s", `{"volumes":["data"],"name":"n"}`, 200, "make n of [data], group true, map[], , 1s", `"snapshots":[{"id":"s1"`},
		{"GET /v1/snapshots?plugin=p&volume=data&pending=true&" + query, "", 200, "list p data /k true",
			`{"snapshots":[{"id":"s1","name":"n","plugin_id":"p","volume":"data","source_id":"x","group_id":"g","state":"ready"},` +
				`{"id":"","name":"n2","plugin_id":"p","volume":"data","source_id":"x","state":"unknown","message":"copying"}],` +
				`"groups":[{"id":"g2","name":"n3","plugin_id":"p","state":"creating","snapshots":[],"volumes":["data"]}],"notes":["a note"]}`},
		{"GET /v1/snapshots?secrets=hunter2", "", 400, "", "cannot read the secrets of the request"},
		{"POST /v1/snapshots/p/a%2Fb/delete?wait=1s", "{" + key + "}", 200, "delete p a/b false [] /k 1s", "{}"},
		{"POST /v1/snapshots/p/n/delete?forget=true", "{}", 200, "forget p n", `{"left":["it"]}`},
		{"GET /v1/snapshots/groups/p/g?snapshot=a&snapshot=b&" + query, "", 200, "group p g [a b] /k", `"state":"ready"`},
		{"POST /v1/snapshots/groups/p/g/delete", `{"snapshots":["a"]}`, 200, "delete p g true [a]  0s", "{}"},
	} {
		code, says := call(tt.route, tt.body)
		if code != tt.code || a.asked != tt.asked || !strings.Contains(says, tt.says) || strings.Contains(says, "hunter2") {
			t.Errorf("%s: %d, asked %q, says %s\nwant %d, %q, %s", tt.route, code, a.asked, says, tt.code, tt.asked, tt.says)
		}
	}
	a.err = volume.Errorf(volume.ErrInvalid, "no volume")
	if code, says := call("POST /v1/snapshots/groups", `{"volumes":[],"name":"n"}`); code != http.StatusBadRequest {
		t.Errorf("a group of nothing: %d, %s", code, says)
	}
	a.err, mayWrite = nil, false
	for _, route := range []string{
		"POST /v1/snapshots", "POST /v1/snapshots/groups", "POST /v1/snapshots/p/s/delete", "POST /v1/snapshots/groups/p/s/delete",
		"GET /v1/snapshots?" + query, "GET /v1/snapshots/groups/p/g?" + query,
	} {
		if code, says := call(route, "{}"); code != http.StatusForbidden || a.asked != "" {
			t.Errorf("%s by who may only read: %d, %s", route, code, says)
		}
	}
	if code, _ := call("GET /v1/snapshots", ""); code != http.StatusOK {
		t.Errorf("who may only read is not shown what there is: %d", code)
	}
}
