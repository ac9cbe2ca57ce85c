package containers_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/cmd/volagent/test/harness/lab"
)

// swarm is a Docker Swarm of one manager and two workers. A service with the shared volume "db" runs on the
// workers.
type swarm struct {
	*dockerLab
	workers []*lab.Host
	manager *lab.Host
	lost    time.Time
}

// startSwarm makes a swarm, and starts the service with the given options. It returns the worker whose task
// writes to the volume, and the other worker. The tasks use the network of their hosts, so the kernel needs
// no IPVS.
func startSwarm(t *testing.T, options ...string) (s *swarm, active, standby *lab.Host) {
	t.Helper()
	s = &swarm{dockerLab: newDockerLab(t, 3)}
	s.workers, s.manager = s.Hosts[:2], s.Hosts[2]
	s.manager.MustRun("docker", "swarm", "init", "--advertise-addr", s.manager.Address)
	token := s.manager.MustRun("docker", "swarm", "join-token", "--quiet", "worker")
	for _, h := range s.workers {
		h.MustRun("docker", "swarm", "join", "--advertise-addr", h.Address, "--token", token, s.manager.Address+":2377")
	}
	t.Cleanup(func() {
		if t.Failed() && s.manager.On() {
			t.Logf("the tasks:\n%s", s.manager.Run("docker", "service", "ps", "--no-trunc", "web").Out)
		}
	})

	create := []string{
		"docker", "service", "create", "--detach", "--name", "web", "--network", "host", "--no-resolve-image",
		"--constraint", "node.role==worker", "--restart-delay", "1s", "--stop-grace-period", "1s", "--env", "NODE={{.Node.Hostname}}",
		"--mount", "type=volume,source=db,target=/data,volume-driver=csi-shared",
	}
	s.manager.MustRun(slices.Concat(create, options, []string{harness.ShellImage, writesScript})...)
	active = s.awaitWrites(0, s.workers...)
	standby = s.workers[1-slices.Index(s.workers, active)]
	return s, active, standby
}

// state returns how Swarm shows a node.
func (s *swarm) state(h *lab.Host) string {
	s.t.Helper()
	return s.manager.MustRun("docker", "node", "inspect", "--format", "{{.Status.State}}", h.Name)
}

// lose switches a host off that has just lost the storage.
func (s *swarm) lose(h *lab.Host) {
	s.t.Helper()
	s.san.CutOff(h.Name)
	h.PowerOff()
	s.lost = time.Now()
}

// boot switches a host on again.
func (s *swarm) boot(h *lab.Host) {
	s.t.Helper()
	s.san.RestoreNode(h.Name)
	h.PowerOn()
	s.start(h)
	s.manager.Await("Swarm to have "+h.Name+" back", func() bool { return s.state(h) == "ready" })
}

// report prints how long after the loss something was seen.
func (s *swarm) report(what string) {
	s.t.Logf("%.1f s after the loss: %s", time.Since(s.lost).Seconds(), what)
}

// TestSwarm switches a node of a swarm off, which runs the only task of a service. Swarm starts the task on
// the other node, whose agent takes the volume over. The first node returns, and its container does not.
func TestSwarm(t *testing.T) {
	t.Parallel()
	s, active, standby := startSwarm(t)
	if n := len(s.containers(standby)); n > 0 {
		t.Errorf("host %s runs %d containers", standby.Name, n)
	}

	mark := len(s.san.Events())
	s.lose(active)
	s.manager.Await("Swarm to notice the loss", func() bool { return s.state(active) == "down" })
	s.report("Swarm shows the node as down")
	s.awaitWrites(mark, standby)
	s.report("the task writes on the other node")
	s.expectTakenOver(mark, active, standby)
	s.expectProof(standby, active)
	first := standby.MustRun("docker", "exec", s.containers(standby)[0], "/bin/busybox", "head", "-n", "1", "/data/log")
	if first != active.Name {
		t.Errorf("the first line of the volume is from %q", first)
	}

	s.boot(active)
	s.awaitEmpty(active)
	now := len(s.san.Events())
	s.awaitWrites(now, standby)
}

// TestSwarmCutOff cuts a node of a swarm from the network, but not from the storage. Its container continues
// to run, and its writes fail when the other node has taken the volume over. Swarm ends it when the node is
// back.
func TestSwarmCutOff(t *testing.T) {
	t.Parallel()
	s, active, standby := startSwarm(t)
	mark := len(s.san.Events())
	s.Isolate(active)
	s.lost = time.Now()
	s.awaitWrites(mark, standby)
	s.report("the task writes on the other node")
	s.expectTakenOver(mark, active, standby)
	s.expectProof(standby, active)
	ran := s.containers(active)
	if len(ran) != 1 {
		t.Fatalf("the node that is cut off runs the containers %v", ran)
	}
	active.Await("an error of a write", func() bool {
		r := active.Run("docker", "logs", "--tail", "1", ran[0])
		words := strings.ToLower(r.Out + r.Err)
		return strings.Contains(words, "i/o error") || strings.Contains(words, "input/output error")
	})

	s.Heal()
	s.awaitEmpty(active)
	s.expectTakenOver(mark, active, standby)
	s.awaitWrites(len(s.san.Events()), standby)
}

// TestSwarmGlobal runs a service with a task on each node. One task has the volume, and the others wait for
// it in the agent of their node. When the first node is lost, a task that waits gets the volume, and Swarm
// has nothing to do with it.
func TestSwarmGlobal(t *testing.T) {
	t.Parallel()
	s, active, standby := startSwarm(t, "--mode", "global")
	standby.Await("the task that waits", func() bool { return slices.Contains(standby.Claims(), "db docker") })
	if n := len(s.containers(standby)); n > 0 {
		t.Errorf("host %s runs %d containers", standby.Name, n)
	}
	mark := len(s.san.Events())
	s.lose(active)
	s.awaitWrites(mark, standby)
	s.report("the task writes on the other node, and Swarm shows the first one as " + s.state(active))
	s.expectTakenOver(mark, active, standby)
	s.expectProof(standby, active)
}
