package main_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/volmgr/csitest"
)

// way is one way to run a plugin, such as a command or a container.
type way struct {
	name string
	// plugin is the id of the plugin.
	plugin string
	// prepare prepares the host for this way. The test calls it before the agent starts.
	prepare func(h recorded)
}

// TestRunners runs the same test with each way to run a plugin. During the test a process writes to
// one volume, and a client repeatedly claims and detaches another volume. The test replaces the
// agent by another version, and each agent must take over the running plugin. Then the test kills
// the plugin 50 times, and the plugin restarts each time. The plugin's status and the events must
// show this.
func TestRunners(t *testing.T) {
	for _, w := range []way{
		{"exec", "rec", func(h recorded) { h.writePlugin(callTimeout) }},
		{"builtin", "local", func(h recorded) { h.writeFile("local", "builtin: local") }},
		{"socket", "rec", serveSocket},
		{"podman", "rec", containerWay("podman")},
		{"docker", "rec", containerWay("docker")},
	} {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			w.run(t)
		})
	}
}

// callTimeout is the timeout of each call to the plugin. After a kill during an unstage, the next
// agent waits this long, because it cannot know earlier that the plugin has finished the call.
const callTimeout = "5s"

// writeFile writes a plugin file. The line runner defines how the agent runs the plugin.
func (h recorded) writeFile(id, runner string) {
	h.t.Helper()
	h.must(os.WriteFile(filepath.Join(h.dir, "plugins.d", id+".yaml"), fmt.Appendf(nil, "id: %s\n%s\ntimeouts: {node: %s, controller: %s}\n",
		id, runner, callTimeout, callTimeout), 0o644))
}

// kills is the number of times that a test kills a plugin in a row.
const kills = 50

func (w way) run(t *testing.T) {
	h := recorded{host: newHost(t)}
	h.cfg = csitest.Config{Base: filepath.Join(h.dir, "p"), NodeID: "test-host", Attach: true, Stage: true, AnyVolume: true}
	t.Cleanup(h.kept)
	w.prepare(h)
	h.start(w.plugin)
	for _, id := range []string{"data", "churn"} {
		w.volume(h, id)
	}
	log := h.writer(h.volctl("volume", "claim", "data", "--alloc", "writer"))
	load := h.churn("churn")
	pid, mounts := h.pluginPID(w.plugin), h.mountsOf("data")

	for _, end := range []func(){
		h.kill,
		func() { h.must(h.signal(syscall.SIGTERM)); h.program = newer(t) },
		h.kill,
	} {
		cycles, was := load.cycles.Load(), size(log)
		end()
		h.await("the writer to go on without the agent", func() bool { return size(log) > was })
		h.start(w.plugin)
		h.await("the load to go on", func() bool { return load.cycles.Load() > cycles+1 })
		if got := h.pluginPID(w.plugin); got != pid {
			t.Fatalf("the plugin is process %d, was %d", got, pid)
		}
	}
	h.exits(0, "agent "+newerVersion, "node", "status")
	w.killed(h)
	load.stop()

	if got := h.mountsOf("data"); got != mounts {
		t.Errorf("the mounts changed:\n%s\nwere:\n%s", got, mounts)
	}
	was := size(log)
	h.await("the writer to go on", func() bool { return size(log) > was })
	h.exits(0, " healthy", "node", "status")
}

// killed kills the plugin repeatedly and waits for each restart.
func (w way) killed(h recorded) {
	h.t.Helper()
	before := w.status(h)
	for n := range kills {
		was := w.status(h)
		h.must(syscall.Kill(was.PID, syscall.SIGKILL))
		h.await(fmt.Sprintf("the plugin to be back after kill %d", n+1), func() bool {
			now := w.status(h)
			return now.State == api.PluginReady && now.PID != was.PID && now.PID != 0
		})
	}
	if now := w.status(h); now.Restarts < before.Restarts+kills {
		h.t.Errorf("%d restarts are shown, %d were before %d kills", now.Restarts, before.Restarts, kills)
	}
	ready := map[string]int{}
	for _, e := range h.happened() {
		if e.Plugin == w.plugin && e.Type == "plugin-ready" {
			ready[e.Message]++
		}
	}
	for n := range kills {
		if msg := fmt.Sprintf("ready: restart %d since the agent was started", before.Restarts+n+1); ready[msg] == 0 {
			h.t.Errorf("no event says %q; there are %v", msg, ready)
		}
	}
}

