package guest_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// These tests boot a guest on which the agent is installed, shut it down, and boot it again.
// Between the boots the tests read the results from the guest's disk.

// put writes a file to the disk of a guest that is not running.
func (g *guest) put(path, text string) {
	g.t.Helper()
	path = filepath.Join(g.tree, path)
	g.must(os.MkdirAll(filepath.Dir(path), 0o755))
	g.must(os.WriteFile(path, []byte(text), 0o644))
}

// enable makes a systemd target of the guest start the given unit.
func (g *guest) enable(unit, target string) {
	g.t.Helper()
	dir := filepath.Join(g.tree, "etc/systemd/system", target+".wants")
	g.must(os.MkdirAll(dir, 0o755))
	g.must(os.Symlink("/etc/systemd/system/"+unit, filepath.Join(dir, unit)))
}

var made struct {
	sync.Mutex
	packages map[string]string // paths of the built packages by package format
	plugin   string
}

// installable returns the paths of the built packages and of csitest, a plugin that guests can run.
// It builds them only once.
func installable(t testing.TB) (packages map[string]string, plugin string) {
	t.Helper()
	plugin = pluginProgram(t)
	m := &made
	m.Lock()
	defer m.Unlock()
	if m.packages == nil {
		m.packages = packaged(t, filepath.Join(harness.BinDir, "dist"), "../../../..", "1.0.0", 0o022)
	}
	return m.packages, plugin
}

// pluginProgram returns the path of csitest, a plugin that guests can run. It builds csitest only once.
func pluginProgram(t testing.TB) string {
	t.Helper()
	m := &made
	m.Lock()
	defer m.Unlock()
	if m.plugin == "" {
		built(t, filepath.Join(harness.BinDir, "dist", "csitest"), "test", "-c", "../../../../volmgr/csitest")
		m.plugin = filepath.Join(harness.BinDir, "dist", "csitest")
	}
	return m.plugin
}

// have copies a program or a package from the host to the disk of a guest that is not running.
func (g *guest) have(path, from string) {
	g.t.Helper()
	raw, err := os.ReadFile(from)
	g.must(err)
	g.must(os.WriteFile(filepath.Join(g.tree, path), raw, 0o755))
}

// bootable returns a guest that keeps its journal on disk and has a copy of the Debian package. The
// given script installs the package before the guest boots.
func bootable(t testing.TB, script string) *guest {
	t.Helper()
	g := newTree(t)
	keepJournal(t, g.tree)
	packages, plugin := installable(t)
	g.have("usr/bin/csitest", plugin)
	g.have("root/1.deb", packages["deb"])
	cmd := exec.Command("chroot", g.tree, "sh", "-exc", script)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("it cannot be installed: %v\n%s", err, out)
	}
	g.put("etc/tmpfiles.d/nodes.conf", "c /dev/fuse 0600 root root - 10:229\n")
	return g
}

// csi returns the configuration of a test plugin in the guest, and the value of the plugin's
// environment variable CSITEST_CONFIG.
func (g *guest) csi(id string, fuse bool) (c csitest.Config, env string) {
	g.t.Helper()
	c = csitest.Config{Base: "/var/lib/" + id, DriverName: id + ".example.com", AnyVolume: true, Stage: true, Fuse: fuse}
	all, err := c.Environment()
	g.must(err)
	return c, strings.TrimPrefix(all[0], "CSITEST_CONFIG=")
}

// command installs a plugin in the guest whose file makes the agent run a command.
func (g *guest) command(id string, fuse bool) {
	g.t.Helper()
	_, env := g.csi(id, fuse)
	g.put("etc/volagent/plugins.d/"+id+".yaml", fmt.Sprintf("id: %s\nexec:\n  command: [/usr/bin/csitest]\n  env:\n    CSITEST_CONFIG: '%s'\n", id, env))
}

// calls returns the calls that a plugin of the guest received. It reads the plugin's journal from
// the guest's disk, so the guest need not be running.
func (g *guest) calls(id string) csitest.Calls {
	g.t.Helper()
	calls, err := csitest.ReadJournal(filepath.Join(g.tree, "var/lib", id, "journal.jsonl"))
	g.must(err)
	return calls
}

