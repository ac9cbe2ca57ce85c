package containers_test

import (
	"strings"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

// TestFailoverContainers checks that "volctl failover containers" starts and stops exactly the
// containers whose label is the volume. Labels that only contain this text do not count.
func TestFailoverContainers(t *testing.T) {
	h := harness.NewHost(t)
	s := served{Host: h, box: harness.SharedBox(t, "docker")}
	h.Env = append(h.Env, s.box.Env...)
	volume := s.unique("db")
	label := "volagent.failover=" + volume
	create := func(name string, labels ...string) string {
		name = s.unique(name)
		args := []string{"create", "--name", name, "--network", "none", "--stop-timeout", "1"}
		for _, l := range labels {
			args = append(args, "--label", l)
		}
		s.box.Must(t, append(args, harness.ShellImage, "exec /bin/busybox sleep 10000")...)
		t.Cleanup(func() { _, _ = s.box.Run("rm", "-f", name) })
		return name
	}
	web, worker := create("web", label), create("worker", label, "other=x")
	others := []string{create("more", label+"2"), create("line", label+"\nx"), create("text", "other=\n"+label), create("key", "volagent.failover")}
	runs := func(name string) bool {
		return s.box.Must(t, "inspect", "--format={{.State.Running}}", name) == "true"
	}
	running := func() { h.Await("both containers to run", func() bool { return runs(web) && runs(worker) }) }
	ends := func(done <-chan harness.Result, why string) {
		t.Helper()
		if r := <-done; r.Code != 1 || !strings.Contains(r.Err, " has ended") {
			t.Errorf("after %s: exit %d, %s", why, r.Code, r.Err)
		}
	}

	done := h.StartVolctl("failover", "containers", volume)
	running()
	for _, name := range others {
		if runs(name) {
			t.Errorf("container %s runs, and has another label", name)
		}
	}
	s.box.Must(t, "kill", web)
	ends(done, "the end of a container")

	done = h.StartVolctl("failover", "containers", volume)
	running()
	h.Volctl("failover", "containers", "--stop", volume)
	ends(done, "the stop")
	if runs(web) || runs(worker) {
		t.Error("a container runs after the stop")
	}
	h.Volctl("failover", "containers", "--stop", volume)

	s.box.Must(t, "update", "--restart=always", web)
	h.ExpectRefusal(4, `has the restart policy "always", so docker starts it on any host`, "failover", "containers", volume)
	h.ExpectRefusal(3, "no container has the label", "failover", "containers", volume+"3")
	if runs(web) || runs(worker) {
		t.Error("a container runs after the refusal")
	}
}
