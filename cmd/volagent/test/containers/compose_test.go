package containers_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/cmd/volagent/test/harness/lab"
)

// TestComposeFailover creates the same containers on two hosts with compose. On each host, a claim waits for
// the volume, and then "volctl failover containers" runs the containers with its label, as the units of
// "volctl systemd generate --failover --docker" do. The active host is lost, and the other one runs the
// containers. They do not run again on the first host when it is back.
func TestComposeFailover(t *testing.T) {
	t.Parallel()
	compose := composeCommand(t)
	l := newDockerLab(t, 2)
	a, b := l.Hosts[0], l.Hosts[1]
	for _, h := range l.Hosts {
		file := filepath.Join(h.Dir, "compose.yaml")
		h.Must(os.WriteFile(file, []byte(composeFile(h)), 0o600))
		h.MustRun(slices.Concat(compose, []string{"--file", file, "--project-name", "shop", "up", "--no-start"})...)
	}

	l.startFailover(a)
	l.awaitWrites(0, a)
	l.startFailover(b)
	b.Await("the claim that waits", func() bool { return slices.Contains(b.Claims(), "db app") })
	if n := len(l.containers(b)); n > 0 {
		t.Errorf("host h2 runs %d containers without the volume", n)
	}

	mark := len(l.san.Events())
	l.san.CutOff("h1")
	a.PowerOff()
	l.awaitWrites(mark, b)
	l.expectTakenOver(mark, a, b)
	l.expectProof(b, a)
	if first := b.MustRun("head", "-n", "1", filepath.Join(srv(b), "log")); first != "h1" {
		t.Errorf("the first line of the volume is from %q", first)
	}

	l.san.RestoreNode("h1")
	a.PowerOn()
	l.start(a)
	l.awaitEmpty(a)
	a.ExpectOutput("hold-lost", "events", "--volume", "db")
	l.awaitWrites(len(l.san.Events()), b)
}

// composeCommand returns the command of compose, which is a plugin of docker or a program of its own.
func composeCommand(t *testing.T) []string {
	t.Helper()
	if exec.Command("docker", "compose", "version").Run() == nil {
		return []string{"docker", "compose"}
	}
	if _, err := exec.LookPath("docker-compose"); err != nil {
		t.Skip("compose is not installed")
	}
	return []string{"docker-compose"}
}

// srv returns the directory at which a host mounts the volume for the containers.
func srv(h *lab.Host) string { return filepath.Join(h.Dir, "srv") }

// composeFile returns the description of the containers of a host, as in docs/howto-failover.md.
func composeFile(h *lab.Host) string {
	return fmt.Sprintf(`services:
  db:
    image: %s
    restart: "no"
    network_mode: host
    stop_grace_period: 1s
    labels:
      volagent.failover: db
    environment:
      NODE: %s
    volumes: ["%s:/data"]
    command: ["%s"]
`, harness.ShellImage, h.Name, srv(h), strings.ReplaceAll(writesScript, "$", "$$"))
}

// startFailover starts the processes of a host that wait for the volume, and then run the containers.
func (l *dockerLab) startFailover(h *lab.Host) {
	l.t.Helper()
	h.Must(os.MkdirAll(srv(h), 0o755))
	h.Spawn(h.Log, "sh", "-c", `volctl volume claim db --alloc app --at "$1" --timeout 90s && exec volctl failover containers db`, "sh", srv(h))
}
