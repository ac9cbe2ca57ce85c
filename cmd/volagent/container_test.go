package main_test

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
	"github.com/volagent/volagent/volmgr/csitest"
)

// contained is a host on which the plugin "rec" runs in a container.
type contained struct {
	recorded
	box *box
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
func newContained(t testing.TB, b *box) contained {
	t.Helper()
	h := recorded{host: newHost(t)}
	h.cfg = csitest.Config{
		Base: filepath.Join(h.dir, "p"), NodeID: "test-host",
		Attach: true, Stage: true, Stats: true, AnyVolume: true, MultiWriter: true,
	}
	t.Cleanup(h.kept)
	return h.contain(b)
}

// contain prepares a host for plugins in containers. The agent uses the container runtime of the
// tests, and the data dir is a shared mount.
func (r recorded) contain(b *box) contained {
	r.t.Helper()
	h := contained{r, b}
	h.env = append(h.env, b.env...)
	h.t.Cleanup(func() {
		if h.cmd != nil {
			h.kill()
		}
		if h.t.Failed() {
			h.t.Logf("the plugin's log:\n%s", h.files("d/plugins/rec/plugin.log"))
		}
		if b.daemon != nil {
			h.must(b.daemon.Process.Signal(syscall.SIGCONT)) // a failed test may have left the daemon stopped
		}
		if b.daemon != nil || b.name == "podman" {
			h.must(b.removeAll("--filter", "label=volagent.dir="+h.place()))
		}
	})
	h.share()
	h.must(os.Mkdir(h.cfg.Base, 0o755))
	return h
}

// containerWay returns a function that prepares a host to run the plugin in a container.
func containerWay(name string) func(recorded) {
	return func(r recorded) {
		h := r.contain(newBox(r.t, name))
		h.writeContainer(h.recorder(nil))
	}
}

// share makes the data dir a shared mount. On most hosts all mounts are shared.
func (h *host) share() {
	h.t.Helper()
	dir := filepath.Join(h.dir, "d")
	h.must(os.Mkdir(dir, 0o711))
	h.must(syscall.Mount(dir, dir, "", syscall.MS_BIND, ""))
	h.must(syscall.Mount("", dir, "", syscall.MS_SHARED, ""))
}

// place returns the directory that the agent keeps for the plugin "rec".
func (h contained) place() string { return filepath.Join(h.dir, "d", "plugins", "rec") }

// container is the "container" section of a plugin file.
type container = map[string]any

// writeContainer writes the plugin file with the given container section. The argument more
// contains additional keys and values.
func (h contained) writeContainer(c container, more ...any) {
	h.t.Helper()
	c["runtime"] = h.box.name
	file := map[string]any{"id": "rec", "container": c, "timeouts": map[string]string{"node": callTimeout, "controller": callTimeout}}
	for i := 0; i+1 < len(more); i += 2 {
		file[more[i].(string)] = more[i+1]
	}
	text, err := json.Marshal(file)
	h.must(err)
	name := filepath.Join(h.dir, "plugins.d", "rec.yaml")
	h.must(os.WriteFile(name+".new", text, 0o644))
	h.must(os.Rename(name+".new", name))
}

// recorder returns a container section for the recording plugin with additional environment
// variables.
func (h contained) recorder(env map[string]any) container {
	h.t.Helper()
	vars, err := h.cfg.Environment()
	h.must(err)
	all := map[string]any{}
	for name, v := range env {
		all[name] = v
	}
	for _, v := range vars {
		name, value, _ := strings.Cut(v, "=")
		all[name] = value
	}
	return container{"image": pluginImage, "env": all, "mounts": []string{h.cfg.Base + ":" + h.cfg.Base}}
}

// shell returns a container section that runs a shell script.
func (h contained) shell(script string) container {
	return container{"image": shellImage, "args": []string{script}}
}

// containers returns the ids of this host's containers, whether they are running or not.
func (h contained) containers() []string {
	h.t.Helper()
	return strings.Fields(h.box.must(h.t, "ps", "-aq", "--no-trunc", "--filter", "label=volagent.dir="+h.place()))
}

// only returns the id of this host's container. It fails the test unless there is exactly one.
func (h contained) only() string {
	h.t.Helper()
	all := h.containers()
	if len(all) != 1 {
		h.t.Fatalf("there are %d containers: %v", len(all), all)
	}
	return all[0]
}

// plugin returns the status of the plugin.
func (h contained) plugin() *api.Plugin {
	h.t.Helper()
	p, err := apiclient.New(h.socket()).Plugin(h.t.Context(), "rec")
	h.must(err)
	return p
}

// says waits until the plugin has the given state and its reason contains the given words.
func (h contained) says(state string, words ...string) {
	h.t.Helper()
	var p *api.Plugin
	for end := time.Now().Add(100 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		p = h.plugin()
		if p.State == state && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(p.Reason, w) }) {
			return
		}
	}
	h.t.Fatalf("the plugin is %s: %q; want %s: %q", p.State, p.Reason, state, words)
}

// recordArgs puts a script into PATH in place of the runtime's program. The script appends its
// arguments to a file, runs the shell commands in first, and then runs the program. recordArgs
// returns the name of the file.
func (h contained) recordArgs(first string) (notes string) {
	h.t.Helper()
	program, err := exec.LookPath(h.box.name)
	h.must(err)
	dir := filepath.Join(h.dir, "bin")
	h.must(os.Mkdir(dir, 0o755))
	notes = filepath.Join(h.dir, "args")
	h.must(os.WriteFile(filepath.Join(dir, h.box.name), fmt.Appendf(nil, "#!/bin/sh\necho \"$@\" >> %s\n%s\nexec %s \"$@\"\n", notes, first, program), 0o755))
	h.setPath(dir + ":" + binDir + ":" + os.Getenv("PATH"))
	return notes
}