func (w way) status(h recorded) *api.Plugin {
	h.t.Helper()
	p, err := apiclient.New(h.socket()).Plugin(h.t.Context(), w.plugin)
	h.must(err)
	return p
}

// volume creates or registers a volume of the plugin.
func (w way) volume(h recorded, id string) {
	h.t.Helper()
	if w.plugin == "local" {
		h.volctl("volume", "create", id, "--plugin", "local")
		return
	}
	h.register(id, "single-node-writer")
}

// serveSocket runs the plugin without the agent, and restarts it whenever it ends.
func serveSocket(h recorded) {
	socket := filepath.Join(h.dir, "csi.sock")
	h.writeFile("rec", "socket: "+socket)
	env, err := h.cfg.Environment()
	h.must(err)
	self, err := os.Executable()
	h.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	var over sync.WaitGroup
	over.Go(func() {
		for ctx.Err() == nil {
			cmd := exec.CommandContext(ctx, self)
			cmd.Env = append(append(os.Environ(), "CSI_ENDPOINT=unix://"+socket), env...)
			cmd.Stderr = h.log
			_ = cmd.Run() // the process was killed
		}
	})
	h.t.Cleanup(func() { cancel(); over.Wait() })
}

// load is a client that repeatedly claims and detaches one volume.
type load struct {
	h      *host
	cycles atomic.Int64 // completed cycles
	cancel context.CancelFunc
	over   sync.WaitGroup
}

// churn starts a load on a volume. The load ends with the test at the latest.
func (h *host) churn(volume string) *load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{h: h, cancel: cancel}
	l.over.Go(func() {
		for ctx.Err() == nil {
			if l.do(ctx, "claim", volume, "--alloc", "churn") && l.do(ctx, "detach", volume, "churn", "--ignore-not-found") {
				l.cycles.Add(1)
			}
		}
	})
	h.t.Cleanup(func() { cancel(); l.over.Wait() })
	return l
}

// do runs one command and reports whether the command succeeded. The command may fail only because
// no agent is running.
func (l *load) do(ctx context.Context, args ...string) bool {
	cmd := exec.Command(filepath.Join(binDir, "volctl"), append([]string{"volume"}, args...)...)
	cmd.Env = l.h.env
	out, err := cmd.CombinedOutput()
	if err == nil {
		return true
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 {
		l.h.t.Errorf("volctl volume %s: %v\n%s", strings.Join(args, " "), err, out)
		l.cancel()
		return false
	}
	select { // the agent is being restarted
	case <-ctx.Done():
	case <-time.After(20 * time.Millisecond):
	}
	return false
}

// stop ends the load after its current cycle.
func (l *load) stop() { l.cancel(); l.over.Wait() }

// mountsOf returns the lines of the mount table for the paths of one volume.
func (h *host) mountsOf(volume string) string {
	var lines []string
	for line := range strings.Lines(h.mounts()) {
		if filepath.Base(strings.Fields(line)[4]) == volume {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

const newerVersion = "99.0.0-test"

// buildNewer builds volagent with another version number and returns the path of the program.
var buildNewer = sync.OnceValues(func() (string, error) {
	program := filepath.Join(binDir, "newer", "volagent")
	out, err := exec.Command("go", "build", "-buildvcs=false", "-ldflags", "-X github.com/volagent/volagent/agent/api.Version="+newerVersion,
		"-o", program, "../volagent").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("cannot build: %w\n%s", err, out)
	}
	return program, err
})

// newer returns the path of a volagent program with another version number.
func newer(t testing.TB) string {
	t.Helper()
	program, err := buildNewer()
	if err != nil {
		t.Fatal(err)
	}
	return program
}
