package containers_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/cmd/volagent/test/harness/lab"
	"github.com/volagent/volagent/volmgr/csitest/san"
)

// dockerLab is a cluster of hosts with a docker daemon on each of them. The hosts share a SAN, whose driver
// is the plugin "san" with "fence: detach". The volume "db" is a disk of the SAN.
type dockerLab struct {
	*lab.Lab
	t   *testing.T
	san *san.SAN
}

// newDockerLab starts the hosts with their agents and docker daemons.
func newDockerLab(t *testing.T, hosts int) *dockerLab {
	t.Helper()
	l := &dockerLab{t: t, san: lab.StartSAN(t)}
	var all []*lab.Host
	t.Cleanup(func() { // when the hosts are off
		for _, h := range all {
			removeCgroups(h)
		}
	})
	l.Lab = lab.New(t, hosts, lab.WithEtcd(1), lab.Clustered())
	all = l.Hosts
	image := filepath.Join(l.Hosts[0].Dir, "image.tar")
	change, err := harness.WriteShellImage(image)
	l.Hosts[0].Must(err)
	for _, h := range l.Hosts {
		l.prepare(h)
		l.start(h)
		h.MustRun("docker", "import", change, image, harness.ShellImage)
	}

	h := l.Hosts[0]
	h.Must(l.san.AddDisk("disk-db", 1<<20))
	file := filepath.Join(h.Dir, "db.yaml")
	h.Must(os.WriteFile(file, []byte("id: db\nplugin_id: san\nexternal_id: disk-db\nscope: shared\n"), 0o600))
	h.Volctl("volume", "register", file)
	return l
}

// prepare writes the configuration of a host.
func (l *dockerLab) prepare(h *lab.Host) {
	l.t.Helper()
	self, err := os.Executable()
	h.Must(err)
	raw, err := l.san.Driver(h.Name, san.Config{Attach: true, Stage: true}).PluginFile("san", self)
	h.Must(err)
	var file map[string]any
	h.Must(json.Unmarshal(raw, &file))
	file["fence"], file["timeouts"] = "detach", map[string]string{"node": callTimeout, "controller": callTimeout}
	raw, err = json.Marshal(file)
	h.Must(err)
	h.Must(os.WriteFile(filepath.Join(h.Dir, "plugins.d", "san.yaml"), raw, 0o600))

	config := filepath.Join(h.Dir, "volagent.yaml")
	raw, err = os.ReadFile(config)
	h.Must(err)
	h.Must(os.WriteFile(config, append(raw, "docker_socket: "+harness.DockerPlugins+"/csi.sock\n"...), 0o600))
	h.Must(os.Mkdir(l.docker(h), 0o711))
	h.Env = append(h.Env, "DOCKER_HOST=unix://"+l.docker(h)+"/s", "DOCKER_CONFIG="+l.docker(h))
	h.Must(os.MkdirAll(filepath.Dir(harness.DockerPlugins), 0o700))
	l.t.Cleanup(func() {
		if raw, err := os.ReadFile(l.dockerLog(h)); l.t.Failed() {
			l.t.Logf("dockerd on %s (%v):\n%s", h.Name, err, raw)
		}
	})
}

// docker returns the directory of the docker daemon of a host.
func (l *dockerLab) docker(h *lab.Host) string { return filepath.Join(h.Dir, "docker") }

func (l *dockerLab) dockerLog(h *lab.Host) string { return filepath.Join(l.docker(h), "log") }

