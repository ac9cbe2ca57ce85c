package containers_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

// TestRuntimeLocalVolume checks a volume that docker uses while the agent is unreachable. Docker
// then creates a local volume with the same name on the host's disk. The doctor must find the local
// volume. After the local volume is removed, the name refers to the agent's volume again.
func TestRuntimeLocalVolume(t *testing.T) {
	t.Parallel()
	s := newServed(t, harness.SharedBox(t, "docker"))
	data, a := s.unique("data"), s.unique("a")
	s.Volctl("volume", "create", data, "--plugin", "local")
	if code, answer := s.call("VolumeDriver.Create", map[string]any{"Name": data}); code != 200 {
		t.Fatalf("create: %v", answer)
	}
	s.awaitNoFindings("before the local volume is made")
	s.Kill()
	s.Must(os.Remove(s.pluginSocket()))
	s.box.Must(t, "run", "--rm", "--name", a, "--network", "none", "-v", data+":/data", harness.ShellImage, "echo lost > /data/f")
	s.Start("local")
	f := s.awaitFinding("runtime-local-volume:docker/" + data)
	path := s.box.Must(t, "volume", "inspect", "--format", "{{.Mountpoint}}", data)
	if raw, err := os.ReadFile(path + "/f"); err != nil || string(raw) != "lost\n" {
		t.Errorf("the host's disk has %q, %v", raw, err)
	}
	if f.Severity != "problem" || !strings.Contains(f.Then, path) || !strings.Contains(f.Do, "docker ps -a --filter volume="+data) {
		t.Errorf("found %+v", f)
	}
	s.box.Must(t, "volume", "rm", data)
	s.awaitNoFindings("after the local volume is removed")
	if out, err := s.create(data); err != nil {
		t.Fatal(out)
	}
	s.run(a, data+":/data")
	if got := s.sh(a, "test ! -e /data/f && echo empty"); got != "empty" {
		t.Errorf("it reads %q", got)
	}
	s.box.Must(t, "rm", "-f", a)
	s.clean()
	s.box.Must(t, "volume", "rm", data)
}

// awaitFinding waits until the doctor reports a finding, and returns it. Docker asks the plugins of
// all tests for their volumes, so its answer may come too late for an examination. The doctor then
// reports only that.
func (s served) awaitFinding(id string) (f api.DoctorFinding) {
	s.T.Helper()
	s.Await("the doctor finds "+id, func() bool {
		findings := harness.Doctor(s.Host).Findings
		i := slices.IndexFunc(findings, func(f api.DoctorFinding) bool { return f.ID == id })
		if i >= 0 {
			f = findings[i]
		}
		return i >= 0
	})
	return f
}

// awaitNoFindings waits until the doctor reports no problem, in an examination in which docker
// answers in time.
func (s served) awaitNoFindings(when string) {
	s.T.Helper()
	var ids []string
	s.Await("the doctor finds nothing "+when, func() bool {
		if now := harness.Doctor(s.Host).IDs(); !slices.Equal(now, ids) {
			ids = now
			s.T.Logf("%s, the doctor finds %q", when, ids)
		}
		return len(ids) == 0
	})
}

// TestRuntimeKilledInGet kills the agent during a Get request. Docker repeats the request to the
// next agent, but without the volume's name. The agent's answer must not mean "no such volume",
// because docker would then create a local volume on the host's disk.
func TestRuntimeKilledInGet(t *testing.T) {
	t.Parallel()
	s := newServed(t, harness.SharedBox(t, "docker"))
	data, a := s.unique("data"), s.unique("a")
	if out, err := s.create(data, "plugin=local"); err != nil {
		t.Fatal(out)
	}
	// The restart makes docker open a new connection. A request of another test may have opened one
	// before the agent was stopped, and docker would use that one again.
	before := 0
	s.Await("an agent without a connection", func() bool {
		s.Kill()
		s.Start("local")
		stopped := s.Cmd.Process
		s.Must(stopped.Signal(syscall.SIGSTOP))
		t.Cleanup(func() { _ = stopped.Signal(syscall.SIGCONT) }) // the process may have ended
		before = s.connections()
		return before == 1
	})
	var out string
	ended := make(chan error, 1)
	go func() {
		var err error
		out, err = s.box.Run("run", "--rm", "--name", a, "--network", "none", "-v", data+":/data", harness.ShellImage, "echo lost > /data/f")
		ended <- err
	}()
	s.Await("docker to ask", func() bool { return s.connections() > before })
	s.Kill()
	s.Start("local")
	err := <-ended
	s.says(out, err, "error while checking if volume")
	if got := s.box.Must(t, "volume", "inspect", "--format", "{{.Driver}}", data); got != s.driver {
		t.Errorf("the volume is of driver %q", got)
	}
	s.run(a, data+":/data")
	s.box.Must(t, "rm", "-f", a)
	s.clean()
	s.box.Must(t, "volume", "rm", data)
}

// connections returns one more than the number of connections to the plugin's socket, because it
// also counts the listening socket. The kernel lists the socket with the temporary path at which
// the agent created it.
func (s served) connections() int {
	s.T.Helper()
	raw, err := os.ReadFile("/proc/net/unix")
	s.Must(err)
	dir, name := filepath.Split(s.pluginSocket())
	return strings.Count(string(raw), " "+dir+"."+name+".")
}
