package containers_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

// TestContainerBad checks that the agent reports each mistake with its reason and a fix. Once the
// mistake is corrected, the plugin becomes ready without a further command.
func TestContainerBad(t *testing.T) {
	bothRuntimes(t, func(t *testing.T, name string) {
		r := harness.SharedBox(t, name)
		for _, tt := range []struct {
			name string
			test func(t *testing.T, h contained)
		}{
			{"the runtime is not installed", containerNoRuntime},
			{"the image is not there", containerNoImage},
			{"the image is being pulled", containerPull},
			{"it exits at once", func(t *testing.T, h contained) {
				h.writeContainer(h.shell("echo cannot work like this >&2; exit 7"))
				h.Start()
				h.says(api.PluginBackingOff, "exited with status 7 before it was ready")
				h.ExpectExit(0, "cannot work like this", "plugin", "status", "rec")
			}},
			{"what it wants mounted is missing", func(t *testing.T, h contained) {
				h.writeContainer(container{"image": harness.ShellImage, "mounts": []string{"/nosuch:/x"}})
				h.Start()
				h.says(api.PluginBackingOff, `cannot mount "/nosuch:/x"`, "no such file")
			}},
			{"its program is missing", func(t *testing.T, h contained) {
				c := h.recorder(nil)
				c["image"], c["mounts"] = harness.ShellImage, []string{"/dev/null:/bin/busybox"}
				h.writeContainer(c)
				h.Start()
				h.says(api.PluginBackingOff, h.box.Name+" run failed")
				h.Volctl("plugin", "stop", "rec")
				if left := h.containers(); len(left) != 0 {
					t.Errorf("a container that cannot be started is left: %v", left)
				}
			}},
			{"it never opens its socket", func(t *testing.T, h contained) {
				h.writeContainer(h.shell("echo not today; exec /bin/busybox sleep 1000"), "health", map[string]string{"start_timeout": "1s"})
				h.Start()
				h.says(api.PluginBackingOff, "not ready after 1s: it has not opened its socket")
				h.ExpectExit(0, "not today", "plugin", "status", "rec")
			}},
			{"its name is taken", containerNameTaken},
			{"nothing is shared", containerNotShared},
			{"its file is removed", containerFileGone},
			{"the agent dies as it is made", containerAgentDies},
			{"its record is lost", containerRecordLost},
		} {
			t.Run(tt.name, func(t *testing.T) {
				t.Parallel()
				tt.test(t, newContained(t, r))
			})
		}
	})
}

func containerNoRuntime(t *testing.T, h contained) {
	path := os.Getenv("PATH")
	h.setPath(harness.BinDir)
	h.writeContainer(h.recorder(nil))
	h.Start()
	h.says(api.PluginBackingOff, fmt.Sprintf("cannot run %q", h.box.Name), "PATH", "apt-get install "+h.box.Name)
	h.Must(h.Signal(syscall.SIGTERM))
	h.setPath(path)
	h.Start("rec")
}

// containerNoImage checks that the agent starts the plugin once the missing image exists.
func containerNoImage(t *testing.T, h contained) {
	image := "localhost/late-" + filepath.Base(h.Dir) + ":1"
	c := h.recorder(nil)
	c["image"] = image
	h.writeContainer(c)
	h.Start()
	h.says(api.PluginBackingOff, h.box.Name+" pull "+image, "never")
	h.box.Must(t, "tag", harness.PluginImage, image)
	h.says(api.PluginReady)
	h.box.Must(t, "rmi", "-f", image)
}

