package containers_test

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

// TestRuntimeCopy checks docker cp from a running container. Docker mounts the container's volume
// once more for the copy, and unmounts it once afterwards. The container writes continuously and
// must keep its volume. It must also keep the volume if the agent is killed during the copy and the
// next agent knows only the stored reference count.
func TestRuntimeCopy(t *testing.T) {
	t.Parallel()
	s := newServed(t, harness.SharedBox(t, "docker"))
	data, a := s.unique("data"), s.unique("a")
	if out, err := s.create(data, "plugin=local"); err != nil {
		t.Fatal(out)
	}
	s.writing(a, data)
	held := data + " docker mounted docker 1"
	file := filepath.Join(s.Dir, "copied")
	s.Must(os.WriteFile(file, []byte("hello"), 0o644))

	s.box.Must(t, "cp", file, a+":/data/in")
	s.holds(held)
	s.box.Must(t, "cp", a+":/data/in", file+".out")
	s.holds(held)
	if raw, err := os.ReadFile(file + ".out"); err != nil || string(raw) != "hello" {
		t.Errorf("copied out: %q, %v", raw, err)
	}

	// The copy still uses the volume while the agent is killed and restarted.
	s.sh(a, "/bin/busybox dd if=/dev/zero of=/data/big bs=1M count=16 2>&1")
	finish := s.copying(a, "/data/big")
	s.Kill()
	s.Start("local")
	finish()
	s.holds(held)
	s.grows(a)
	if got := s.sh(a, "cat /data/in"); got != "hello" {
		t.Errorf("after the copies it reads %q", got)
	}
	s.box.Must(t, "rm", "-f", a)
	s.clean()
	s.box.Must(t, "volume", "rm", data)
}

// TestRuntimeCountsWrong checks wrong reference counts, which a killed agent may leave. If the
// count is too low, a running container must keep its volume. If the count is too high, the claim
// must still end with the container.
func TestRuntimeCountsWrong(t *testing.T) {
	t.Parallel()
	s := newServed(t, harness.SharedBox(t, "docker"))
	low, high, a, b := s.unique("low"), s.unique("high"), s.unique("a"), s.unique("b")
	for _, v := range []string{low, high} {
		if out, err := s.create(v, "plugin=local"); err != nil {
			t.Fatal(out)
		}
	}
	s.writing(a, low)
	if code, answer := s.call("VolumeDriver.Unmount", map[string]any{"Name": low, "ID": s.ref(low)}); code != 200 {
		t.Fatalf("unmount: %v", answer)
	}
	s.holds(low + " docker mounted docker 1")
	s.grows(a)

	// Kill the agent while docker waits for the answer to a Mount request.
	plugin := s.PluginPID("local")
	s.Must(syscall.Kill(plugin, syscall.SIGSTOP))
	var out string
	started := make(chan error, 1)
	go func() {
		var err error
		out, err = s.box.Run(s.runArgs(b, high+":/data")...)
		started <- err
	}()
	t.Cleanup(func() { _, _ = s.box.Run("rm", "-f", b) })
	s.Await("the reference", func() bool { return s.ref(high) != "" })
	s.Kill()
	s.Must(syscall.Kill(plugin, syscall.SIGCONT))
	s.Start("local")
	err := <-started
	s.says(out, err, "docker repeated it without its content", "repeat the command")
	s.box.Must(t, "start", b)
	s.holds(high+" docker mounted docker 2", low+" docker mounted docker 1")
	s.grows(a)

	s.box.Must(t, "rm", "-f", a)
	s.holds(high + " docker mounted docker 2") // docker's Unmount ends the claim of low
	s.box.Must(t, "rm", "-f", b)
	s.holds(high + " docker mounted docker 1")
	s.reaped()
	s.clean()
	s.box.Must(t, "volume", "rm", low, high)
}

// ref returns the stored id of docker's reference to a volume. It returns "" unless there is
// exactly one reference.
func (s served) ref(name string) string {
	s.T.Helper()
	out, _ := harness.Inspect(s.Host, "--json")
	var all struct {
		Runtimes []struct {
			Name string
			Refs []struct{ ID string }
		}
	}
	s.Must(json.Unmarshal([]byte(out), &all))
	for _, v := range all.Runtimes {
		if v.Name == name && len(v.Refs) == 1 {
			return v.Refs[0].ID
		}
	}
	return ""
}

// writing starts a container that continuously appends to a file of its volume.
func (s served) writing(name, data string) {
	s.T.Helper()
	args := s.runArgs(name, data+":/data")
	args[len(args)-1] = "while echo x >> /data/log; do /bin/busybox usleep 10000; done; echo failed > /data/failed"
	s.box.Must(s.T, args...)
	s.T.Cleanup(func() { _, _ = s.box.Run("rm", "-f", name) })
	s.grows(name)
}

// grows waits until the file that the container writes has grown.
func (s served) grows(name string) {
	s.T.Helper()
	size := func() string {
		return s.sh(name, "/bin/busybox stat -c %s /data/log; test ! -e /data/failed || echo a write failed")
	}
	before := s.sh(name, "/bin/busybox touch /data/log; /bin/busybox stat -c %s /data/log")
	s.Await("the container to go on writing", func() bool { return size() != before })
	if got := size(); strings.Contains(got, "failed") {
		s.T.Errorf("the container: %s", got)
	}
}

// copying starts docker cp from a container and returns after the copy has started. The copy then
// blocks on a full pipe until the test calls finish.
func (s served) copying(name, path string) (finish func()) {
	s.T.Helper()
	cmd := s.box.Command("cp", name+":"+path, "-")
	out, err := cmd.StdoutPipe()
	s.Must(err)
	s.Must(cmd.Start())
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
		s.T.Fatalf("docker cp copies nothing: %v", err)
	}
	return func() {
		s.T.Helper()
		_, err := io.Copy(io.Discard, out)
		s.Must(errors.Join(err, cmd.Wait()))
	}
}
