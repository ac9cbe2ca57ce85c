package containers_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

// TestRuntimeCreates checks that the options of the runtime's command decide whether the agent
// creates a volume or uses a registered one. The runtime reports wrong options in its answer, and a
// failed create leaves no volume.
func TestRuntimeCreates(t *testing.T) {
	bothRuntimes(t, func(t *testing.T, name string) {
		s := newServed(t, harness.SharedBox(t, name))
		a, b := s.unique("a"), s.unique("b")
		s.Volctl("volume", "create", a, "--plugin", "local")

		out, err := s.create(a, "type=nfs")
		s.says(out, err, `unknown option "type"`, "param.type")
		out, err = s.create("systemd-" + a)
		s.says(out, err, `no volume "systemd-`+a+`" is registered`, "VolumeName="+a)
		out, err = s.create("shop_" + a)
		s.says(out, err, "name: "+a+" below it in the compose file")
		out, err = s.create(s.unique("nope"))
		s.says(out, err, "is registered", "-o plugin=local -o size=1GiB")
		out, err = s.create(strings.Repeat("x", 200))
		s.says(out, err, "has 200 bytes; at most 128 are allowed")
		out, err = s.create(b, "plugin=nope", "size=1GiB")
		s.says(out, err, `no plugin "nope"`)
		if code, answer := s.call("VolumeDriver.Create", map[string]any{"Name": "a/b"}); code != 500 || !strings.Contains(fmt.Sprint(answer["Err"]), "contains a slash") {
			t.Errorf("a slash: %d %v", code, answer)
		}
		if code, answer := s.call("VolumeDriver.Nonsense", nil); code != 500 || !strings.Contains(fmt.Sprint(answer["Err"]), "is not a call of") {
			t.Errorf("no call: %d %v", code, answer)
		}

		// Use the registered volume under another name, and create a volume with a plugin. Only the
		// option reclaim=delete deletes the data.
		if out, err = s.create(s.unique("other"), "device="+a); err != nil {
			t.Fatal(out)
		}
		if out, err = s.create(b, "o=plugin=local,size=64MiB", "reclaim=delete"); err != nil {
			t.Fatal(out)
		}
		if v := s.inspect(b); v.Status["volume"] != b || v.Status["state"] != "free" {
			t.Errorf("it is shown as %+v", v)
		}
		if got := s.Volctl("volume", "status", b, "-o", "go-template={{.spec.reclaim}} {{.spec.capacity_min}}"); got != "delete 67108864" {
			t.Errorf("it was made as %q", got)
		}
		s.box.Must(t, "volume", "rm", b, s.unique("other"))
		if got := s.Volctl("volume", "list", "-q"); got != a {
			t.Errorf("volumes: %q, want %q", got, a)
		}
		s.clean()
	})
}

// TestRuntimePluginDown starts a container while the plugin is down. The start fails with the
// reason before the runtime's own timeout, and leaves no claim and no mount.
func TestRuntimePluginDown(t *testing.T) {
	bothRuntimes(t, func(t *testing.T, name string) {
		s := newServed(t, harness.SharedBox(t, name))
		data, a := s.unique("data"), s.unique("a")
		if out, err := s.create(data, "plugin=local"); err != nil {
			t.Fatal(out)
		}
		s.Volctl("plugin", "stop", "local")
		out, err := s.box.Run(s.runArgs(a, data+":/data")...)
		t.Cleanup(func() { _, _ = s.box.Run("rm", "-f", a) })
		s.says(out, err, "volume \""+data+"\" is not mounted: plugin \"local\" is stopped", "volctl plugin start local", "withdrawn")
		s.clean()
		s.Volctl("plugin", "start", "local")
		s.box.Must(t, "start", a)
		s.holds(data + " " + name + " mounted " + name + " 1")
		s.box.Must(t, "rm", "-f", a)
		s.clean()
		s.box.Must(t, "volume", "rm", data)
	})
}

