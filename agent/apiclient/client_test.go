package apiclient_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
)

// serve listens on a unix socket and returns a client for it.
func serve(t *testing.T, h http.HandlerFunc) *apiclient.Client {
	t.Helper()
	socket := filepath.Join(shortDir(t), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(h)
	srv.Listener = l
	srv.Start()
	c := apiclient.New(socket)
	t.Cleanup(func() { c.Close(); srv.CloseClientConnections(); srv.Close() })
	return c
}

// shortDir returns a temporary directory whose path is short enough for a socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "vc") //nolint:usetesting // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func answer(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }
}

// seen is a request as the server received it, with the ids still escaped.
type seen struct{ Method, Path, Query, Body string }

func TestRoutes(t *testing.T) {
	ctx := t.Context()
	var got seen
	reply := "{}"
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = seen{r.Method, r.URL.EscapedPath(), r.URL.RawQuery, string(body)}
		_, _ = io.WriteString(w, reply)
	})
	spec := api.VolumeSpec{ID: "a%2Fb", PluginID: "p"}
	specBody := `{"id":"a%2Fb","plugin_id":"p"}`
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("x", 3600))
	for name, tt := range map[string]struct {
		reply string
		call  func() error
		want  seen
	}{
		"volumes":      {"[]", func() error { _, err := c.Volumes(ctx); return err }, seen{"GET", "/v1/volumes", "", ""}},
		"volume":       {"{}", func() error { _, err := c.Volume(ctx, "data[0]"); return err }, seen{"GET", "/v1/volumes/data%5B0%5D", "", ""}},
		"classes":      {"[]", func() error { _, err := c.Classes(ctx); return err }, seen{"GET", "/v1/classes", "", ""}},
		"class":        {"{}", func() error { _, err := c.Class(ctx, "fast"); return err }, seen{"GET", "/v1/classes/fast", "", ""}},
		"wait volume":  {"{}", func() error { _, err := c.WaitVolume(ctx, "d", "free", time.Second); return err }, seen{"GET", "/v1/volumes/d", "for=free&wait=1s", ""}},
		"register":     {"{}", func() error { _, err := c.RegisterVolume(ctx, spec, false); return err }, seen{"PUT", "/v1/volumes/a%252Fb", "", specBody}},
		"dry register": {"{}", func() error { _, err := c.RegisterVolume(ctx, spec, true); return err }, seen{"PUT", "/v1/volumes/a%252Fb", "dry_run=true", specBody}},
		"create":       {"{}", func() error { _, err := c.CreateVolume(ctx, spec, true); return err }, seen{"POST", "/v1/volumes/a%252Fb/create", "dry_run=true", specBody}},
		"deregister":   {"{}", func() error { _, err := c.DeregisterVolume(ctx, "a b", true); return err }, seen{"DELETE", "/v1/volumes/a%20b", "force=true", ""}},
		"delete":       {"{}", func() error { _, err := c.DeleteVolume(ctx, "x", "x"); return err }, seen{"POST", "/v1/volumes/x/delete", "confirm=x", ""}},
		"stats":        {"{}", func() error { _, err := c.VolumeStats(ctx, "x?y"); return err }, seen{"GET", "/v1/volumes/x%3Fy/stats", "", ""}},
		"claims":       {"[]", func() error { _, err := c.Claims(ctx, apiclient.ClaimFilter{Volume: "v", Plugin: "p&q"}); return err }, seen{"GET", "/v1/claims", "plugin=p%26q&volume=v", ""}},
		"claim":        {"{}", func() error { _, err := c.Claim(ctx, "v", "a@1.service"); return err }, seen{"GET", "/v1/volumes/v/claims/a@1.service", "", ""}},
		"put claim": {"{}", func() error {
			_, err := c.ClaimVolume(ctx, "v", "a", api.ClaimRequest{ReadOnly: true}, 90*time.Second)
			return err
		}, seen{"PUT", "/v1/volumes/v/claims/a", "wait=1m30s", `{"read_only":true}`}},
		"put claim now": {"{}", func() error { _, err := c.ClaimVolume(ctx, "v", "a", api.ClaimRequest{}, 0); return err }, seen{"PUT", "/v1/volumes/v/claims/a", "", `{}`}},
		"release": {"{}", func() error {
			return c.DetachClaim(ctx, "v", "#", apiclient.DetachOptions{Wait: time.Second, Force: true})
		}, seen{"DELETE", "/v1/volumes/v/claims/%23", "force=true&wait=1s", ""}},
		"snapshots": {"{}", func() error {
			_, err := c.Snapshots(ctx, apiclient.SnapshotFilter{Plugin: "p", Volume: "v", Secrets: map[string]api.Secret{"k": {Env: "E"}}})
			return err
		},
			seen{"GET", "/v1/snapshots", "plugin=p&secrets=%7B%22k%22%3A%7B%22env%22%3A%22E%22%7D%7D&volume=v", ""}},
		"take": {"{}", func() error {
			_, err := c.CreateSnapshot(ctx, api.SnapshotRequest{Volume: "v", Name: "n"}, time.Minute)
			return err
		},
			seen{"POST", "/v1/snapshots", "wait=1m0s", `{"volume":"v","name":"n"}`}},
		"drop":   {"{}", func() error { return c.DeleteSnapshot(ctx, "p", "s/1", api.SnapshotRef{}, 0) }, seen{"POST", "/v1/snapshots/p/s%2F1/delete", "", "{}"}},
		"forget": {"{}", func() error { _, err := c.ForgetSnapshot(ctx, "p", "n"); return err }, seen{"POST", "/v1/snapshots/p/n/delete", "forget=true", "{}"}},
		"take group": {"{}", func() error {
			_, err := c.CreateGroupSnapshot(ctx, api.GroupSnapshotRequest{Volumes: []string{"v"}, Name: "n"}, 0)
			return err
		},
			seen{"POST", "/v1/snapshots/groups", "", `{"volumes":["v"],"name":"n"}`}},
		"group": {"{}", func() error {
			_, err := c.GroupSnapshot(ctx, "p", "g", api.SnapshotRef{Snapshots: []string{"a", "b"}})
			return err
		},
			seen{"GET", "/v1/snapshots/groups/p/g", "snapshot=a&snapshot=b", ""}},
		"drop group": {"{}", func() error {
			return c.DeleteGroupSnapshot(ctx, "p", "g", api.SnapshotRef{Snapshots: []string{"a"}}, time.Second)
		},
			seen{"POST", "/v1/snapshots/groups/p/g/delete", "wait=1s", `{"snapshots":["a"]}`}},
		"plugins":     {"[]", func() error { _, err := c.Plugins(ctx); return err }, seen{"GET", "/v1/plugins", "", ""}},
		"plugin":      {"{}", func() error { _, err := c.Plugin(ctx, "p"); return err }, seen{"GET", "/v1/plugins/p", "", ""}},
		"wait plugin": {"{}", func() error { _, err := c.WaitPlugin(ctx, "p", time.Minute); return err }, seen{"GET", "/v1/plugins/p", "for=ready&wait=1m0s", ""}},
		"register plugin": {"{}", func() error {
			_, err := c.RegisterPlugin(ctx, "a b.yaml", []byte("id: p\n"), time.Second)
			return err
		}, seen{"POST", "/v1/plugins", "name=a+b.yaml&wait=1s", "id: p\n"}},
		"deregister plugin": {"{}", func() error {
			return c.DeregisterPlugin(ctx, "p", apiclient.ControlOptions{Force: true, Wait: time.Second})
		}, seen{"DELETE", "/v1/plugins/p", "force=true&wait=1s", ""}},
		"node":   {"{}", func() error { _, err := c.Node(ctx); return err }, seen{"GET", "/v1/node", "", ""}},
		"health": {"{}", func() error { _, err := c.Health(ctx); return err }, seen{"GET", "/v1/health", "", ""}},
		"events": {"", func() error { return c.Events(ctx, apiclient.EventFilter{}, nil) }, seen{"GET", "/v1/events", "", ""}},
		"filtered events": {"", func() error {
			return c.Events(ctx, apiclient.EventFilter{Volume: "v", Types: []string{"staged", "warning"}, Since: since, N: 3, Follow: true}, nil)
		}, seen{"GET", "/v1/events", "follow=true&n=3&since=2026-01-02T02%3A04%3A05Z&type=staged&type=warning&volume=v", ""}},
		"logs": {"", func() error {
			s, err := c.PluginLogs(ctx, "p", apiclient.LogOptions{Lines: 2, Follow: true})
			if err == nil {
				err = s.Close()
			}
			return err
		}, seen{"GET", "/v1/plugins/p/logs", "follow=true&lines=2", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			reply = tt.reply
			if err := tt.call(); err != nil {
				t.Fatal(err)
			}
			if got != tt.want {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

// TestIDsArriveWhole checks that ids arrive at the server unchanged. The server has the same kind
// of routes as the agent.
func TestIDsArriveWhole(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/volumes/{id}/claims/{alloc}", func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(api.Claim{Volume: r.PathValue("id"), Alloc: r.PathValue("alloc")})
	})
	c := serve(t, mux.ServeHTTP)
	for _, id := range []string{"data[0]", "a%2Fb", "%", "a b", "日本", "a;b", "...", "a?b#c", "+"} {
		got, err := c.Claim(t.Context(), id, id)
		if err != nil || got.Volume != id || got.Alloc != id {
			t.Errorf("%q: got %+v, %v", id, got, err)
		}
	}
	for _, id := range []string{"", ".", ".."} {
		_, err := c.Claim(t.Context(), id, "x")
		_ = wantError(t, err, api.CodeInvalid, "an id cannot be")
	}
}

func wantError(t *testing.T, err error, code api.Code, message string) *api.Error {
	t.Helper()
	var e *api.Error
	if !errors.As(err, &e) {
		t.Fatalf("not an api.Error: %v", err)
	}
	if e.Code != code || !strings.Contains(e.Message, message) {
		t.Fatalf("got %s %q, want %s %q", e.Code, e.Message, code, message)
	}
	return e
}

func TestAnsweredError(t *testing.T) {
	want := api.Error{Code: api.CodeRefused, Message: "held", Hint: "do x", Details: map[string]string{"alloc": "web"}}
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(want.Code.HTTPStatus())
		_ = json.NewEncoder(w).Encode(api.ErrorBody{Error: &want})
	})
	_, err := c.Volume(t.Context(), "x")
	if got := wantError(t, err, api.CodeRefused, "held"); !reflect.DeepEqual(*got, want) {
		t.Errorf("got %+v, want %+v", *got, want)
	}
}

