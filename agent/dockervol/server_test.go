package dockervol

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/peer"
	"github.com/volagent/volagent/volmgr/plugin"
)

// serving starts a server and returns a function that calls it over its socket.
func serving(t *testing.T, s *Service) (v *Server, call func(method, body string) (int, map[string]any, error)) {
	t.Helper()
	return serve(t, NewServer(s))
}

// serve runs a server, and returns a function that calls it over its socket.
func serve(t *testing.T, v *Server) (_ *Server, call func(method, body string) (int, map[string]any, error)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s.sock")
	l, err := net.Listen("unix", path)
	must(t, err)
	served := make(chan error, 1)
	go func() { served <- v.Serve(l) }()
	t.Cleanup(func() {
		must(t, v.Close(context.Background()))
		must(t, <-served)
	})
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}}
	return v, func(method, body string) (int, map[string]any, error) {
		resp, err := client.Post("http://plugin/"+method, contentType, strings.NewReader(body))
		if err != nil {
			return 0, nil, err
		}
		defer resp.Body.Close()
		var raw bytes.Buffer
		_, err = raw.ReadFrom(resp.Body)
		must(t, err)
		answer := map[string]any{}
		if err := json.Unmarshal(raw.Bytes(), &answer); err != nil {
			t.Errorf("%s: %q: %v", method, raw.String(), err)
		}
		return resp.StatusCode, answer, nil
	}
}

// TestServer sends every call of the protocol in the forms of docker and podman. An error must not
// have status 200, which podman treats as a success.
func TestServer(t *testing.T) {
	_, s := newWorld(t, "data")
	_, call := serving(t, s)
	for _, c := range []struct {
		method, body string
		code         int
		want         string
	}{
		{"Plugin.Activate", "", 200, `{"Implements":["VolumeDriver"]}`},
		{"VolumeDriver.Capabilities", "{}", 200, `{"Capabilities":{"Scope":"local"}}`},
		{"VolumeDriver.Get", `{"Name":"data"}`, 500, `{"Err":"docker has no volume \"data\" here (hint: docker volume create -d csi data)"}`},
		{"VolumeDriver.Create", `{"Name":"data","Opts":null}`, 200, `{}`},
		{"VolumeDriver.Create", `{"Name":"nope","Opts":{}}`, 500, ""},
		{"VolumeDriver.Mount", `{"Name":"data","ID":"c1"}`, 200, `{"Mountpoint":"/t/docker/data"}`},
		{"VolumeDriver.Path", `{"Name":"data"}`, 200, `{"Mountpoint":"/t/docker/data"}`},
		{"VolumeDriver.List", "null", 200, ""},
		{"VolumeDriver.Remove", `{"Name":"data"}`, 500, ""},
		{"VolumeDriver.Unmount", `{"Name":"data","ID":"c1"}`, 200, `{}`},
		{"VolumeDriver.Remove", `{"Name":"data"}`, 200, `{}`},
		{"VolumeDriver.List", "", 200, `{"Volumes":[]}`},
		{"VolumeDriver.Create", `{"Name":"data","Opts":{"ro":true}}`, 500, ""},
		{"VolumeDriver.Create", `{"Name":"data","More":{"a":[1]}} trailing`, 200, `{}`},
		{"VolumeDriver.Create", `{"Name":"../data"}`, 500, ""},
		{"VolumeDriver.Mount", `{"Name":"data","ID":"` + strings.Repeat("x", 300) + `"}`, 500,
			`{"Err":"docker mounts volume \"data\" with an id of 300 bytes; the maximum is 256"}`},
		{"VolumeDriver.List", `{"Name":"` + strings.Repeat("x", 2<<20) + `"}`, 500, `{"Err":"cannot read the request: http: request body too large"}`},
		{"VolumeDriver.Mount", `{"Name":`, 500, `{"Err":"cannot read the request: unexpected EOF"}`},
		{"NetworkDriver.GetCapabilities", "", 500, `{"Err":"POST /NetworkDriver.GetCapabilities is not a call of the volume plugin API"}`},
	} {
		code, answer, err := call(c.method, c.body)
		must(t, err)
		got, err := json.Marshal(answer)
		must(t, err)
		if code != c.code || c.want != "" && string(got) != c.want {
			t.Errorf("%s %s: %d %s, want %d %s", c.method, c.body, code, got, c.code, c.want)
		}
	}
}