// containerPull checks that the plugin's status shows a slow pull. The agent aborts the pull when
// the plugin or the agent is stopped.
func containerPull(t *testing.T, h contained) {
	image := "localhost/pulled-" + filepath.Base(h.Dir) + ":1"
	gate := filepath.Join(h.Dir, "gate")
	// The test has no image registry, so this script simulates a slow pull.
	args := h.recordArgs(fmt.Sprintf(`if [ "$1" = pull ]; then
trap 'echo pull ended >> %[4]s; exit 1' TERM
echo pull began >> %[4]s
while test ! -e %[1]s; do sleep 0.05; done
set -- tag %[2]s %[3]s
fi`, gate, harness.PluginImage, image, filepath.Join(h.Dir, "args")))
	c := h.recorder(nil)
	c["image"], c["pull"] = image, "missing"
	h.writeContainer(c, "health", map[string]string{"start_timeout": "2s"})
	pulls := func(what string) int {
		raw, err := os.ReadFile(args)
		h.Must(err)
		return strings.Count(string(raw), "pull "+what)
	}
	h.Start()
	h.says(api.PluginStarting, "pulling image "+image)
	h.Await("the pull to be under way", func() bool { return pulls("began") == 1 })
	h.Volctl("plugin", "stop", "rec") // the agent must abort the pull
	h.Await("the pull to end", func() bool { return pulls("ended") == 1 })
	h.Volctl("plugin", "start", "rec", "--no-wait")
	h.says(api.PluginStarting, "pulling image "+image)
	h.Await("the second pull to be under way", func() bool { return pulls("began") == 2 })
	h.Must(h.Signal(syscall.SIGTERM))
	h.Await("the pull to end with the agent", func() bool { return pulls("ended") == 2 })
	h.Start()
	h.says(api.PluginStarting, "pulling image "+image)
	began := time.Now()
	h.Await("more than the start timeout to pass", func() bool { return time.Since(began) > 2500*time.Millisecond })
	h.says(api.PluginStarting, "pulling image "+image)
	h.Must(os.WriteFile(gate, nil, 0o644))
	h.says(api.PluginReady)
	h.box.Must(t, "rmi", "-f", image)
}

// containerFileGone removes the file of a plugin that runs in a container. The agent keeps the
// container until the last claim is detached, and then removes it.
func containerFileGone(t *testing.T, h contained) {
	h.writeContainer(h.recorder(nil))
	h.Start("rec")
	h.Register("data", "single-node-writer")
	h.Volctl("volume", "claim", "data")
	id := h.only()
	h.Must(os.Remove(filepath.Join(h.Dir, "plugins.d", "rec.yaml")))
	h.Await("the file to be missed", func() bool { return h.plugin().Pending != "" })
	if h.only() != id {
		t.Error("another container serves the plugin")
	}
	h.Volctl("volume", "detach", "data")
	h.Await("the container to go", func() bool { return len(h.containers()) == 0 })
}

// containerAgentDies kills the agent after the runtime created a container and before the agent
// learns of the container. The next agent must find this container and create no second one.
func containerAgentDies(t *testing.T, h contained) {
	once := filepath.Join(h.Dir, "once")
	h.recordArgs(fmt.Sprintf(`if [ "$1" = run ] && mkdir %s 2>/dev/null; then
PATH=${PATH#*:} %s "$@" && kill -9 $PPID
exit
fi`, once, h.box.Name))
	h.Start()
	h.writeContainer(h.recorder(nil))
	if err := h.Cmd.Wait(); err == nil {
		t.Fatal("the agent ended by itself")
	}
	h.Cmd = nil
	id := h.only()
	h.Start("rec")
	if h.only() != id {
		t.Error("another container serves the plugin")
	}
}

// containerRecordLost checks that the agent recognizes a container by its labels when the state
// database is lost. The agent replaces a container that it created from another definition.
func containerRecordLost(t *testing.T, h contained) {
	lose := func() {
		h.Kill()
		states, err := filepath.Glob(filepath.Join(h.Dir, "d", "state.*"))
		h.Must(err)
		for _, path := range states {
			h.Must(os.Remove(path))
		}
	}
	h.writeContainer(h.recorder(nil))
	h.Start("rec")
	id := h.only()
	lose()
	h.Start("rec")
	if h.only() != id {
		t.Error("another container serves the plugin")
	}
	lose()
	h.writeContainer(h.recorder(map[string]any{"NEW": "1"}))
	h.Start("rec")
	if h.only() == id {
		t.Error("the container of the old definition serves the plugin")
	}
}

