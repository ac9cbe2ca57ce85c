package cli

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/api"
)

func snapshot(id, state string) api.Snapshot {
	return api.Snapshot{ID: id, PluginID: "ebs", Volume: "data", SourceID: "vol-1", State: state, Size: 10 << 30, CreatedAt: ago(2 * time.Hour)}
}

func TestSnapshotCreate(t *testing.T) {
	f := world()
	made := snapshot("snap-1", api.SnapshotReady)
	f.on["POST /v1/snapshots"] = answers(made)
	r := with(t, f)
	expect(t, r.volctl("volume", "snapshot", "create", "data"), 0, "snapshot \"data-20260310T031211Z-000\" of volume \"data\" (10GiB) is ready: snap-1\n", "")
	expect(t, r.volctl("volume", "snapshot", "create", "data", "nightly", "-q", "-param", "k=v", "-secret", "s=env:S", "-timeout", "1h"), 0, "snap-1\n", "")
	expectSent(t, f,
		`POST /v1/snapshots?wait=10m0s {"volume":"data","name":"data-20260310T031211Z-000"}`,
		`POST /v1/snapshots?wait=1h0m0s {"volume":"data","name":"nightly","parameters":{"k":"v"},"secrets":{"s":{"env":"S"}}}`)
	made.State = api.SnapshotCreating
	f.on["POST /v1/snapshots"] = answers(made)
	expect(t, r.volctl("volume", "snapshot", "create", "data", "a b", "--no-wait"), 0, "snapshot \"a b\" of volume \"data\" (10GiB) is creating: snap-1\n",
		"it is not ready yet; to wait for it: volctl volume snapshot create data 'a b'\n")
	f.on["POST /v1/snapshots"] = answers(api.Snapshot{State: api.SnapshotUnknown})
	expect(t, r.volctl("volume", "snapshot", "create", "data", "n", "--no-wait"), 0, "snapshot \"n\" of volume \"data\" is unknown: not known yet\n", "not ready yet")

	f.on["POST /v1/snapshots"] = refuses(api.Error{Code: api.CodeRefused, Message: `plugin "ebs" cannot make snapshots`})
	expect(t, r.volctl("volume", "snapshot", "create", "data"), 4, "", `cannot make a snapshot of volume "data": plugin "ebs" cannot make snapshots`)
	f.on["POST /v1/snapshots"] = refuses(api.Error{Code: api.CodeNotFound, Message: "no volume"})
	expect(t, r.volctl("volume", "snapshot", "create", "dat"), 3, "", `near: "data"`)
}