// faults returns the control file of a plugin in the guest. The faults in this file make calls to
// the plugin fail.
func (g *guest) faults(id string) csitest.Control {
	return csitest.Control{Path: filepath.Join(g.tree, "var/lib", id, "control.json")}
}

// register registers a volume of the given plugin in the guest.
func (g *guest) register(plugin, volume string) {
	g.t.Helper()
	file := "/root/" + volume + ".yaml"
	g.write(file, fmt.Sprintf("id: %s\nplugin_id: %s\nexternal_id: ext-%[1]s\ncapabilities:\n- {access_mode: single-node-writer, attachment_mode: file-system}\n", volume, plugin))
	g.run("volctl", "volume", "register", file)
}

// comes waits until a volume is mounted, and returns the content of the given file on the volume.
func (g *guest) comes(volume, file string) string {
	g.t.Helper()
	g.run("volctl", "wait", "--volume", volume, "--for", "mounted", "--timeout", "60s")
	return g.run("cat", g.run("volctl", "volume", "status", volume, "-o", "go-template={{range .claims}}{{.path}}{{end}}")+"/"+file)
}

// when returns the time of the only journal message since the last boot that matches the regular
// expression words. The time is in seconds since the boot.
func (g *guest) when(words string) float64 {
	g.t.Helper()
	var at []float64
	lines := strings.Split(g.journal("--boot=0", "-o", "short-monotonic"), "\n")
	for _, line := range lines {
		if !regexp.MustCompile(words).MatchString(line) {
			continue
		}
		var sec float64
		if _, err := fmt.Sscanf(line, "[%f]", &sec); err != nil {
			g.t.Fatalf("%q: %v", line, err)
		}
		at = append(at, sec)
	}
	if len(at) != 1 {
		g.t.Fatalf("%d messages, not one, match %q:\n%s", len(at), words, strings.Join(lines, "\n"))
	}
	return at[0]
}

// inOrder asserts that the given messages appear in this order in the journal of the last boot.
func (g *guest) inOrder(words ...string) {
	g.t.Helper()
	last := 0.0
	for _, w := range words {
		at := g.when(w)
		if at < last {
			g.t.Errorf("%q came too early:\n%s", w, g.journal("--boot=0", "-o", "short-monotonic"))
		}
		last = at
	}
}

// lastWords returns a service unit that writes lines to a file until systemd stops it. After the
// stop signal the service waits for half a second and writes a last line.
func lastWords(file, more string) string {
	return fmt.Sprintf(`[Unit]
Description=Writer of %[1]s
After=volagent.service
%[2]s
ExecStart=/bin/sh -c 'trap "sleep 0.5; echo bye >>%[1]s; exit 0" TERM; while :; do echo on >>%[1]s; sleep 0.02 & wait; done'
`, file, more)
}

