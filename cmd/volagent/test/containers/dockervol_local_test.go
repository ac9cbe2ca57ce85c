package containers_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

// TestRuntimeLocalVolume checks what happens if docker cannot reach the agent. Docker then creates
// a local volume on the host's disk under the name of an agent's volume. The doctor must find this
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
	local := "runtime-local-volume:docker/" + data
	s.Await("the doctor finds the local volume", func() bool { return slices.Contains(harness.Doctor(s.Host).IDs(), local) })
	f := harness.Doctor(s.Host).Finding(local)
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

// awaitNoFindings waits until the doctor reports no problem. On a busy machine, docker may answer
// the doctor too late, which the doctor also reports as a problem.
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
// next agent, but without the volume name. Docker must not understand the answer as "no such
// volume", because docker would then create a volume on the host's disk.
func TestRuntimeKilledInGet(t *testing.T) {
	t.Parallel()
	s := newServed(t, harness.SharedBox(t, "docker"))
	data, a := s.unique("data"), s.unique("a")
	if out, err := s.create(data, "plugin=local"); err != nil {
		t.Fatal(out)
	}
	s.Kill() // this closes docker's idle connections, so that docker opens a new one
	s.Start("local")
	before := s.connections()
	stopped := s.Cmd.Process
	s.Must(stopped.Signal(syscall.SIGSTOP))
	t.Cleanup(func() { _ = stopped.Signal(syscall.SIGCONT) }) // the process may have ended already
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

// connections returns the number of connections on the plugin's socket, accepted or not, plus one
// for the listening socket. The kernel lists the socket under the temporary path at which the agent
// created it.
func (s served) connections() int {
	s.T.Helper()
	raw, err := os.ReadFile("/proc/net/unix")
	s.Must(err)
	dir, name := filepath.Split(s.pluginSocket())
	return strings.Count(string(raw), " "+dir+"."+name+".")
}