// TestRuntimeEnds checks that a claim ends when its container is killed. It also checks that a
// claim ends if the runtime has no container for the claim's reference.
func TestRuntimeEnds(t *testing.T) {
	bothRuntimes(t, func(t *testing.T, name string) {
		s := newServed(t, harness.SharedBox(t, name))
		data, lost, a := s.unique("data"), s.unique("lost"), s.unique("a")
		for _, v := range []string{data, lost} {
			if out, err := s.create(v, "plugin=local"); err != nil {
				t.Fatal(out)
			}
		}
		s.run(a, data+":/data")
		if name == "docker" { // every client except podman uses docker's protocol
			if code, answer := s.call("VolumeDriver.Mount", map[string]any{"Name": lost, "ID": "0123"}); code != 200 || answer["Mountpoint"] == "" {
				t.Fatalf("mount: %d %v", code, answer)
			}
			s.holds(data+" docker mounted docker 1", lost+" docker mounted docker 1")
			out, err := s.box.Run("volume", "rm", lost)
			s.says(out, err, "in use by 1 container (0123) of docker", "docker ps -a --filter volume="+lost)
			s.reaped(data + " docker mounted docker 1")
			if got := s.sh(a, "echo still > /data/f; cat /data/f"); got != "still" {
				t.Errorf("the one that runs reads %q", got)
			}
		}
		pid, err := strconv.Atoi(s.box.Must(t, "inspect", "--format", "{{.State.Pid}}", a))
		s.Must(err)
		s.Must(syscall.Kill(pid, syscall.SIGKILL))
		s.clean()
	})
}

// reaped waits until exactly the given claims remain. The agent may need minutes to detach the
// claims of ended containers.
func (s served) reaped(want ...string) {
	s.T.Helper()
	for end := time.Now().Add(300 * time.Second); strings.Join(s.claims(), ",") != strings.Join(want, ","); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			s.T.Fatalf("claims: %q, want %q", s.claims(), want)
		}
	}
}

// TestRuntimeDaemonKilled kills dockerd. With live-restore the containers continue to run, and the
// agent unmounts their volumes when they end. Without live-restore the containers end, and no claim
// and no mount remains.
func TestRuntimeDaemonKilled(t *testing.T) {
	t.Parallel()
	for _, live := range []bool{true, false} {
		t.Run(fmt.Sprintf("live-restore=%t", live), func(t *testing.T) {
			t.Parallel()
			b := harness.OwnBox(t, &harness.Box{Name: "docker", Plain: true, MoreArgs: []string{fmt.Sprintf("--live-restore=%t", live)}})
			s := newServed(t, b)
			if out, err := s.create("data", "plugin=local"); err != nil {
				t.Fatal(out)
			}
			s.run("ca", "data:/data")
			s.run("cb", "data:/data")
			s.sh("ca", "echo on > /data/f")
			s.holds("data docker mounted docker 2")
			s.Must(b.Daemon.Process.Kill())
			_ = b.Daemon.Wait() // the kill makes Wait return an error
			b.Daemon = nil
			s.Must(b.StartDaemon())
			if !live {
				s.reaped()
				s.clean()
				s.box.Must(t, "start", "ca")
				s.holds("data docker mounted docker 1")
				if got := s.sh("ca", "cat /data/f"); got != "on" {
					t.Errorf("started again, it reads %q", got)
				}
				s.box.Must(t, "rm", "-f", "ca", "cb")
				s.clean()
				return
			}
			if got := s.sh("cb", "cat /data/f"); got != "on" {
				t.Errorf("it reads %q", got)
			}
			s.holds("data docker mounted docker 2")
			s.box.Must(t, "stop", "ca")
			s.holds("data docker mounted docker 1")
			s.box.Must(t, "rm", "-f", "ca", "cb")
			s.clean()
			s.box.Must(t, "volume", "rm", "data")
		})
	}
}

