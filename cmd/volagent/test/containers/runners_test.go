package containers_test

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
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
	"github.com/volagent/volagent/volmgr/csitest/san"
)

func TestMain(m *testing.M) {
	if san.IsChild() {
		os.Exit(san.Main())
	}
	harness.Main(m)
}

// way is one way to run a plugin, for example as a command or in a container.
type way struct {
	name string
	// plugin is the id of the plugin.
	plugin string
	// prepare prepares the host for this way of running the plugin. The test calls prepare before
	// the agent starts.
	prepare func(h harness.Recorded)
}

// TestRunners runs the same test with each way to run a plugin. During the test a process writes to
// one volume, and a client repeatedly claims and detaches another volume. The test replaces the
// agent by another version, and each agent must take over the running plugin. Then the test kills
// the plugin 50 times. The plugin must restart each time, and the plugin's status and the events
// must show the restarts.
func TestRunners(t *testing.T) {
	for _, w := range []way{
		{"exec", "rec", func(h harness.Recorded) { h.WritePlugin(callTimeout) }},
		{"builtin", "local", func(h harness.Recorded) { writePluginFile(h, "local", "builtin: local") }},
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

// callTimeout is the timeout of each call to the plugin. If the agent is killed during a
// NodeUnstageVolume, the next agent waits for this time, because the call may still be in progress.
const callTimeout = "5s"

// writePluginFile writes a plugin file. The line in runner defines how the agent runs the plugin.
func writePluginFile(h harness.Recorded, id, runner string) {
	h.T.Helper()
	h.Must(os.WriteFile(filepath.Join(h.Dir, "plugins.d", id+".yaml"), fmt.Appendf(nil, "id: %s\n%s\ntimeouts: {node: %s, controller: %s}\n",
		id, runner, callTimeout, callTimeout), 0o644))
}

// kills is the number of times that the test kills a plugin.
const kills = 50

func (w way) run(t *testing.T) {
	h := harness.Recorded{Host: harness.NewHost(t)}
	h.Config = csitest.Config{Base: filepath.Join(h.Dir, "p"), NodeID: "test-host", Attach: true, Stage: true, AnyVolume: true}
	t.Cleanup(h.ExpectNoViolations)
	w.prepare(h)
	h.Start(w.plugin)
	for _, id := range []string{"data", "churn"} {
		w.volume(h, id)
	}
	log := h.StartWriter(h.Volctl("volume", "claim", "data", "--alloc", "writer"))
	load := startLoad(h.Host, "churn")
	pid, mounts := h.PluginPID(w.plugin), mountsOf(h.Host, "data")

	for _, end := range []func(){
		h.Kill,
		func() { h.Must(h.Signal(syscall.SIGTERM)); h.Program = newer(t) },
		h.Kill,
	} {
		cycles, was := load.cycles.Load(), harness.FileSize(log)
		end()
		h.Await("the writer to go on without the agent", func() bool { return harness.FileSize(log) > was })
		h.Start(w.plugin)
		h.Await("the load to go on", func() bool { return load.cycles.Load() > cycles+1 })
		if got := h.PluginPID(w.plugin); got != pid {
			t.Fatalf("the plugin is process %d, was %d", got, pid)
		}
	}
	h.ExpectExit(0, "agent "+newerVersion, "node", "status")
	w.killed(h)
	load.stop()

	if got := mountsOf(h.Host, "data"); got != mounts {
		t.Errorf("the mounts changed:\n%s\nwere:\n%s", got, mounts)
	}
	was := harness.FileSize(log)
	h.Await("the writer to go on", func() bool { return harness.FileSize(log) > was })
	h.ExpectExit(0, " healthy", "node", "status")
}

// killed kills the plugin repeatedly and waits for a restart after each kill.
func (w way) killed(h harness.Recorded) {
	h.T.Helper()
	before := w.status(h)
	for n := range kills {
		was := w.status(h)
		h.Must(syscall.Kill(was.PID, syscall.SIGKILL))
		h.Await(fmt.Sprintf("the plugin to be back after kill %d", n+1), func() bool {
			now := w.status(h)
			return now.State == api.PluginReady && now.PID != was.PID && now.PID != 0
		})
	}
	if now := w.status(h); now.Restarts < before.Restarts+kills {
		h.T.Errorf("%d restarts are shown, %d were before %d kills", now.Restarts, before.Restarts, kills)
	}
	ready := map[string]int{}
	for _, e := range harness.Events(h.Host) {
		if e.Plugin == w.plugin && e.Type == "plugin-ready" {
			ready[e.Message]++
		}
	}
	for n := range kills {
		if msg := fmt.Sprintf("ready: restart %d since the agent was started", before.Restarts+n+1); ready[msg] == 0 {
			h.T.Errorf("no event says %q; there are %v", msg, ready)
		}
	}
}

func (w way) status(h harness.Recorded) *api.Plugin {
	h.T.Helper()
	p, err := apiclient.New(h.Socket()).Plugin(h.T.Context(), w.plugin)
	h.Must(err)
	return p
}

// volume creates or registers a volume of the plugin.
func (w way) volume(h harness.Recorded, id string) {
	h.T.Helper()
	if w.plugin == "local" {
		h.Volctl("volume", "create", id, "--plugin", "local")
		return
	}
	h.Register(id, "single-node-writer")
}

// serveSocket runs the plugin outside the agent and restarts the plugin whenever it ends.
func serveSocket(h harness.Recorded) {
	socket := filepath.Join(h.Dir, "csi.sock")
	writePluginFile(h, "rec", "socket: "+socket)
	env, err := h.Config.Environment()
	h.Must(err)
	self, err := os.Executable()
	h.Must(err)
	ctx, cancel := context.WithCancel(context.Background())
	var over sync.WaitGroup
	over.Go(func() {
		for ctx.Err() == nil {
			cmd := exec.CommandContext(ctx, self)
			cmd.Env = append(append(os.Environ(), "CSI_ENDPOINT=unix://"+socket), env...)
			cmd.Stderr = h.Log
			_ = cmd.Run() // Run returns an error when the process is killed
		}
	})
	h.T.Cleanup(func() { cancel(); over.Wait() })
}

// load is a client that repeatedly claims and detaches one volume.
type load struct {
	h      *harness.Host
	cycles atomic.Int64 // number of completed cycles
	cancel context.CancelFunc
	over   sync.WaitGroup
}

// startLoad starts a load on a volume. The load stops at the end of the test, if not earlier.
func startLoad(h *harness.Host, volume string) *load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{h: h, cancel: cancel}
	l.over.Go(func() {
		for ctx.Err() == nil {
			if l.do(ctx, "claim", volume, "--alloc", "churn") && l.do(ctx, "detach", volume, "churn", "--ignore-not-found") {
				l.cycles.Add(1)
			}
		}
	})
	h.T.Cleanup(func() { cancel(); l.over.Wait() })
	return l
}

// do runs one command and reports whether the command succeeded. A failure is an error of the test
// unless no agent is running.
func (l *load) do(ctx context.Context, args ...string) bool {
	cmd := exec.Command(filepath.Join(harness.BinDir, "volctl"), append([]string{"volume"}, args...)...)
	cmd.Env = l.h.Env
	out, err := cmd.CombinedOutput()
	if err == nil {
		return true
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 {
		l.h.T.Errorf("volctl volume %s: %v\n%s", strings.Join(args, " "), err, out)
		l.cancel()
		return false
	}
	select { // wait for the restart of the agent
	case <-ctx.Done():
	case <-time.After(20 * time.Millisecond):
	}
	return false
}

// stop stops the load and waits for the end of its current cycle.
func (l *load) stop() { l.cancel(); l.over.Wait() }

// mountsOf returns the lines of the mount table for the paths of one volume.
func mountsOf(h *harness.Host, volume string) string {
	var lines []string
	for line := range strings.Lines(h.Mounts()) {
		if filepath.Base(strings.Fields(line)[4]) == volume {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

const newerVersion = "99.0.0-test"

// buildNewer builds volagent with another version number and returns the path of the program.
var buildNewer = sync.OnceValues(func() (string, error) {
	program := filepath.Join(harness.BinDir, "newer", "volagent")
	out, err := exec.Command("go", "build", "-buildvcs=false", "-ldflags", "-X github.com/volagent/volagent/agent/api.Version="+newerVersion,
		"-o", program, "../../../volagent").CombinedOutput()
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