// TestServerNameless checks a call that docker repeats without its content. The server must not
// send an answer that docker would misread as one about its volume.
func TestServerNameless(t *testing.T) {
	w, s := newWorld(t, "data")
	_, call := serving(t, s)
	if code, answer, err := call("VolumeDriver.Create", `{"Name":"data"}`); code != 200 || err != nil {
		t.Fatalf("create: %d %v, %v", code, answer, err)
	}
	for _, method := range []string{"VolumeDriver.Get", "VolumeDriver.Path"} {
		for _, body := range []string{"", "{}", `{"Name":`} {
			if code, answer, err := call(method, body); err == nil {
				t.Errorf("%s %q: %d %v, want no answer", method, body, code, answer)
			}
		}
	}
	for _, method := range []string{"VolumeDriver.Create", "VolumeDriver.Mount", "VolumeDriver.Remove"} {
		code, answer, err := call(method, "")
		must(t, err)
		if text, _ := answer["Err"].(string); code != 500 || !strings.Contains(text, "docker repeated it without its content") {
			t.Errorf("%s: %d %v", method, code, answer)
		}
	}
	if code, answer, err := call("VolumeDriver.Unmount", ""); code != 200 || err != nil {
		t.Errorf("unmount: %d %v, %v", code, answer, err)
	}
	if _, ok := w.RuntimeVolume("docker", "data"); !ok || len(w.names) != 1 {
		t.Errorf("the names are %v", w.names)
	}
}

// TestServerStops checks that a stopping agent closes the connection without an answer. The runtime
// then repeats the call after the agent's restart. If the agent answered that the mount failed, the
// runtime would not repeat the call.
func TestServerStops(t *testing.T) {
	w, s := newWorld(t, "data")
	must(t, s.Create(t.Context(), docker, "data", nil))
	v, call := serving(t, s)
	waiting := make(chan struct{})
	w.mount = func(ctx context.Context) error {
		close(waiting)
		<-ctx.Done()
		return ctx.Err()
	}
	failed := make(chan error)
	go func() {
		_, _, err := call("VolumeDriver.Mount", `{"Name":"data","ID":"c1"}`)
		failed <- err
	}()
	<-waiting
	must(t, v.Close(t.Context()))
	if err := <-failed; err == nil {
		t.Error("there was an answer")
	}
	w.want("references", w.refs("data"), "c1")
	w.want("claims", w.claims(), "data docker")
}

// TestRuntimeOf checks that the program of the caller identifies the runtime.
func TestRuntimeOf(t *testing.T) {
	for exe, want := range map[string]string{
		"/usr/bin/podman": plugin.RuntimePodman, "/usr/bin/podman (deleted)": plugin.RuntimePodman, "/opt/podman-5.1": plugin.RuntimePodman,
		"/usr/sbin/dockerd": plugin.RuntimeDocker, "/usr/bin/curl": plugin.RuntimeDocker, "": plugin.RuntimeDocker,
	} {
		if got := runtimeOf(exe); got != want {
			t.Errorf("%q is %s, want %s", exe, got, want)
		}
	}
	for want, p := range map[string]peer.Peer{
		"does not identify": {}, "uid 12345 may not use": {UID: 12345, Known: true, PID: 1}, "has ended (pid 4194305)": {Known: true, PID: 4194305},
	} {
		_, err := caller(p)
		says(t, err, want)
	}
	if r, err := caller(peer.Peer{Known: true}); err != nil || r.Runtime != plugin.RuntimeDocker {
		t.Errorf("one in another pid namespace is %+v, %v", r, err)
	}
	self := processOf(os.Getpid())
	if self == "" || self != processOf(os.Getpid()) || self == processOf(os.Getppid()) || processOf(4194305) != "" {
		t.Errorf("this process is %q, its parent %q, and one that is gone %q", self, processOf(os.Getppid()), processOf(4194305))
	}
}