// containerNameTaken creates a foreign container with the name that the agent wants to use. The
// agent must not touch this container.
func containerNameTaken(t *testing.T, h contained) {
	h.writeContainer(h.recorder(nil))
	h.Start("rec")
	name := strings.TrimPrefix(h.box.Must(t, "inspect", "--format", "{{.Name}}", h.only()), "/")
	h.Volctl("plugin", "stop", "rec")
	other := h.box.Must(t, "create", "--name", name, "--network", "host", harness.ShellImage, "true")
	h.Volctl("plugin", "start", "rec", "--no-wait")
	h.says(api.PluginBackingOff, "a container with that name exists that this agent did not make", h.box.Name+" inspect "+name)
	h.box.Must(t, "inspect", other)
	h.box.Must(t, "rm", other)
	h.Volctl("plugin", "start", "rec")
}

// containerNotShared checks that the agent does not start the container if the host could not see
// the container's mounts.
func containerNotShared(t *testing.T, h contained) {
	dir := filepath.Join(h.Dir, "d")
	h.Must(syscall.Mount("", dir, "", syscall.MS_PRIVATE, ""))
	h.writeContainer(h.recorder(nil))
	h.Start()
	h.says(api.PluginBackingOff, "not on a shared mount", "mount --make-rshared /")
	if left := h.containers(); len(left) != 0 {
		t.Errorf("containers: %v", left)
	}
	h.Must(syscall.Mount("", dir, "", syscall.MS_SHARED, ""))
	h.says(api.PluginReady)
}

// TestDockerDown checks that the plugin's status names a docker daemon that is down. The plugin's
// container stops with the daemon, and the plugin becomes ready again when the daemon is back.
func TestDockerDown(t *testing.T) {
	t.Parallel()
	b := harness.OwnBox(t, &harness.Box{Name: "docker"})
	h := newContained(t, b)
	h.writeContainer(h.recorder(nil))
	h.Start("rec")
	pid := h.PluginPID("rec")
	h.Must(b.StopDaemon())
	h.says(api.PluginBackingOff, "the daemon of docker cannot be reached", "systemctl start docker")
	h.Must(b.StartDaemon())
	h.says(api.PluginReady)
	if h.PluginPID("rec") == pid {
		t.Error("the plugin outlived its daemon")
	}
	h.only()
}

// TestDockerHangs checks that a hung docker daemon blocks no request and does not disturb a running
// plugin. The operator can still stop the plugin.
func TestDockerHangs(t *testing.T) {
	t.Parallel()
	b := harness.OwnBox(t, &harness.Box{Name: "docker"})
	h := newContained(t, b)
	h.writeContainer(h.recorder(nil))
	h.Start("rec")
	h.Register("data", "single-node-writer")
	id, pid := h.only(), h.PluginPID("rec")
	h.Must(b.Daemon.Process.Signal(syscall.SIGSTOP))
	began := time.Now()
	quickly := func(what string) {
		t.Helper()
		if took := time.Since(began); took > 8*time.Second { // a request must not wait for a docker command, whose timeout is 10 s
			t.Errorf("with a daemon that hangs, %s took %s", what, took)
		}
		began = time.Now()
	}
	h.Volctl("plugin", "status", "rec")
	h.Volctl("plugin", "logs", "rec")
	quickly("a status and a log")
	h.Volctl("volume", "claim", "data", "--alloc", "a")
	h.Kill()
	h.Start("rec")
	h.Volctl("volume", "detach", "data")
	if h.PluginPID("rec") != pid {
		t.Error("another process serves the plugin")
	}
	quickly("a claim, a detach and another agent")
	h.Volctl("plugin", "stop", "rec", "--timeout", "90s")
	h.Await("its end", func() bool { return harness.ProcessEnded(pid) })
	h.Volctl("plugin", "start", "rec", "--no-wait")
	h.says(api.PluginBackingOff, "did not end within", "hangs")
	h.Volctl("plugin", "start", "rec", "--no-wait")
	h.says(api.PluginStarting)
	began = time.Now()
	h.Must(h.Signal(syscall.SIGTERM))
	quickly("the agent's end")
	h.Must(b.Daemon.Process.Signal(syscall.SIGCONT))
	h.Start("rec")
	if h.only() == id {
		t.Error("the container that was ended is back")
	}
}
