package containers_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// contained is a host on which the plugin "rec" runs in a container.
type contained struct {
	harness.Recorded
	box *harness.Box
}

// bothRuntimes runs a test with podman and with docker.
func bothRuntimes(t *testing.T, test func(t *testing.T, name string)) {
	t.Parallel()
	for _, name := range []string{"podman", "docker"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, name)
		})
	}
}

// newContained prepares the host but does not start an agent.
func newContained(t testing.TB, b *harness.Box) contained {
	t.Helper()
	h := harness.Recorded{Host: harness.NewHost(t)}
	h.Config = csitest.Config{
		Base: filepath.Join(h.Dir, "p"), NodeID: "test-host",
		Attach: true, Stage: true, Stats: true, AnyVolume: true, MultiWriter: true,
	}
	t.Cleanup(h.ExpectNoViolations)
	return inContainers(h, b)
}

// inContainers prepares a host for plugins in containers. The agent uses the container runtime of
// the tests, and the data dir is a shared mount.
func inContainers(r harness.Recorded, b *harness.Box) contained {
	r.T.Helper()
	h := contained{r, b}
	h.Env = append(h.Env, b.Env...)
	h.T.Cleanup(func() {
		if h.Cmd != nil {
			h.Kill()
		}
		if h.T.Failed() {
			h.T.Logf("the plugin's log:\n%s", h.ReadFiles("d/plugins/rec/plugin.log"))
		}
		if b.Daemon != nil {
			h.Must(b.Daemon.Process.Signal(syscall.SIGCONT)) // a test may have sent SIGSTOP
		}
		if b.Daemon != nil || b.Name == "podman" {
			h.Must(b.RemoveAll("--filter", "label=volagent.dir="+h.place()))
		}
	})
	shareDataDir(h.Host)
	h.Must(os.Mkdir(h.Config.Base, 0o755))
	return h
}

// containerWay returns a function that prepares a host whose plugin runs in a container.
func containerWay(name string) func(harness.Recorded) {
	return func(r harness.Recorded) {
		h := inContainers(r, harness.SharedBox(r.T, name))
		h.writeContainer(h.recorder(nil))
	}
}

// shareDataDir makes the data dir a shared mount. On most hosts all mounts are shared.
func shareDataDir(h *harness.Host) {
	h.T.Helper()
	dir := filepath.Join(h.Dir, "d")
	h.Must(os.Mkdir(dir, 0o711))
	h.Must(syscall.Mount(dir, dir, "", syscall.MS_BIND, ""))
	h.Must(syscall.Mount("", dir, "", syscall.MS_SHARED, ""))
}

// place returns the directory that the agent keeps for the plugin "rec".
func (h contained) place() string { return filepath.Join(h.Dir, "d", "plugins", "rec") }

// container is the "container" section of a plugin file.
type container = map[string]any

// writeContainer writes the plugin file with the given container section. The argument more
// contains additional keys and values.
func (h contained) writeContainer(c container, more ...any) {
	h.T.Helper()
	c["runtime"] = h.box.Name
	file := map[string]any{"id": "rec", "container": c, "timeouts": map[string]string{"node": callTimeout, "controller": callTimeout}}
	for i := 0; i+1 < len(more); i += 2 {
		file[more[i].(string)] = more[i+1]
	}
	text, err := json.Marshal(file)
	h.Must(err)
	name := filepath.Join(h.Dir, "plugins.d", "rec.yaml")
	h.Must(os.WriteFile(name+".new", text, 0o644))
	h.Must(os.Rename(name+".new", name))
}

// recorder returns a container section for the recording plugin with additional environment
// variables.
func (h contained) recorder(env map[string]any) container {
	h.T.Helper()
	vars, err := h.Config.Environment()
	h.Must(err)
	all := map[string]any{}
	for name, v := range env {
		all[name] = v
	}
	for _, v := range vars {
		name, value, _ := strings.Cut(v, "=")
		all[name] = value
	}
	return container{"image": harness.PluginImage, "env": all, "mounts": []string{h.Config.Base + ":" + h.Config.Base}}
}

// shell returns a container section that runs a shell script.
func (h contained) shell(script string) container {
	return container{"image": harness.ShellImage, "args": []string{script}}
}

// containers returns the ids of this host's containers, whether they are running or not.
func (h contained) containers() []string {
	h.T.Helper()
	return strings.Fields(h.box.Must(h.T, "ps", "-aq", "--no-trunc", "--filter", "label=volagent.dir="+h.place()))
}