// TestHostGoesDown checks the order of a shutdown. systemd first stops the services that use
// volumes. Then the agent unmounts the volumes while their plugins still run, and systemd stops the
// plugins last. A volume that hangs or is busy does not delay the other volumes. After the next
// boot, the agent mounts the volumes of claims without an owner again. The claims with an owner
// have ended.
func TestHostGoesDown(t *testing.T) {
	t.Parallel()
	g := bootable(t, `mkdir -p /root/src/bin && cd /root/src && dpkg-deb -x /root/1.deb x && mv x/usr/bin/* bin/
		cp -r x/usr/lib/systemd/system packaging && cp x/usr/lib/sysusers.d/volagent.conf packaging/sysusers.conf && cp x/etc/volagent/volagent.yaml packaging/
		cp x/usr/lib/systemd/system-generators/volagent-cluster-generator packaging/
		# Where no systemd runs, what is to be enabled is, and is not started.
		export SYSTEMD_OFFLINE=1; make() { :; }; sudo() { "$@" || [ "$1 $2" = "systemctl enable" ]; }; `+readme(t, "make build\n"))
	g.command("cmd", true)
	g.command("slow", false)
	_, env := g.csi("unit", true)
	g.put("etc/volagent/plugins.d/unit.yaml", "id: unit\nunit: csi-unit.service\n")
	g.put("etc/systemd/system/csi-unit.service", "[Unit]\nDescription=Plugin unit\nBefore=volagent.service\n[Service]\nType=exec\nExecStart=/usr/bin/csitest\n"+
		"Environment=CSI_ENDPOINT=unix:///run/volagent/plugins/unit/csi.sock\nEnvironment='CSITEST_CONFIG="+env+"'\n")
	g.put("etc/systemd/system/own.service", lastWords("/srv/own/log", "[Service]\nExecStartPre=/usr/bin/volctl volume claim own --at /srv/own"))
	for _, id := range []string{"cmd", "unit", "slow", "stuck"} {
		g.put("etc/systemd/system/writer-"+id+".service", lastWords("/srv/"+id+"/log", "[Service]"))
	}
	if state := g.boot(); state != "running" {
		t.Fatalf("the guest is %s: %s", state, g.failed())
	}
	volumes := map[string]string{"cmd": "cmd", "unit": "unit", "slow": "slow", "stuck": "slow"}
	g.run("mkdir", "-p", "/srv/own")
	g.register("cmd", "own")
	for id, plugin := range volumes {
		g.run("mkdir", "/srv/"+id)
		g.register(plugin, id)
		g.run("volctl", "volume", "claim", id, "--alloc", "a", "--owner", "none", "--at", "/srv/"+id)
		g.run("systemctl", "start", "writer-"+id)
	}
	g.run("systemctl", "start", "own")

	for _, part := range []struct {
		name string
		run  func(*guest)
	}{
		{"all is well", func(g *guest) { g.testDown(volumes) }},
		{"a volume hangs and another is busy", (*guest).testDownStuck},
		{"the agent is killed in the midst of it", func(g *guest) { g.testDownKilled(volumes) }},
		{"it is taken off by hand", func(g *guest) { g.testByHand(volumes) }},
	} {
		if !t.Run(part.name, func(t *testing.T) { g.inPart(t, part.run) }) {
			return
		}
	}
}