// setPath sets PATH in the agent's environment.
func (h contained) setPath(path string) {
	for i, v := range h.env {
		if strings.HasPrefix(v, "PATH=") {
			h.env[i] = "PATH=" + path
		}
	}
}

// TestContainer checks the life of a plugin in a container. The container outlives the agent,
// restarts after a kill, and can be stopped and started. Only the container sees the plugin's
// secret.
func TestContainer(t *testing.T) {
	bothRuntimes(t, func(t *testing.T, name string) {
		const planted = "pl4nt3d-c0nt41n3r"
		h := newContained(t, newBox(t, name))
		args := h.recordArgs("")
		h.must(os.WriteFile(filepath.Join(h.dir, "secret"), []byte(planted+"\n"), 0o600))
		h.writeContainer(h.recorder(map[string]any{
			"TOKEN": map[string]string{"file": h.dir + "/secret"}, "PATH": "/nowhere", "PLACE": "${STATE_DIR}",
		}))
		h.start("rec")
		h.register("data", "single-node-writer")
		log := h.writer(h.volctl("volume", "claim", "data", "--alloc", "a"))
		id, pid, mounts, mark := h.only(), h.pluginPID("rec"), h.mountsOf("data"), h.mark()
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		h.must(err)
		for _, want := range []string{"TOKEN=" + planted, "PATH=/nowhere", "PLACE=" + h.place() + "/state", "CSI_ENDPOINT=unix://" + h.dir, "VOLAGENT_INCARNATION="} {
			if !strings.Contains(string(environ), want) {
				t.Errorf("the container has no %s", want)
			}
		}

		for _, end := range []func(){h.kill, func() { h.must(h.signal(syscall.SIGTERM)) }} {
			end()
			h.start("rec")
			h.await("the volume to be looked at", func() bool { return strings.Contains(h.volctl("volume", "list"), " mounted ") })
			if h.only() != id || h.pluginPID("rec") != pid {
				t.Fatal("another container serves the plugin")
			}
			h.expect(mark)
		}

		// Kill the container without the agent.
		h.box.must(t, "kill", id)
		h.await("another container", func() bool { p := h.plugin(); return p.State == api.PluginReady && p.PID != pid })
		p := h.plugin()
		if p.Restarts != 1 || !strings.Contains(p.LastExit, "SIGKILL") {
			t.Errorf("after a kill: %d restarts, last exit %q", p.Restarts, p.LastExit)
		}
		if again := h.only(); again == id {
			t.Error("the container is still the old one")
		}
		if !slices.ContainsFunc(h.happened(), func(e happening) bool {
			return e.Plugin == "rec" && e.Type == "plugin-backing-off" && strings.Contains(e.Message, "SIGKILL")
		}) {
			t.Error("no event tells of the kill")
		}
		h.box.must(t, "rm", "-f", h.only()) // removing the container must have the same effect
		h.await("another container", func() bool { q := h.plugin(); return q.State == api.PluginReady && q.PID != p.PID })
		h.only()

		h.exits(4, "in use", "plugin", "stop", "rec")
		h.volctl("plugin", "restart", "rec", "-y")
		h.only()
		h.volctl("plugin", "stop", "rec", "--force")
		if left := h.containers(); len(left) != 0 {
			t.Errorf("a container is left after a stop: %v", left)
		}
		h.volctl("plugin", "start", "rec")
		if got := h.mountsOf("data"); got != mounts {
			t.Errorf("the mounts changed:\n%s\nwere:\n%s", got, mounts)
		}
		was := size(log)
		h.await("the writer to go on", func() bool { return size(log) > was })
		h.register("other", "single-node-writer")
		h.volctl("volume", "claim", "other", "--alloc", "b")
		h.volctl("volume", "detach", "other")

		said := h.volctl("plugin", "status", "rec", "-o", "json") + h.volctl("plugin", "logs", "rec") + h.volctl("events") +
			h.files("d/state.*") + h.files("agent.log") + h.files("d/events/*") + h.files("args")
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
		h := newContained(t, newBox(t, name))
		h.must(os.WriteFile(filepath.Join(h.dir, "secret"), []byte("wh1sp3r\n"), 0o600))
		c := h.shell(`n=1; while test ! -e ${STATE_DIR}/end; do echo line $n; n=$((n+1)); /bin/busybox sleep 0.01; done; echo token $TOKEN >&2; echo last $n; exit 3`)
		c["env"] = map[string]any{"TOKEN": map[string]string{"file": h.dir + "/secret"}}
		h.writeContainer(c)
		h.start()
		lines := func() []string { return strings.Split(h.volctl("plugin", "logs", "rec", "-n", "100000"), "\n") }
		for range 3 {
			was := len(lines())
			h.await("more in the log", func() bool { return len(lines()) > was+100 })
			h.kill()
			h.start()
		}
		id := h.only()
		h.must(os.WriteFile(filepath.Join(h.place(), "state", "end"), nil, 0o644))
		// Do not send requests to the agent here, because a request would make it read the log.
		h.await("the container to be gone", func() bool { return !slices.Contains(h.containers(), id) })
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
				n, twice = number, twice+1 // the killed agent had copied these lines without recording that
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