// start starts the agent and the docker daemon of a host that has booted, in this order. Docker then loads
// the plugins of the agent, as docs/howto-containers.md says.
func (l *dockerLab) start(h *lab.Host) {
	l.t.Helper()
	h.MustRun("mount", "-t", "tmpfs", "tmpfs", filepath.Dir(harness.DockerPlugins))
	h.MustRun("mkdir", harness.DockerPlugins)
	h.Start("san")

	dir := l.docker(h)
	log, err := os.OpenFile(l.dockerLog(h), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	h.Must(err)
	defer log.Close()
	args := []string{
		"dockerd", "--data-root", dir + "/data", "--exec-root", dir + "/exec", "-H", "unix://" + dir + "/s", "-p", dir + "/pid",
		"--iptables=false", "--ip6tables=false", "--ip-forward=false", "--bridge=none", "--log-level=warn", "--cgroup-parent=" + cgroupOf(h),
	}
	var daemon *lab.Process
	h.Await("an answer of docker on "+h.Name, func() bool {
		if daemon == nil || daemon.Ended() { // on a busy machine, dockerd ends if its containerd does not start in time
			h.Must(os.RemoveAll(dir + "/exec")) // these files do not survive a boot
			h.Must(os.RemoveAll(dir + "/pid"))
			daemon = h.Spawn(log, args...)
		}
		return h.Run("docker", "version").Code == 0
	})
	h.MustRun("docker", "volume", "ls", "--quiet")
}

// cgroupOf returns the control group of the containers of a host.
func cgroupOf(h *lab.Host) string { return "/volagent-test-" + filepath.Base(h.Dir) }

// removeCgroups removes the control groups of the containers of a host that is off.
func removeCgroups(h *lab.Host) {
	for _, below := range []string{"/*", ""} {
		for _, top := range []string{"/sys/fs/cgroup/*", "/sys/fs/cgroup"} {
			dirs, err := filepath.Glob(top + cgroupOf(h) + below)
			h.Must(err)
			for _, dir := range dirs {
				if info, err := os.Stat(dir); err == nil && info.IsDir() {
					h.Must(os.Remove(dir))
				}
			}
		}
	}
}

// writesScript is a shell command of a container that writes the name of its host to the volume all the time.
const writesScript = `while :; do echo $NODE >> /data/log; /bin/busybox sleep 0.2; done`

// awaitWrites waits until one of the hosts has written to the volume since the first n events of the SAN. It
// returns the host.
func (l *dockerLab) awaitWrites(n int, hosts ...*lab.Host) (by *lab.Host) {
	l.t.Helper()
	l.Hosts[len(l.Hosts)-1].Await("a write to the volume", func() bool {
		for _, e := range l.san.Events()[n:] {
			for _, h := range hosts {
				if e.Kind == san.KindWrite && e.Node == h.Name {
					by = h
				}
			}
		}
		return by != nil
	})
	return by
}

// expectTakenOver asserts that the volume was detached from one host and then attached to another one. It
// ignores the first n events of the SAN. The first host has written nothing since its detach.
func (l *dockerLab) expectTakenOver(n int, from, to *lab.Host) {
	l.t.Helper()
	detached := int64(0)
	for _, e := range l.san.Events()[n:] {
		switch {
		case e.Kind == san.KindDetach && e.Node == from.Name && detached == 0:
			detached = e.Seq
		case e.Kind == san.KindAttach && e.Node == to.Name && detached == 0:
			l.t.Errorf("host %s is attached before %s is detached: %v", to.Name, from.Name, e)
		case e.Kind == san.KindWrite && e.Node == from.Name && detached > 0:
			l.t.Errorf("host %s writes after its detach: %v", from.Name, e)
		}
	}
	if detached == 0 {
		l.t.Errorf("host %s was not detached", from.Name)
	}
}

// expectProof asserts that the cluster has recorded the detach as the proof against a lost host.
func (l *dockerLab) expectProof(by, lost *lab.Host) {
	l.t.Helper()
	if out := by.Volctl("node", "status", lost.Name); !strings.Contains(out, "Taken over") || !strings.Contains(out, "detach") {
		l.t.Errorf("the status of the lost host is\n%s", out)
	}
}

// containers returns the ids of the containers that run on a host.
func (l *dockerLab) containers(h *lab.Host) []string {
	l.t.Helper()
	return strings.Fields(h.MustRun("docker", "ps", "--quiet"))
}

// awaitEmpty waits until a host runs no container, and has neither a claim nor a mount.
func (l *dockerLab) awaitEmpty(h *lab.Host) {
	l.t.Helper()
	h.Await("no container on "+h.Name, func() bool { return len(l.containers(h)) == 0 })
	h.Await("no claim on "+h.Name, func() bool { return len(h.Claims()) == 0 })
	h.Await("no mount on "+h.Name, func() bool { return !strings.Contains(h.Mounts(), "san:") })
}