func TestForeignAnswers(t *testing.T) {
	for name, tt := range map[string]struct {
		h    http.HandlerFunc
		want string
	}{
		"html":          {answer("<html>"), "its answer is not JSON"},
		"empty":         {answer(""), "its answer is empty"},
		"null":          {answer("null\n"), "its answer is empty"},
		"two values":    {answer("{} {}"), "its answer is not JSON"},
		"cut short":     {answer(`{"spec":{"id":"x"`), "its answer is not JSON"},
		"another type":  {answer(`{"state":5}`), "cannot unmarshal number into Go struct field Volume.state of type string"},
		"list":          {answer(`[]`), "an unexpected type: cannot unmarshal array"},
		"error as html": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "<h1>", http.StatusBadGateway) }, `it answered "502 Bad Gateway" without a reason`},
		"error of others": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, `{"message":"page not found"}`, http.StatusNotFound)
		}, `it answered "404 Not Found" without a reason`},
		"redirect": {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/", http.StatusMovedPermanently) }, `it answered "301 Moved Permanently"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := serve(t, tt.h).Volume(t.Context(), "x")
			_ = wantError(t, err, api.CodeFailed, tt.want)
		})
	}
	got, err := serve(t, answer("null")).Volumes(t.Context())
	if err != nil || got == nil || len(got) != 0 {
		t.Errorf("a list may be null: got %#v, %v", got, err)
	}
}