// TestRuntimeExclusive checks that the option exclusive gives each container its own claim. The
// volume's access mode decides whether several claims can exist at the same time.
func TestRuntimeExclusive(t *testing.T) {
	t.Parallel()
	s := newServed(t, harness.SharedBox(t, "docker"))
	one, many := s.unique("one"), s.unique("many")
	a, b := s.unique("a"), s.unique("b")
	if out, err := s.create(one, "plugin=local", "exclusive=true"); err != nil {
		t.Fatal(out)
	}
	if out, err := s.create(many, "plugin=local", "exclusive=true", "access_mode=single-node-multi-writer"); err != nil {
		t.Fatal(out)
	}
	s.run(a, one+":/one", many+":/many")
	out, err := s.box.Run(s.runArgs(b, one+":/one")...)
	s.says(out, err, `volume "`+one+`" is in use in mode single-node-writer by "docker-`, "docker ps --filter volume="+one)
	s.box.Must(t, "rm", "-f", b)
	s.run(b, many+":/many")
	if got := s.claims(); len(got) != 3 {
		t.Errorf("claims: %q", got)
	}
	s.sh(a, "echo x > /many/f")
	if got := s.sh(b, "cat /many/f"); got != "x" {
		t.Errorf("it reads %q", got)
	}
	s.box.Must(t, "rm", "-f", a, b)
	s.clean()
	s.box.Must(t, "volume", "rm", one, many)
}

// TestRuntimeSocket checks that the plugin socket belongs to root. The agent refuses other users
// even if the socket's mode admits them.
func TestRuntimeSocket(t *testing.T) {
	t.Parallel()
	s := newServed(t, &harness.Box{Name: "docker"}) // the test needs no docker daemon
	info, err := os.Stat(s.pluginSocket())
	s.Must(err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the socket has mode %o", info.Mode().Perm())
	}
	dir, err := os.Stat(filepath.Dir(s.pluginSocket()))
	s.Must(err)
	if dir.Mode().Perm() != 0o755 {
		t.Errorf("its directory has mode %o", dir.Mode().Perm())
	}
	s.Must(os.Chmod(s.pluginSocket(), 0o666))
	if got := s.asNobody("POST /VolumeDriver.List HTTP/1.0\r\n\r\n"); !strings.Contains(got, "uid 65534 may not use volumes") {
		t.Errorf("nobody gets %q", got)
	}
	if code, answer := s.call("Plugin.Activate", nil); code != 200 || fmt.Sprint(answer["Implements"]) != "[VolumeDriver]" {
		t.Errorf("activate: %d %v", code, answer)
	}
	if code, answer := s.call("VolumeDriver.Capabilities", nil); code != 200 || fmt.Sprint(answer["Capabilities"]) != "map[Scope:local]" {
		t.Errorf("capabilities: %d %v", code, answer)
	}
}

// asNobody sends a request with the user id 65534, which has no rights.
func (s served) asNobody(request string) (answer string) {
	s.T.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread stays locked, so it ends with the goroutine
		if _, _, no := syscall.RawSyscall(syscall.SYS_SETRESUID, 65534, 65534, 65534); no != 0 {
			done <- no
			return
		}
		c, err := net.Dial("unix", s.pluginSocket())
		if err == nil {
			_, err = io.WriteString(c, request)
		}
		if err == nil {
			var raw []byte
			raw, err = io.ReadAll(c)
			answer = string(raw)
			err = errors.Join(err, c.Close())
		}
		done <- err
	}()
	s.Must(<-done)
	return answer
}