// TestSnapshotCutOff checks the error if the agent disconnects or the user interrupts the command.
// The error must suggest a command that continues the wait.
func TestSnapshotCutOff(t *testing.T) {
	f := world()
	// The fake agent closes the connection.
	f.on["POST /v1/snapshots"] = func(*http.Request) (any, error) { return nil, context.Canceled }
	r := with(t, f)
	expect(t, r.volctl("volume", "snapshot", "create", "data", "nightly"), 7, "", "hint: the plugin may continue; to continue waiting: volctl volume snapshot create data nightly\n")
	ctx, cancel := context.WithCancel(t.Context())
	r.ctx = ctx
	f.mu.Lock() // the server may still read this map for the first request
	f.on["POST /v1/snapshots"] = func(r *http.Request) (any, error) {
		cancel()
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	f.mu.Unlock()
	expect(t, r.volctl("volume", "snapshot", "create", "data", "nightly"), 1, "", "it was interrupted; the plugin may continue\nhint: to continue waiting: volctl volume snapshot create data nightly\n")
}

// TestSnapshotProgress checks that the progress display of a slow snapshot shows the agent's
// message.
func TestSnapshotProgress(t *testing.T) {
	f := world()
	looks := make(chan struct{}, 8)
	f.on["GET /v1/snapshots"] = func(r *http.Request) (any, error) {
		if r.URL.RawQuery != "pending=true&volume=data" {
			t.Errorf("asked for %s", r.URL.RawQuery)
		}
		looks <- struct{}{}
		return api.Snapshots{
			Snapshots: []api.Snapshot{{Name: "other", Message: "no"}, {Name: "nightly", Message: "CreateSnapshot: Aborted: copying"}},
			Groups:    []api.GroupSnapshot{{Name: "nightly", Message: "no"}},
		}, nil
	}
	f.on["POST /v1/snapshots"] = func(r *http.Request) (any, error) {
		for range 2 { // at the second request, the display already shows the first answer
			select {
			case <-looks:
			case <-r.Context().Done():
			}
		}
		return snapshot("snap-1", api.SnapshotReady), nil
	}
	r := with(t, f)
	r.looks = 2
	res := r.volctl("volume", "snapshot", "create", "data", "nightly")
	if res.code != 0 || res.stderr != "making snapshot \"nightly\": CreateSnapshot: in progress already: copying\n" {
		t.Errorf("got %+v", res)
	}
}

func TestSnapshotList(t *testing.T) {
	f := world()
	f.on["GET /v1/snapshots"] = answers(api.Snapshots{
		Snapshots: []api.Snapshot{
			snapshot("snap-1", api.SnapshotReady),
			{Name: "nightly", PluginID: "ebs", Volume: "data", SourceID: "vol-1", State: api.SnapshotUnknown, CreatedAt: ago(time.Minute), Message: "CreateSnapshot: Aborted: copying"},
		},
		Groups: []api.GroupSnapshot{{ID: "g-1", Name: "pair", PluginID: "ebs", State: api.SnapshotCreating, CreatedAt: ago(time.Second), Volumes: []string{"data", "log"}}},
		Notes:  []string{`plugin "nfs" is backing-off, so its snapshots are not shown`},
	})
	r := with(t, f)
	expect(t, r.volctl("volume", "snapshot", "list"), 0,
		"ID               VOLUME     PLUGIN  STATE                                                  SIZE   AGE\n"+
			"snap-1           data       ebs     ready                                                  10GiB  2h\n"+
			"(named nightly)  data       ebs     unknown: CreateSnapshot: in progress already: copying  -      1m\n"+
			"g-1              data, log  ebs     creating                                               -      1s\n", `plugin "nfs" is backing-off`)
	expect(t, r.volctl("volume", "snapshot", "ls", "-q", "--plugin", "ebs", "--volume", "data", "--secret", "k=file:/k"), 0, "snap-1\n", "nfs")
	expectSent(t, f, "GET /v1/snapshots", "GET /v1/snapshots?plugin=ebs&secrets=%7B%22k%22%3A%7B%22file%22%3A%22%2Fk%22%7D%7D&volume=data")
	f.on["GET /v1/snapshots"] = refuses(api.Error{Code: api.CodeNotFound, Message: `no plugin "eb"`})
	expect(t, r.volctl("volume", "snapshot", "list", "--plugin", "eb"), 3, "", `near: "ebs"`)
}

func TestSnapshotDelete(t *testing.T) {
	f := world()
	f.on["POST /v1/snapshots/ebs/snap/1/delete"] = answers(api.Done{})
	r := with(t, f)
	expect(t, r.volctl("volume", "snapshot", "delete", "ebs", "snap/1"), 2, "", "asking for confirmation needs a terminal\nhint: volctl volume snapshot delete ebs snap/1 -y")
	expectSent(t, f)
	expect(t, r.volctl("volume", "snapshot", "delete", "ebs", "snap/1", "-y"), 0, "deleted snapshot \"snap/1\"\n", "")
	expectSent(t, f, `POST /v1/snapshots/ebs/snap%2F1/delete?wait=1m20s {}`)
	r.terminal, r.stdin = true, "no\n"
	f.on["GET /v1/snapshots"] = answers(api.Snapshots{Snapshots: []api.Snapshot{snapshot("snap/1", api.SnapshotReady)}})
	expect(t, r.volctl("volume", "snapshot", "delete", "ebs", "snap/1"), 1, "", "it was not confirmed")
	expectSent(t, f, "GET /v1/plugins/ebs", "GET /v1/snapshots?plugin=ebs")

	// If the plugin can list snapshots, volctl checks that the snapshot exists before it asks for
	// confirmation.
	res := r.volctl("volume", "snapshot", "delete", "ebs", "gone")
	expect(t, res, 3, "", "plugin \"ebs\" has no snapshot \"gone\"\nhint: volctl volume snapshot list --plugin ebs -o wide")
	if strings.Contains(res.stderr, "[y/N]") {
		t.Error("a person was asked about a snapshot that does not exist")
	}
	expect(t, r.volctl("volume", "snapshot", "delete", "ebs", "gone", "--ignore-not-found"), 0, "nothing to do\n", "")
	f.on["GET /v1/snapshots"] = answers(api.Snapshots{Notes: []string{"plugin \"ebs\" cannot list its snapshots"}})
	expect(t, r.volctl("volume", "snapshot", "delete", "ebs", "gone"), 1, "", "it was not confirmed")
	f.sent()
	r.terminal = false

	f.on["POST /v1/snapshots/ebs/n/delete"] = func(r *http.Request) (any, error) {
		if r.URL.RawQuery == "forget=true" {
			return api.Done{Left: []string{`plugin "ebs" may have a snapshot named "n"`}}, nil
		}
		return nil, &api.Error{Code: api.CodeNotFound, Message: "none"}
	}
	expect(t, r.volctl("volume", "snapshot", "delete", "ebs", "n", "-y"), 3, "", "cannot delete snapshot \"n\": none")
	expect(t, r.volctl("volume", "snapshot", "delete", "ebs", "n", "-y", "--ignore-not-found"), 0, "nothing to do\n", "")
	expect(t, r.volctl("volume", "snapshot", "delete", "ebs", "n", "--forget"), 0, "forgot snapshot \"n\"\nleft: plugin \"ebs\" may have a snapshot named \"n\"\n", "")
}

func TestGroupSnapshot(t *testing.T) {
	f := world()
	g := api.GroupSnapshot{ID: "g-1", Name: "pair", PluginID: "ebs", State: api.SnapshotReady, Snapshots: []api.Snapshot{snapshot("m1", api.SnapshotReady)}}
	f.on["POST /v1/snapshots/groups"] = answers(g)
	f.on["GET /v1/snapshots/groups/ebs/g-1"] = answers(g)
	f.on["POST /v1/snapshots/groups/ebs/g-1/delete"] = answers(api.Done{})
	r := with(t, f)
	const screen = "group snapshot of plugin ebs is ready: g-1\n  ID  VOLUME  STATE  SIZE   AGE  SOURCE\n  m1  data    ready  10GiB  2h   vol-1\n"
	expect(t, r.volctl("volume", "snapshot", "group", "create", "pair", "data", "log"), 0, screen, "")
	expect(t, r.volctl("volume", "snapshot", "group", "create", "pair", "data", "log", "-q"), 0, "g-1\n", "")
	expect(t, r.volctl("volume", "snapshot", "group", "status", "ebs", "g-1", "m1"), 0, screen, "")
	expect(t, r.volctl("volume", "snapshot", "group", "delete", "ebs", "g-1", "m1", "-y"), 0, "deleted group snapshot \"g-1\"\n", "")
	const ask = `POST /v1/snapshots/groups?wait=10m0s {"volumes":["data","log"],"name":"pair"}`
	expectSent(t, f, ask, ask, "GET /v1/snapshots/groups/ebs/g-1?snapshot=m1", `POST /v1/snapshots/groups/ebs/g-1/delete?wait=1m20s {"snapshots":["m1"]}`)
}

// TestSnapshotUsage checks that volctl refuses invalid arguments before it sends a request.
func TestSnapshotUsage(t *testing.T) {
	r := run{ctx: t.Context(), socket: "/nosuch"}
	for args, words := range map[string]string{
		"create":                            "needs ID",
		"create a b c":                      `does not take the argument "c"`,
		"create a/b":                        "slash",
		"create a b/c":                      `bad snapshot name "b/c"`,
		"create a --timeout 0s":             "--timeout must be more than 0",
		"create a --param x":                "--param",
		"create a --secret k=hunter2":       "a secret itself is refused",
		"list --plugin a/b":                 "bad plugin id",
		"list --volume a/b":                 "slash",
		"delete ebs":                        "needs SNAPSHOT",
		"delete a/b s -y":                   "bad plugin id",
		"group create pair":                 "needs NAME and at least one ID",
		"group create p/q data":             "bad snapshot name",
		"group status ebs":                  "needs PLUGIN and GROUP",
		"group delete ebs g":                "volctl volume snapshot group delete ebs g -y",
		"group delete ebs g -y --timeout=0": "--timeout must be more than 0",
	} {
		res := r.volctl(append([]string{"volume", "snapshot"}, strings.Fields(args)...)...)
		if res.code != 2 || !strings.Contains(res.stderr, words) || strings.Contains(res.stderr, "hunter2") {
			t.Errorf("%s: %+v", args, res)
		}
	}
	res := r.volctl("volume", "create", "a", "--plugin", "p", "--snapshot", "s", "--clone", "c")
	if res.code != 2 || !strings.Contains(res.stderr, "--snapshot and --clone exclude each other") {
		t.Errorf("two sources: %+v", res)
	}
}
