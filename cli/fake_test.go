package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/mount"
)

var update = flag.Bool("update", false, "rewrite the expected outputs")

// now is the current time in all tests of this package.
var now = time.Date(2026, 3, 10, 3, 12, 11, 0, time.UTC)

func ago(d time.Duration) time.Time { return now.Add(-d) }

// fake is a fake agent. It has fixed answers, and functions that answer special requests.
type fake struct {
	volumes []api.Volume
	plugins []api.Plugin
	node    *api.Node
	// on maps "METHOD /path" to the function that answers this request. The function replaces the
	// fixed answer.
	on map[string]func(r *http.Request) (any, error)

	warning string // the warning of each answer

	mu       sync.Mutex
	requests []string
}

// raw is the text of an answer that is not JSON.
type raw string

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	line := r.Method + " " + r.URL.RequestURI()
	if len(body) > 0 {
		line += " " + string(body)
	}
	f.mu.Lock()
	f.requests = append(f.requests, line)
	f.mu.Unlock()
	r.Body = io.NopCloser(bytes.NewReader(body))
	if f.warning != "" {
		w.Header().Set(api.WarningHeader, f.warning)
	}
	answer, err := f.answer(r)
	if err != nil {
		var e *api.Error
		if !errors.As(err, &e) {
			panic(http.ErrAbortHandler) // the fake agent closes the connection
		}
		w.WriteHeader(e.Code.HTTPStatus())
		_ = json.NewEncoder(w).Encode(api.ErrorBody{Error: e})
		return
	}
	if text, ok := answer.(raw); ok {
		_, _ = io.WriteString(w, string(text))
		return
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func (f *fake) answer(r *http.Request) (any, error) {
	f.mu.Lock()
	h := f.on[r.Method+" "+r.URL.Path]
	f.mu.Unlock()
	if h != nil {
		return h(r)
	}
	kind, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v1/"), "/")
	if r.Method != http.MethodGet {
		return nil, &api.Error{Code: api.CodeNotFound, Message: "no such volume"}
	}
	switch {
	case kind == "volumes" && rest == "":
		return f.volumes, nil
	case kind == "volumes":
		for _, v := range f.volumes {
			if v.Spec.ID == rest {
				return v, nil
			}
		}
		return nil, &api.Error{Code: api.CodeNotFound, Message: "no such volume"}
	case kind == "claims":
		claims := []api.Claim{}
		for _, v := range f.volumes {
			for _, c := range v.Claims {
				q := r.URL.Query()
				if (q.Get("volume") == "" || q.Get("volume") == c.Volume) && (q.Get("plugin") == "" || q.Get("plugin") == c.PluginID) && (q.Get("alloc") == "" || q.Get("alloc") == c.Alloc) {
					claims = append(claims, c)
				}
			}
		}
		return claims, nil
	case kind == "plugins" && rest == "":
		return f.plugins, nil
	case kind == "plugins":
		for _, p := range f.plugins {
			if p.ID == rest {
				return p, nil
			}
		}
		return nil, &api.Error{Code: api.CodeNotFound, Message: "no such plugin"}
	case kind == "node":
		return f.node, nil
	case kind == "health":
		return api.Health{Status: "ok", Version: "1.2.0"}, nil
	}
	return nil, &api.Error{Code: api.CodeFailed, Message: "the fake does not know " + r.URL.Path}
}

// sent returns the requests that the fake agent has received since the last call of sent.
func (f *fake) sent() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	sent := f.requests
	f.requests = nil
	return sent
}

// listen starts a server for the fake agent on a socket.
func (f *fake) listen(t *testing.T, socket string) *httptest.Server {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(f)
	srv.Listener = l
	srv.Config.ErrorLog = nil
	srv.Start()
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
	return srv
}

// shortDir returns a directory whose path is short enough for a socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "vc") //nolint:usetesting // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// run holds the environment in which a test runs volctl.
type run struct {
	ctx      context.Context
	socket   string
	env      map[string]string
	stdin    string
	terminal bool // whether stdin is a terminal
	colour   bool // whether stdout is a terminal
	columns  int  // the width of the terminal on stdout
	cgroup   string
	service  map[string]string // systemd's properties of the agent's unit
	program  string
	host     mount.Host
	// looks is the number of updates of the progress display. The updates then happen without real
	// pauses. 0 selects the real clock.
	looks int
}

type result struct {
	stdout, stderr string
	code           int
}

// with serves a fake agent until the test ends, and returns a run that connects to the agent.
func with(t *testing.T, f *fake) *run {
	t.Helper()
	socket := filepath.Join(shortDir(t), "s")
	f.listen(t, socket)
	return &run{ctx: t.Context(), socket: socket}
}

func (r run) volctl(args ...string) result {
	var stdout, stderr bytes.Buffer
	var pause func(context.Context, time.Duration) error
	if r.looks > 0 {
		pause = pauses(r.looks)
	}
	code := Run(r.ctx, Env{Host: r.host, Env: command.Env{
		Program: r.program,
		Args:    args, Stdin: strings.NewReader(r.stdin), Stdout: &stdout, Stderr: &stderr,
		StdinTerminal: r.terminal, StdoutTerminal: r.colour, Pause: pause,
		StdoutColumns: func() int { return r.columns },
		Now:           func() time.Time { return now },
		Cgroup:        func() ([]byte, error) { return []byte(r.cgroup), nil },
		Service:       func(context.Context, string) map[string]string { return r.service },
		Getenv: func(name string) string {
			if name == "VOLCTL_SOCKET" {
				return r.socket
			}
			return r.env[name]
		},
	}})
	out := func(b bytes.Buffer) string { return strings.ReplaceAll(b.String(), r.socket, "SOCKET") }
	return result{out(stdout), out(stderr), code}
}

// golden compares a text with a file in testdata.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v (write it with: go test ./cli -update)", err)
	}
	if got != string(want) {
		t.Errorf("%s differs (rewrite it with: go test ./cli -update)\n--- got\n%s\n--- want\n%s", file, got, want)
	}
}

// pauses returns a Pause function that returns immediately n times. After that, it blocks until ctx
// ends.
func pauses(n int) func(context.Context, time.Duration) error {
	return func(ctx context.Context, _ time.Duration) error {
		if n--; n < 0 {
			<-ctx.Done()
		}
		return ctx.Err()
	}
}