// TestRuntimeDeadlock checks the warning about a plugin that runs in a docker container and serves
// volumes to docker.
func TestRuntimeDeadlock(t *testing.T) {
	t.Parallel()
	h := newContained(t, harness.SharedBox(t, "docker"))
	s := served{Host: h.Host, box: h.box, driver: "csi" + filepath.Base(h.Dir)}
	h.Must(harness.ShowPlugins())
	h.Must(os.WriteFile(filepath.Join(h.Dir, "volagent.yaml"), []byte("docker_socket: "+s.pluginSocket()+"\n"), 0o644))
	h.writeContainer(h.recorder(nil))
	h.Start("rec")
	h.Must(os.WriteFile(filepath.Join(h.Dir, "v.yaml"), []byte("id: v1\nplugin_id: rec\nexternal_id: e1\n"), 0o644))
	h.Volctl("volume", "register", filepath.Join(h.Dir, "v.yaml"))
	if code, answer := s.call("VolumeDriver.Create", map[string]any{"Name": "v1"}); code != 200 {
		t.Fatalf("create: %v", answer)
	}
	const words = "docker runs it, and uses it for volumes of its own (v1)"
	if out := h.Volctl("plugin", "status", "rec"); !strings.Contains(out, words) {
		t.Errorf("the plugin's status does not say so:\n%s", out)
	}
	if out := h.Volctl("node", "status"); !strings.Contains(out, "docker runs it") {
		t.Errorf("the host's status does not say so:\n%s", out)
	}
	h.Await("the event", func() bool { return strings.Contains(h.Volctl("events", "--since", "1h"), words) })
	if code, answer := s.call("VolumeDriver.Remove", map[string]any{"Name": "v1"}); code != 200 {
		t.Fatalf("remove: %v", answer)
	}
	if warnings := h.plugin().Warnings; len(warnings) > 0 {
		t.Errorf("the warning stays: %q", warnings)
	}
}

// TestRuntimeEndsUntold ends a container while no agent runs, so the agent misses the end. The
// claim of a docker container ends nevertheless. Podman's own count is then too high by one, so
// podman would not call the agent for the next container. Therefore podman's claim remains until
// podman's count is correct again.
func TestRuntimeEndsUntold(t *testing.T) {
	bothRuntimes(t, func(t *testing.T, name string) {
		s := newServed(t, harness.SharedBox(t, name))
		data, a := s.unique("data"), s.unique("a")
		if out, err := s.create(data, "plugin=local"); err != nil {
			t.Fatal(out)
		}
		s.run(a, data+":/data")
		s.sh(a, "echo on > /data/f")
		id := s.box.Must(t, "inspect", "--format", "{{.Id}}", a)
		if name == "podman" && len(processesNaming(t, id)) == 0 {
			t.Fatal("no process watches over the container, so nothing shows when its end is dealt with")
		}
		s.Kill()
		_, _ = s.box.Run("kill", a) // the command may report that the volume could not be unmounted
		s.Await("its end", func() bool {
			return s.box.Must(t, "inspect", "--format", "{{.State.Running}}", a) == "false"
		})
		s.Await("podman's clean-up to give up", func() bool { return name == "docker" || len(processesNaming(t, id)) == 0 })
		s.Start("local")
		if name == "docker" {
			s.reaped()
			s.clean()
		} else {
			s.logs("podman itself, which counts it as mounted 1x without a container (podman volume unmount " + data + ")")
		}
		s.box.Must(t, "start", a)
		s.holds(data + " " + name + " mounted " + name + " 1")
		if got := s.sh(a, "cat /data/f"); got != "on" {
			t.Errorf("it reads %q", got)
		}
		s.box.Must(t, "rm", "-f", a)
		if name == "podman" {
			s.holds(data + " podman mounted podman 1")
			s.box.Must(t, "volume", "unmount", data)
		}
		s.clean()
		s.box.Must(t, "volume", "rm", data)
	})
}

// processesNaming returns the processes whose arguments contain the given word.
func processesNaming(t testing.TB, word string) (pids []int) {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		raw, _ := os.ReadFile(name) // the process may have ended already
		if !strings.Contains(string(raw), word) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// logs waits until the agent's log contains the given words.
func (s served) logs(words string) {
	s.T.Helper()
	for end := time.Now().Add(300 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		raw, err := os.ReadFile(s.Log.Name())
		s.Must(err)
		if strings.Contains(string(raw), words) {
			return
		}
		if time.Now().After(end) {
			s.T.Fatalf("the log does not say %q", words)
		}
	}
}