func TestNoAgent(t *testing.T) {
	dir := shortDir(t)
	stale := filepath.Join(dir, "stale")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for socket, want := range map[string]string{
		filepath.Join(dir, "none"): "there is no such socket",
		stale:                      "no process listens on it",
		filepath.Join(dir, strings.Repeat("x", 120)):                   "too long for a socket",
		filepath.Join(dir, "none", "..", "none") /* no such parent */ : "there is no such socket",
	} {
		_, err := apiclient.New(socket).Health(t.Context())
		e := wantError(t, err, api.CodeUnreachable, want)
		if !strings.Contains(e.Message, socket) || !strings.HasPrefix(e.Hint, "start the agent for this socket") || e.Details[apiclient.DetailDropped] != "" {
			t.Errorf("%s: got %+v", socket, e)
		}
	}
}

// TestNoPermission checks the error for a caller without permission. Root always has permission, so
// the test runs its own binary as another user.
func TestNoPermission(t *testing.T) {
	if socket := os.Getenv("VOLCTL_TEST_SOCKET"); socket != "" {
		_, err := apiclient.New(socket).Health(t.Context())
		e := wantError(t, err, api.CodePermission, "no permission to use the socket "+socket)
		if !strings.Contains(e.Hint, "as root") || !strings.Contains(e.Hint, os.Getenv("VOLCTL_TEST_GROUP")) {
			t.Errorf("hint %q", e.Hint)
		}
		return
	}
	if os.Getuid() != 0 {
		t.Skip("needs root, to be somebody else")
	}
	dir := shortDir(t)
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	binary := filepath.Join(dir, "t")
	for _, step := range []error{os.Chmod(dir, 0o711), os.Chmod(socket, 0o660), os.Chown(socket, 0, 54321), copyFile(os.Args[0], binary), os.Chmod(binary, 0o755)} {
		if step != nil {
			t.Fatal(step)
		}
	}
	for _, tt := range []struct {
		mode os.FileMode
		hint string
	}{{0o711, "the group 54321"}, {0o700, "socket_group"}} {
		cmd := exec.CommandContext(t.Context(), "/proc/self/fd/3", "-test.run=^TestNoPermission$")
		f, err := os.Open(binary)
		if err != nil {
			t.Fatal(err)
		}
		cmd.ExtraFiles = []*os.File{f}
		cmd.Dir = "/"
		cmd.Env = []string{"VOLCTL_TEST_SOCKET=" + socket, "VOLCTL_TEST_GROUP=" + tt.hint, "PATH=/"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if err := os.Chmod(dir, tt.mode); err != nil {
			t.Fatal(err)
		}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "PASS") {
			t.Errorf("as nobody: %v\n%s", err, out)
		}
		_ = f.Close()
	}
}

