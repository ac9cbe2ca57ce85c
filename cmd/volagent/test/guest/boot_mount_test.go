package guest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// fstab is the content of /etc/fstab in the guest of TestBootMounts. It contains valid and invalid
// lines.
const fstab = `data /srv/data csi _netdev,nofail 0 0
soon /srv/soon csi _netdev,nofail 0 0
bare /srv/bare csi nofail 0 0
none /srv/none csi _netdev,nofail 0 0
opts /srv/opts csi _netdev,nofail,acess_mode=single-node-writer 0 0
full /srv/full csi _netdev,nofail 0 0
down /srv/down csi _netdev,nofail,timeout=3s 0 0
`

// TestBootMounts checks the volumes that systemd mounts at boot, by fstab lines, by units that
// volctl wrote, and on demand. Each volume must be mounted before systemd starts the services that
// need it. A volume that cannot be mounted causes one line in the journal and does not delay the
// boot.
func TestBootMounts(t *testing.T) {
	t.Parallel()
	g := bootable(t, "dpkg -i /root/1.deb")
	g.command("cmd", true)
	// The first plugin starts slowly. The second plugin is not installed yet.
	_, env := g.csi("slow", false)
	g.put("etc/volagent/plugins.d/slow.yaml", fmt.Sprintf("id: slow\nexec:\n  command: [sh, -c, 'sleep 4; exec /usr/bin/csitest']\n  env:\n    CSITEST_CONFIG: '%s'\n", env))
	_, env = g.csi("away", false)
	g.put("etc/volagent/plugins.d/away.yaml", fmt.Sprintf("id: away\nexec:\n  command: [/usr/bin/away]\n  env:\n    CSITEST_CONFIG: '%s'\n", env))
	for _, id := range []string{"data", "gen"} {
		g.put("etc/systemd/system/writer-"+id+".service", strings.Replace(lastWords("/srv/"+id+"/log", "[Service]"), "After=volagent.service\n", "", 1))
		g.enable("writer-"+id+".service", "multi-user.target")
	}
	g.put("etc/systemd/system/writer-data.service.d/needs.conf", "[Unit]\nRequiresMountsFor=/srv/data\n")
	g.must(os.MkdirAll(filepath.Join(g.tree, "etc/systemd/system/writer-gen.service.d"), 0o755))
	g.put("etc/systemd/system/writer-gen.service.d/not-yet.conf", "[Unit]\nConditionPathExists=/etc/fstab.done\n")
	g.put("etc/systemd/system/writer-data.service.d/not-yet.conf", "[Unit]\nConditionPathExists=/etc/fstab.done\n")
	g.must(os.Symlink("csitest", filepath.Join(g.tree, "usr/bin/away")))
	g.boot()
	for _, id := range []string{"data", "bare", "opts", "full", "gen", "auto"} {
		g.register("cmd", id)
	}
	g.register("slow", "soon")
	g.register("away", "down")
	g.run("volctl", "systemd", "generate", "gen", "/srv/gen", "--for", "writer-gen.service", "--install")
	g.run("volctl", "systemd", "generate", "auto", "/srv/auto", "--automount", "--install")
	g.down()

	g.put("etc/fstab", fstab)
	g.put("etc/fstab.done", "")
	g.put("srv/full/file", "somebody's")
	g.must(os.Remove(filepath.Join(g.tree, "usr/bin/away")))
	for _, part := range []struct {
		name string
		run  func(*guest)
	}{
		{"what is right and what is not", (*guest).testBootMounts},
		{"on demand", (*guest).testAutomount},
		{"the plugin comes", (*guest).testPluginComes},
		{"down in order", (*guest).testBootDown},
		{"the agent is slow", (*guest).testSlowAgent},
		{"a mistake in the configuration", (*guest).testMistake},
		{"the socket", (*guest).testSocket},
	} {
		if !t.Run(part.name, func(t *testing.T) { g.inPart(t, part.run) }) {
			return
		}
	}
}

// mounted reports whether a volume is mounted on the directory with its id below /srv.
func (g *guest) mounted(id string) bool {
	g.t.Helper()
	claimed := strings.Fields(g.run("volctl", "claim", "list", "--volume", id, "-o", "go-template={{range .}}{{.alloc}} {{.state}} {{.at}} {{end}}"))
	there := g.try("findmnt", "--noheadings", "-o", "FSTYPE", "/srv/"+id)
	types := strings.Fields(there.Out)
	is := len(types) > 0 && types[len(types)-1] != "autofs"
	if is != slices.Equal(claimed, []string{"srv-" + id + ".mount", "mounted", "/srv/" + id}) {
		g.t.Errorf("%s is mounted: %t, and its claims are %q", id, is, claimed)
	}
	return is
}