// only returns the id of this host's container. It fails the test unless there is exactly one.
func (h contained) only() string {
	h.T.Helper()
	all := h.containers()
	if len(all) != 1 {
		h.T.Fatalf("there are %d containers: %v", len(all), all)
	}
	return all[0]
}

// plugin returns the status of the plugin.
func (h contained) plugin() *api.Plugin {
	h.T.Helper()
	p, err := apiclient.New(h.Socket()).Plugin(h.T.Context(), "rec")
	h.Must(err)
	return p
}

// says waits until the plugin has the given state and its reason contains the given words.
func (h contained) says(state string, words ...string) {
	h.T.Helper()
	var p *api.Plugin
	for end := time.Now().Add(100 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		p = h.plugin()
		if p.State == state && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(p.Reason, w) }) {
			return
		}
	}
	h.T.Fatalf("the plugin is %s: %q; want %s: %q", p.State, p.Reason, state, words)
}

// recordArgs puts a script into PATH in place of the runtime's program. The script appends its
// arguments to a file, runs the shell commands in the argument first, and then runs the program.
// recordArgs returns the name of the file.
func (h contained) recordArgs(first string) (notes string) {
	h.T.Helper()
	program, err := exec.LookPath(h.box.Name)
	h.Must(err)
	dir := filepath.Join(h.Dir, "bin")
	h.Must(os.Mkdir(dir, 0o755))
	notes = filepath.Join(h.Dir, "args")
	h.Must(os.WriteFile(filepath.Join(dir, h.box.Name), fmt.Appendf(nil, "#!/bin/sh\necho \"$@\" >> %s\n%s\nexec %s \"$@\"\n", notes, first, program), 0o755))
	h.setPath(dir + ":" + harness.BinDir + ":" + os.Getenv("PATH"))
	return notes
}

// setPath sets PATH in the agent's environment.
func (h contained) setPath(path string) {
	for i, v := range h.Env {
		if strings.HasPrefix(v, "PATH=") {
			h.Env[i] = "PATH=" + path
		}
	}
}

// TestContainer checks the life of a plugin in a container. The container outlives the agent,
// restarts after a kill, and can be stopped and started. Only the container sees the plugin's
// secret.
func TestContainer(t *testing.T) {
	bothRuntimes(t, func(t *testing.T, name string) {
		const planted = "pl4nt3d-c0nt41n3r"
		h := newContained(t, harness.SharedBox(t, name))
		args := h.recordArgs("")
		h.Must(os.WriteFile(filepath.Join(h.Dir, "secret"), []byte(planted+"\n"), 0o600))
		h.writeContainer(h.recorder(map[string]any{
			"TOKEN": map[string]string{"file": h.Dir + "/secret"}, "PATH": "/nowhere", "PLACE": "${STATE_DIR}",
		}))
		h.Start("rec")
		h.Register("data", "single-node-writer")
		log := h.StartWriter(h.Volctl("volume", "claim", "data", "--alloc", "a"))
		id, pid, mounts, mark := h.only(), h.PluginPID("rec"), mountsOf(h.Host, "data"), h.Mark()
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		h.Must(err)
		for _, want := range []string{"TOKEN=" + planted, "PATH=/nowhere", "PLACE=" + h.place() + "/state", "CSI_ENDPOINT=unix://" + h.Dir, "VOLAGENT_INCARNATION="} {
			if !strings.Contains(string(environ), want) {
				t.Errorf("the container has no %s", want)
			}
		}

		for _, end := range []func(){h.Kill, func() { h.Must(h.Signal(syscall.SIGTERM)) }} {
			end()
			h.Start("rec")
			h.Await("the volume to be looked at", func() bool { return strings.Contains(h.Volctl("volume", "list"), " mounted ") })
			if h.only() != id || h.PluginPID("rec") != pid {
				t.Fatal("another container serves the plugin")
			}
			h.ExpectCalls(mark)
		}

		// Kill the container directly, not through the agent.
		h.box.Must(t, "kill", id)
		h.Await("another container", func() bool { p := h.plugin(); return p.State == api.PluginReady && p.PID != pid })
		p := h.plugin()
		if p.Restarts != 1 || !strings.Contains(p.LastExit, "SIGKILL") {
			t.Errorf("after a kill: %d restarts, last exit %q", p.Restarts, p.LastExit)
		}
		if again := h.only(); again == id {
			t.Error("the container is still the old one")
		}
		if !slices.ContainsFunc(harness.Events(h.Host), func(e harness.Event) bool {
			return e.Plugin == "rec" && e.Type == "plugin-backing-off" && strings.Contains(e.Message, "SIGKILL")
		}) {
			t.Error("no event tells of the kill")
		}
		h.box.Must(t, "rm", "-f", h.only()) // removing the container must have the same effect
		h.Await("another container", func() bool { q := h.plugin(); return q.State == api.PluginReady && q.PID != p.PID })
		h.only()

		h.ExpectExit(4, "in use", "plugin", "stop", "rec")
		h.Volctl("plugin", "restart", "rec", "-y")
		h.only()
		h.Volctl("plugin", "stop", "rec", "--force")
		if left := h.containers(); len(left) != 0 {
			t.Errorf("a container is left after a stop: %v", left)
		}
		h.Volctl("plugin", "start", "rec")
		if got := mountsOf(h.Host, "data"); got != mounts {
			t.Errorf("the mounts changed:\n%s\nwere:\n%s", got, mounts)
		}
		was := harness.FileSize(log)
		h.Await("the writer to go on", func() bool { return harness.FileSize(log) > was })
		h.Register("other", "single-node-writer")
		h.Volctl("volume", "claim", "other", "--alloc", "b")
		h.Volctl("volume", "detach", "other")

		said := h.Volctl("plugin", "status", "rec", "-o", "json") + h.Volctl("plugin", "logs", "rec") + h.Volctl("events") +
			h.ReadFiles("d/state.*") + h.ReadFiles("agent.log") + h.ReadFiles("d/events/*") + h.ReadFiles("args")
		if i := strings.Index(said, planted); i >= 0 {
			t.Errorf("the secret stands in: %q", said[max(0, i-200):i])
		}
		if raw, err := os.ReadFile(args); err != nil || !strings.Contains(string(raw), "--env TOKEN ") {
			t.Errorf("the runtime was called with (%v)\n%s", err, raw)
		}
	})
}