// readme returns the block of commands in README.md that starts with the given text.
func readme(t testing.TB, begin string) string {
	t.Helper()
	raw, err := os.ReadFile("../../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(raw), "```\n"+begin)
	block, _, ended := strings.Cut(rest, "```\n")
	if !found || !ended {
		t.Fatalf("the README has no block that begins with %q", begin)
	}
	return begin + block
}

// testByHand runs the README's commands for a manual removal. These commands must remove everything
// that the README's commands for the installation have installed.
func (g *guest) testByHand(volumes map[string]string) {
	g.boot()
	for id := range volumes {
		g.comes(id, "log")
	}
	g.run("volctl", "node", "drain", "--deadline", "60s")
	g.run("sh", "-exc", `sudo() { "$@"; }; `+readme(g.t, "sudo volagent inspect --in-use\n"))
	if left := g.run("sh", "-c", "pidof volagent volctl; find /usr /etc /run -xdev -name '*volagent*' ! -path '/etc/volagent*' ! -path /run/volagent; systemctl list-units --all --plain --no-legend 'volagent*.service' 'volagent*.socket'; true"); left != "" {
		g.t.Errorf("there is left:\n%s", left)
	}
	g.down()
}

// inPart runs one subtest of a test that boots the guest several times. If the subtest fails,
// inPart logs the guest's journal.
func (g *guest) inPart(t testing.TB, run func(*guest)) {
	part := g.on(t)
	defer func() {
		if t.Failed() {
			t.Log(g.journal("-o", "short-monotonic"))
		}
	}()
	run(part)
	g.leader, g.root, g.halt = part.leader, part.root, part.halt
}

// testDown shuts the guest down while all plugins work.
func (g *guest) testDown(volumes map[string]string) {
	for id := range volumes {
		g.await("the writer to write to "+id, func() bool { return strings.Contains(g.run("cat", "/srv/"+id+"/log"), "on") })
	}
	g.down()
	going := `this host is going down; volumes`
	for _, unit := range []string{"writer-cmd", "writer-unit", "own"} {
		g.inOrder("Stopped "+unit+".service", `volagent\[.*`+going, "Stopped volagent.service", "Stopped csi-unit.service")
	}
	for id, plugin := range volumes {
		ends := g.calls(plugin).Of("ext-" + id).Mutating().Methods()
		if want := []string{"NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"}; !slices.Equal(ends, want) {
			g.t.Errorf("for %s the plugin was sent %q", id, ends)
		}
	}
	if left := g.journal("--boot=0", "--grep", "stays on this host|has not ended"); left != "" {
		g.t.Error(left)
	}
	g.boot()
	for id := range volumes {
		if text := g.comes(id, "log"); !strings.HasSuffix(text, "bye") {
			g.t.Errorf("the last words on %s are not there: %q", id, text[max(0, len(text)-20):])
		}
	}
	if claims := g.run("volctl", "claim", "list", "--volume", "own", "-q"); claims != "" {
		g.t.Errorf("the claim of a service of the last boot is still there: %q", claims)
	}
	g.run("systemctl", "start", "own")
	if text := g.comes("own", "log"); !strings.Contains(text, "bye") {
		g.t.Errorf("the last words of the service that owned its claim are not there: %q", text)
	}
}

// testDownStuck shuts the guest down while a plugin hangs in a call for one volume. A process that
// systemd does not stop uses another volume. The agent must unmount all other volumes as usual.
func (g *guest) testDownStuck() {
	marks := map[string]int64{}
	for _, id := range []string{"cmd", "unit", "slow"} {
		marks[id] = g.calls(id).Mark()
	}
	_, err := g.faults("slow").Add(csitest.Fault{Method: "NodeUnpublishVolume", Volume: "ext-stuck", Hang: true})
	g.must(err)
	g.run("systemd-run", "--quiet", "--unit=holder", "--property=DefaultDependencies=no", "--working-directory=/srv/unit", "sleep", "7777")
	began := time.Now()
	g.down()
	if took := time.Since(began); took > 100*time.Second {
		g.t.Errorf("to go down took %s", took)
	}
	for id, words := range map[string]string{"stuck": "NodeUnpublishVolume has not answered for ", "unit": "sleep .*holder.service"} {
		lines := g.journal("--boot=0", "-o", "cat", "--grep", "a volume stays on this host.*volume="+id+" ")
		if !regexp.MustCompile(words).MatchString(lines) || strings.Count(strings.TrimSpace(lines), "\n") != 0 {
			g.t.Errorf("of %s that stays there is one line that says %q: %q", id, words, lines)
		}
	}
	for id, plugin := range map[string]string{"cmd": "cmd", "slow": "slow", "own": "cmd"} {
		ends := g.calls(plugin).Since(marks[plugin]).Of("ext-" + id).Only("NodeUnstageVolume")
		if len(ends) != 1 || ends[0].Code != "OK" {
			g.t.Errorf("%s was not unstaged: %s", id, ends)
		}
	}
	g.must(g.faults("slow").Clear())
	g.boot()
	for _, id := range []string{"cmd", "unit", "slow", "stuck"} {
		g.comes(id, "log")
	}
}

// testDownKilled kills the agent during the shutdown. After the next boot, the agent must mount all
// volumes and free the volume whose call had hung.
func (g *guest) testDownKilled(volumes map[string]string) {
	_, err := g.faults("slow").Add(csitest.Fault{Method: "NodeUnpublishVolume", Volume: "ext-stuck", Hang: true})
	g.must(err)
	mark := g.calls("cmd").Mark()
	// Kill the agent when it has unmounted the first volume. By then systemd is stopping the
	// agent's unit, so systemd does not restart the agent.
	g.run("systemd-run", "--quiet", "--unit=killer", "--property=DefaultDependencies=no", "sh", "-c",
		`until journalctl --boot -q -u volagent -o cat | grep -q "this host is going down; volumes"; do sleep 0.05; done; sleep 0.3; systemctl kill --kill-whom=main -s KILL volagent.service; echo killed`)
	g.down()
	if n := g.calls("cmd").Since(mark).Of("ext-cmd").Count("NodeUnstageVolume"); n != 1 {
		g.t.Errorf("%d unstages of what does not hang", n)
	}
	g.inOrder(`volagent\[.*this host is going down; volumes`, "volagent.service: Main process exited, code=killed, status=9/KILL")
	g.must(g.faults("slow").Clear())
	g.boot()
	for id := range volumes {
		g.comes(id, "log")
	}
	if problems := g.run("volctl", "volume", "list", "-o", "go-template={{range .}}{{.id}} {{.state}}\n{{end}}"); strings.Contains(problems, "stuck ") || strings.Contains(problems, "degraded") {
		g.t.Error(problems)
	}
	g.down()
}