// testBootMounts checks that the volume of every valid fstab line is mounted, and that the writing
// services write only to volumes. Each invalid line must cause exactly one message in the journal.
func (g *guest) testBootMounts() {
	if state := g.boot(); state != "degraded" {
		g.t.Errorf("the guest is %s", state)
	}
	failed := strings.Fields(g.run("systemctl", "list-units", "--failed", "--plain", "--no-legend", "--output=json"))
	got := regexp.MustCompile(`"unit":"([^"]+)"`).FindAllStringSubmatch(strings.Join(failed, ""), -1)
	var units []string
	for _, m := range got {
		units = append(units, m[1])
	}
	if want := []string{"srv-bare.mount", "srv-down.mount", "srv-full.mount", "srv-none.mount", "srv-opts.mount"}; !slices.Equal(units, want) {
		g.t.Errorf("failed units are %q, not %q", units, want)
	}
	for _, id := range []string{"data", "soon", "gen"} {
		if !g.mounted(id) {
			g.t.Errorf("%s is not mounted", id)
		}
	}
	for _, id := range []string{"data", "gen"} {
		g.await("the writer to write to "+id, func() bool { return strings.Contains(g.try("cat", "/srv/"+id+"/log").Out, "on") })
	}
	for id, words := range map[string]string{
		"none": `cannot mount volume "none" at /srv/none: no volume "none"`,
		"opts": `unknown mount option "acess_mode"; did you mean access_mode=`,
		"bare": `_netdev`,
		"full": `/srv/full.*not empty`,
		"down": `plugin "away" is backing-off`,
	} {
		lines := g.run("journalctl", "--boot", "--no-pager", "-q", "-o", "cat", "--unit=srv-"+id+".mount", "--grep=mount.csi: ")
		if !regexp.MustCompile(words).MatchString(lines) || strings.Contains(lines, "\n") {
			g.t.Errorf("of %s the journal says %q, not in one line %q", id, lines, words)
		}
	}
	if left := g.run("volctl", "claim", "list", "-q"); strings.Count(left, "\n") != 2 {
		g.t.Errorf("claims are %q", left)
	}
	if took := g.run("systemctl", "show", "-p", "ActiveEnterTimestampMonotonic", "--value", "multi-user.target"); took == "0" {
		g.t.Error("multi-user.target was not reached")
	}
}

// testAutomount checks that systemd mounts a volume when a process accesses the volume's directory.
func (g *guest) testAutomount() {
	if g.mounted("auto") {
		g.t.Error("it is mounted already")
	}
	g.run("sh", "-c", "echo there >/srv/auto/file")
	if !g.mounted("auto") {
		g.t.Error("it is not mounted")
	}
	g.run("systemctl", "stop", "srv-auto.mount")
	g.run("volctl", "wait", "--volume", "auto", "--for", "free", "--timeout", "60s")
	if text := g.run("cat", "/srv/auto/file"); text != "there" {
		g.t.Errorf("it reads %q", text)
	}
}

// testPluginComes installs a plugin that was missing at boot. The mount that failed at boot must
// then succeed.
func (g *guest) testPluginComes() {
	g.must(os.Symlink("csitest", filepath.Join(g.root, "usr/bin/away")))
	g.run("volctl", "plugin", "start", "away") // start the plugin without its restart delay
	g.ready("away")
	g.run("systemctl", "start", "srv-down.mount")
	if !g.mounted("down") {
		g.t.Error("it is not mounted")
	}
	g.run("umount", "/srv/down")
	g.run("volctl", "wait", "--volume", "down", "--for", "free", "--timeout", "60s")
}

// testBootDown checks the order of a shutdown. systemd must stop each writing service before it
// unmounts the service's volume, and must unmount all volumes before it stops the agent.
func (g *guest) testBootDown() {
	g.down()
	for _, id := range []string{"data", "gen"} {
		g.inOrder("Stopped writer-"+id+".service", "Unmounted srv-"+id+".mount", "Stopped volagent.service")
	}
	for _, id := range []string{"data", "gen", "auto"} {
		ends := g.calls("cmd").Of("ext-" + id).Mutating().Methods()
		if n := len(ends); n < 2 || ends[n-2] != "NodeUnpublishVolume" || ends[n-1] != "NodeUnstageVolume" {
			g.t.Errorf("for %s the plugin was sent %q", id, ends)
		}
	}
}

