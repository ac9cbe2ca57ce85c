package containers_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

// served is a host whose agent is the volume plugin of a container runtime.
type served struct {
	*harness.Host
	box    *harness.Box
	driver string // name of the agent's volume plugin in the runtime
}

// newServed starts an agent that serves volumes to the given runtime.
func newServed(t testing.TB, b *harness.Box) served {
	t.Helper()
	s := served{Host: harness.NewHost(t)}
	s.driver = "csi" + filepath.Base(s.Dir)
	if err := harness.ShowPlugins(); err != nil {
		t.Fatal(err)
	}
	sock := s.pluginSocket()
	s.Must(os.WriteFile(filepath.Join(s.Dir, "volagent.yaml"), []byte("docker_socket: "+sock+"\n"), 0o644))
	s.box = withDriver(t, b, s.driver, sock)
	s.Env = append(s.Env, s.box.Env...)
	t.Cleanup(func() {
		if s.Cmd != nil {
			s.Must(s.Signal(syscall.SIGTERM))
		}
		if t.Failed() && s.box.Daemon != nil {
			raw, err := os.ReadFile(filepath.Join(s.box.Dir, "log"))
			t.Logf("dockerd's log: %v\n%s", err, raw)
		}
	})
	s.Start("local")
	return s
}

func (s served) pluginSocket() string { return filepath.Join(harness.DockerPlugins, s.driver+".sock") }

// withDriver returns the runtime with the agent as its volume plugin. Docker finds the plugin in
// its plugin directory. Podman needs the plugin in its configuration.
func withDriver(t testing.TB, r *harness.Box, driver, sock string) *harness.Box {
	t.Helper()
	if r.Name == "docker" {
		return r
	}
	base, err := os.ReadFile(filepath.Join(r.Dir, "containers.conf"))
	if err != nil {
		t.Fatal(err)
	}
	conf := filepath.Join(r.Dir, driver+".conf")
	base = fmt.Appendf(base, "volume_plugin_timeout = 20\n[engine.volume_plugins]\n%s = %q\n", driver, sock)
	if err := os.WriteFile(conf, base, 0o644); err != nil {
		t.Fatal(err)
	}
	own := &harness.Box{Name: r.Name, Dir: r.Dir}
	for _, v := range r.Env {
		if !strings.HasPrefix(v, "CONTAINERS_CONF=") {
			own.Env = append(own.Env, v)
		}
	}
	own.Env = append(own.Env, "CONTAINERS_CONF="+conf)
	return own
}

// create creates a volume with a command of the container runtime.
func (s served) create(name string, opts ...string) (string, error) {
	args := []string{"volume", "create", "--driver", s.driver}
	for _, o := range opts {
		args = append(args, "--opt", o)
	}
	return s.box.Run(append(args, name)...)
}

// run starts a container that only sleeps. Each volume is written as for the option -v.
func (s served) run(name string, volumes ...string) {
	s.T.Helper()
	s.box.Must(s.T, s.runArgs(name, volumes...)...)
	s.T.Cleanup(func() { _, _ = s.box.Run("rm", "-f", name) }) // other checks find leftovers
}

func (s served) runArgs(name string, volumes ...string) []string {
	args := []string{"run", "-d", "--name", name, "--network", "none", "--stop-timeout", "1"}
	for _, v := range volumes {
		args = append(args, "-v", v)
	}
	return append(args, harness.ShellImage, "exec /bin/busybox sleep 10000")
}

// sh runs a shell command in a container.
func (s served) sh(name, words string) string {
	s.T.Helper()
	return s.box.Must(s.T, "exec", name, "/bin/busybox", "sh", "-c", words)
}

// claims returns one string for each claim: its volume, alloc, state, runtime, and number of
// references.
func (s served) claims() (out []string) {
	s.T.Helper()
	var claims []api.Claim
	if err := json.Unmarshal([]byte(s.Volctl("claim", "list", "-o", "json")), &claims); err != nil {
		s.T.Fatal(err)
	}
	for _, c := range claims {
		out = append(out, fmt.Sprintf("%s %s %s %s %d", c.Volume, c.Alloc, c.State, c.Owner.Runtime, c.Owner.References))
	}
	slices.Sort(out)
	return out
}

// holds waits until the host has exactly the given claims.
func (s served) holds(want ...string) {
	s.T.Helper()
	var got []string
	s.Await(fmt.Sprintf("the claims %q", want), func() bool {
		got = s.claims()
		return slices.Equal(got, want)
	})
}

// clean waits until the host has no claim and no mount.
func (s served) clean() {
	s.T.Helper()
	s.holds()
	s.Await("the mounts to go", func() bool { return s.Mounts() == "" })
}

// says asserts that a command of the runtime failed and that its output contains all given words.
func (s served) says(out string, err error, words ...string) {
	s.T.Helper()
	if err == nil {
		s.T.Errorf("it was not refused: %s", out)
	}
	for _, w := range words {
		if !strings.Contains(out, w) {
			s.T.Errorf("got %q, want %q in it", out, w)
		}
	}
}

// call sends a request of docker's volume plugin protocol to the agent, in the same way as docker.
func (s served) call(method string, q map[string]any) (code int, answer map[string]any) {
	s.T.Helper()
	raw, err := json.Marshal(q)
	s.Must(err)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", s.pluginSocket())
	}}, Timeout: 100 * time.Second}
	resp, err := client.Post("http://plugin/"+method, "application/json", bytes.NewReader(raw))
	s.Must(err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	s.Must(err)
	if err := json.Unmarshal(body, &answer); err != nil {
		s.T.Fatalf("%s answers %q: %v", method, body, err)
	}
	return resp.StatusCode, answer
}

// inspect returns the information that the runtime has about a volume.
func (s served) inspect(name string) (v struct {
	Mountpoint string
	Status     map[string]any
}) {
	s.T.Helper()
	var all []json.RawMessage
	s.Must(json.Unmarshal([]byte(s.box.Must(s.T, "volume", "inspect", name)), &all))
	s.Must(json.Unmarshal(all[0], &v))
	return v
}

// unique returns a name that no other test with the shared runtime uses.
func (s served) unique(name string) string { return name + "." + filepath.Base(s.Dir) }