func copyFile(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o755)
}

func TestAgentGoesAway(t *testing.T) {
	c := serve(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	_, err := c.ClaimVolume(t.Context(), "v", "a", api.ClaimRequest{}, time.Second)
	e := wantError(t, err, api.CodeUnreachable, "disconnected before it answered")
	if e.Details[apiclient.DetailDropped] != "true" || strings.Contains(e.Message, "http://") {
		t.Errorf("got %+v", e)
	}

	partial := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"type":"a"}`+"\n")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	var got []string
	err = partial.Events(t.Context(), apiclient.EventFilter{Follow: true}, func(e api.Event) error {
		got = append(got, e.Type)
		return nil
	})
	_ = wantError(t, err, api.CodeUnreachable, "disconnected before it answered")
	if len(got) != 1 || got[0] != "a" {
		t.Errorf("events before the end: %v", got)
	}
	logs, err := partial.PluginLogs(t.Context(), "p", apiclient.LogOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer logs.Close()
	text, err := io.ReadAll(logs)
	_ = wantError(t, err, api.CodeUnreachable, "disconnected before it answered")
	if string(text) != `{"type":"a"}`+"\n" {
		t.Errorf("logs before the end: %q", text)
	}
}

// TestCancelReachesTheAgent checks that the client closes the connection when the context ends. The
// agent then knows that the caller no longer waits for a claim.
func TestCancelReachesTheAgent(t *testing.T) {
	arrived, gone := make(chan bool, 1), make(chan bool, 1)
	c := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		arrived <- true
		<-r.Context().Done()
		gone <- true
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	_, err := c.ClaimVolume(ctx, "v", "a", api.ClaimRequest{}, time.Minute)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	select {
	case <-gone:
	case <-time.After(60 * time.Second):
		t.Error("the agent was not told")
	}
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.Health(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want context.DeadlineExceeded", err)
	}
}

func TestEvents(t *testing.T) {
	c := serve(t, answer("{\"seq\":1}\n\n{\"seq\":2}\n{\"seq\":3}"))
	var got []uint64
	err := c.Events(t.Context(), apiclient.EventFilter{}, func(e api.Event) error { got = append(got, e.Seq); return nil })
	if err != nil || !reflect.DeepEqual(got, []uint64{1, 2, 3}) {
		t.Errorf("got %v, %v", got, err)
	}
	stop := errors.New("enough")
	if err := c.Events(t.Context(), apiclient.EventFilter{}, func(api.Event) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("got %v, want the caller's error", err)
	}
	err = serve(t, answer("oops\n")).Events(t.Context(), apiclient.EventFilter{}, nil)
	_ = wantError(t, err, api.CodeFailed, "not JSON")
	err = serve(t, answer(strings.Repeat("x", 2<<20))).Events(t.Context(), apiclient.EventFilter{}, nil)
	_ = wantError(t, err, api.CodeFailed, "longer than 1 MiB")
}