// TestContainerLogs checks that the plugin's log has all lines of the container in their order.
// This includes the last line and the lines that the container wrote while no agent was running. A
// line appears twice only after a kill of the agent.
func TestContainerLogs(t *testing.T) {
	bothRuntimes(t, func(t *testing.T, name string) {
		h := newContained(t, harness.SharedBox(t, name))
		h.Must(os.WriteFile(filepath.Join(h.Dir, "secret"), []byte("wh1sp3r\n"), 0o600))
		c := h.shell(`n=1; while test ! -e ${STATE_DIR}/end; do echo line $n; n=$((n+1)); /bin/busybox sleep 0.01; done; echo token $TOKEN >&2; echo last $n; exit 3`)
		c["env"] = map[string]any{"TOKEN": map[string]string{"file": h.Dir + "/secret"}}
		h.writeContainer(c)
		h.Start()
		lines := func() []string { return strings.Split(h.Volctl("plugin", "logs", "rec", "-n", "100000"), "\n") }
		for range 3 {
			was := len(lines())
			h.Await("more in the log", func() bool { return len(lines()) > was+100 })
			h.Kill()
			h.Start()
		}
		id := h.only()
		h.Must(os.WriteFile(filepath.Join(h.place(), "state", "end"), nil, 0o644))
		// Do not send requests to the agent here, because a request would make it read the log.
		h.Await("the container to be gone", func() bool { return !slices.Contains(h.containers(), id) })
		h.says(api.PluginBackingOff, "exited with status 3 before it was ready")
		got := lines()
		last := slices.IndexFunc(got, func(l string) bool { return strings.HasPrefix(l, "last ") })
		if last < 100 {
			t.Fatalf("line %d of %q is the last one", last, got[max(0, len(got)-5):])
		}
		n, twice := 1, 0
		for _, l := range got[:last] {
			if l == "token ***" {
				continue // a line of stderr may overtake lines of stdout
			}
			number, err := strconv.Atoi(strings.TrimPrefix(l, "line "))
			if err == nil && number < n && twice < 3 {
				n, twice = number, twice+1 // the killed agent did not record that it copied the line
			}
			if number != n {
				t.Fatalf("after line %d comes %q", n-1, l)
			}
			n++
		}
		if want := fmt.Sprintf("last %d", n); got[last] != want {
			t.Errorf("the log ends with %q, want %q", got[last], want)
		}
		if !slices.Contains(got, "token ***") {
			t.Error("the secret is not hidden, or not there")
		}
	})
}