// testSlowAgent checks that the boot waits for an agent that starts slowly. The volumes must
// contain the last data that the services wrote before the shutdown.
func (g *guest) testSlowAgent() {
	g.put("etc/systemd/system/volagent.service.d/slow.conf", "[Service]\nExecStartPre=/bin/sleep 5\n")
	g.put("etc/fstab", "data /srv/data csi _netdev,nofail 0 0\n")
	if state := g.boot(); state != "running" {
		g.t.Errorf("the guest is %s: %s", state, g.failed())
	}
	for _, id := range []string{"data", "gen"} {
		if !g.mounted(id) {
			g.t.Errorf("%s is not mounted", id)
		}
		g.await("the writer to write to "+id, func() bool {
			return regexp.MustCompile(`bye\non`).MatchString(g.run("cat", "/srv/"+id+"/log"))
		})
	}
	g.must(os.Remove(filepath.Join(g.root, "etc/systemd/system/volagent.service.d/slow.conf")))
	g.run("systemctl", "daemon-reload")
}

// testMistake puts a mistake into the agent's configuration file. A reload must fail and change
// nothing. After a failed restart, systemd still listens on the socket, and the agent answers every
// request with the mistake.
func (g *guest) testMistake() {
	const path = "/etc/volagent/volagent.yaml"
	good := g.run("cat", path)
	g.write(path, "log_levl: debug\n")
	running := g.run("systemctl", "show", "-P", "MainPID", "volagent")
	if r := g.try("systemctl", "reload", "volagent"); r.Code == 0 {
		g.t.Error("the reload succeeds")
	}
	const mistake = path + `:1: unknown key "log_levl"`
	g.await("the mistake in the journal", func() bool { return strings.Contains(g.journal("-u", "volagent"), mistake) })
	if now := g.run("systemctl", "show", "-P", "MainPID", "volagent"); now != running {
		g.t.Errorf("process %s is the agent, and %s was", now, running)
	}
	g.run("volctl", "plugin", "list")

	if r := g.try("systemctl", "restart", "volagent"); r.Code == 0 {
		g.t.Error("the restart succeeds")
	}
	if r := g.try("volctl", "plugin", "list"); r.Code != 7 || !strings.Contains(r.Err, mistake) || !strings.Contains(r.Err, `did you mean "log_level"?`) {
		g.t.Errorf("exit %d\n%s", r.Code, r.Err)
	}
	g.write(path, good+"\n")
	g.run("systemctl", "restart", "volagent")
	g.run("volctl", "plugin", "list")
}

// testSocket checks that requests wait while the agent restarts, and that a request starts a
// stopped agent.
func (g *guest) testSocket() {
	g.run("sh", "-c", `for i in 1 2 3 4 5 6; do systemctl restart volagent || exit 1; done & pid=$!
		n=0; while kill -0 $pid 2>/dev/null; do volctl plugin list >/dev/null || exit 1; n=$((n+1)); done; wait $pid && test $n -gt 3`)
	g.run("systemctl", "stop", "volagent.service")
	if kind := g.run("stat", "-c", "%F %a %U", "/run/volagent/volagent.sock"); kind != "socket 660 root" {
		g.t.Errorf("the socket is %s", kind)
	}
	g.run("volctl", "plugin", "list")
	g.run("groupadd", "--system", "volusers")
	g.run("mkdir", "-p", "/etc/volagent")
	g.write("etc/volagent/volagent.yaml", "socket_group: volusers\n")
	g.run("systemctl", "restart", "volagent")
	if kind := g.run("stat", "-c", "%a %G", "/run/volagent/volagent.sock"); kind != "660 volusers" {
		g.t.Errorf("the socket is %s", kind)
	}
	// The configuration names another socket than systemd's unit. The agent must log a warning and
	// open the configured socket.
	g.write("etc/volagent/volagent.yaml", "socket: /run/volagent/other.sock\n")
	g.run("systemctl", "restart", "volagent")
	g.run("volctl", "--socket", "/run/volagent/other.sock", "plugin", "list")
	g.await("a warning", func() bool {
		return strings.Contains(g.run("journalctl", "--boot", "-q", "--no-pager", "-u", "volagent", "-o", "cat"), "socket=/run/volagent/volagent.sock")
	})
	g.down()
}
