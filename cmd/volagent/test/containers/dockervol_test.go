package containers_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

// TestRuntimeShares checks that two containers share a volume through one claim. One of the
// containers has read-only access. The claim ends with the last container.
func TestRuntimeShares(t *testing.T) {
	bothRuntimes(t, func(t *testing.T, name string) {
		s := newServed(t, harness.SharedBox(t, name))
		data := s.unique("data")
		s.Volctl("volume", "create", data, "--plugin", "local")
		if out, err := s.create(data); err != nil {
			t.Fatalf("create: %s", out)
		}
		a, b := s.unique("a"), s.unique("b")
		s.run(a, data+":/data")
		s.run(b, data+":/in:ro")
		refs := map[string]string{"docker": "2", "podman": "1"}[name] // podman always sends one id
		s.holds(data + " " + name + " mounted " + name + " " + refs)
		s.sh(a, "echo hello > /data/f")
		if got := s.sh(b, "cat /in/f"); got != "hello" {
			t.Errorf("the other one reads %q", got)
		}
		if out, err := s.box.Run("exec", b, "/bin/busybox", "sh", "-c", "echo no > /in/f"); err == nil {
			t.Errorf("a read-only mount was written to: %s", out)
		}
		if out := s.Volctl("claim", "list"); !strings.Contains(out, name+", "+refs+" container") {
			t.Errorf("the owner is not named:\n%s", out)
		}
		if v := s.inspect(data); v.Status["state"] != "mounted" || v.Status["plugin"] != "local" || v.Status["plugin_state"] != "ready" {
			t.Errorf("it is shown as %+v", v)
		}
		out, err := s.box.Run("volume", "rm", data)
		s.says(out, err, data)
		r := s.Try("volume", "detach", data, name)
		if r.Code != 4 || !strings.Contains(r.Err, name+" ps --filter volume="+data) {
			t.Errorf("a detach under containers: exit %d: %s", r.Code, r.Err)
		}
		s.box.Must(t, "stop", a)
		s.holds(data + " " + name + " mounted " + name + " 1")
		if got := s.sh(b, "cat /in/f"); got != "hello" {
			t.Errorf("after the first was stopped, the other one reads %q", got)
		}
		if out, code := harness.Inspect(s.Host); code != 0 || !strings.Contains(out, fmt.Sprintf("name %q of %s  volume %[1]q  referred to by ", data, name)) ||
			!strings.Contains(out, ` (claim of "`+name+`")`) {
			t.Errorf("inspect: exit %d\n%s", code, out)
		}
		s.box.Must(t, "rm", "-f", a, b)
		s.clean()
		s.box.Must(t, "volume", "rm", data)
		if out := s.Volctl("volume", "list", "-q"); out != data {
			t.Errorf("the volume did not stay: %q", out)
		}
	})
}

// TestRuntimeAgentKilled kills the agent while a container runs. The container continues to run.
// The claim ends when the container ends.
func TestRuntimeAgentKilled(t *testing.T) {
	bothRuntimes(t, func(t *testing.T, name string) {
		s := newServed(t, harness.SharedBox(t, name))
		data, a := s.unique("data"), s.unique("a")
		if out, err := s.create(data, "plugin=local"); err != nil {
			t.Fatalf("create: %s", out)
		}
		s.run(a, data+":/data")
		s.Kill()
		s.sh(a, "echo on > /data/f")
		s.Start("local")
		s.holds(data + " " + name + " mounted " + name + " 1")
		if got := s.sh(a, "cat /data/f"); got != "on" {
			t.Errorf("it reads %q", got)
		}
		s.box.Must(t, "stop", a)
		s.clean()
		s.box.Must(t, "rm", a)
		s.box.Must(t, "volume", "rm", data)
		s.Must(s.Signal(syscall.SIGTERM))
	})
}
