package guest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/csitest"
)

// TestSystemd runs the agent as a service of a real systemd. Some plugins are systemd units, and
// the others are commands that the agent runs. All subtests use the same guest and run in this
// order.
func TestSystemd(t *testing.T) {
	t.Parallel()
	next := filepath.Join(t.TempDir(), "volagent")
	stamp := func(v string) []string {
		return []string{"build", "-buildvcs=false", "-ldflags", "-X github.com/volagent/volagent/agent/api.Version=" + v, "../.."}
	}
	built(t, next, stamp("2.0.0")...)
	g := newGuest(t, func(tree string) {
		built(t, filepath.Join(tree, "usr/bin/volagent"), stamp("1.0.0")...)
		built(t, filepath.Join(tree, "usr/bin/volctl"), "build", "-buildvcs=false", "../../../volctl")
		built(t, filepath.Join(tree, "usr/bin/csitest"), "test", "-c", "../../../../volmgr/csitest")
		install(t, tree)
	})
	g.must(unix.Mknod(filepath.Join(g.root, "dev/fuse"), unix.S_IFCHR|0o600, int(unix.Mkdev(10, 229))))
	g.run("systemctl", "start", "volagent.service")

	for _, part := range []struct {
		name string
		run  func(*guest)
	}{
		{"agent", func(g *guest) { g.testAgent(next) }},
		{"exec", (*guest).testExec},
		{"agent killed in a start", (*guest).testKilledInStart},
		{"doctor", (*guest).testDoctor},
		{"unit", (*guest).testUnit},
		{"bad units", (*guest).testBadUnits},
		{"storm", (*guest).testStorm},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.run(g.on(t)) }) {
			return // after a failure, the next subtest would start in a wrong state
		}
	}
}

// on returns a copy of the guest that reports failures to the given subtest.
func (g *guest) on(t testing.TB) *guest {
	part := *g
	part.t = t
	return &part
}

// runs is the number of plugin processes in the guest if every plugin has exactly one process.
const runs = 5

// theSecret is a secret that no ordinary user of the guest may read.
const theSecret = "s3cret-of-the-exec-plugin"

// install writes the units and plugin files of TestSystemd to the guest's disk.
func install(t testing.TB, tree string) {
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(tree, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	config := func(id string, fuse bool) string {
		env, err := csitest.Config{Base: "/var/lib/" + id, DriverName: id + ".example.com", AnyVolume: true, Stage: true, Fuse: fuse}.Environment()
		if err != nil {
			t.Fatal(err)
		}
		return env[0]
	}
	unit := func(id string, fuse bool, more string) {
		write("etc/systemd/system/csi-"+id+".service", fmt.Sprintf(
			"[Service]\nType=exec\nExecStart=/usr/bin/csitest\nEnvironment=CSI_ENDPOINT=unix:///run/volagent/plugins/%s/csi.sock\nEnvironment='%s'\n%s\n",
			id, config(id, fuse), more))
		write("etc/volagent/plugins.d/"+id+".yaml", "id: "+id+"\nunit: csi-"+id+".service\n")
	}
	raw, err := os.ReadFile("../../../../packaging/volagent.service")
	if err != nil {
		t.Fatal(err)
	}
	write("etc/systemd/system/volagent.service", string(raw))
	unit("fuse", true, "Restart=always\nRestartSec=50ms")
	unit("again", false, "Restart=always\nRestartSec=50ms\n[Unit]\nStartLimitIntervalSec=0")
	unit("once", false, "Restart=no")
	write("etc/volagent/plugins.d/cmd.yaml", fmt.Sprintf("id: cmd\nexec:\n  command: [/usr/bin/csitest, 'a $HOME %%i']\n  env:\n    CSITEST_CONFIG: '%s'\n    TOKEN: {file: /etc/token}\n",
		strings.TrimPrefix(config("cmd", true), "CSITEST_CONFIG=")))
	write("etc/token", theSecret)
	// The shell starts a background process that outlives the plugin, and then becomes the plugin.
	write("etc/volagent/plugins.d/brood.yaml", fmt.Sprintf("id: brood\nexec:\n  command: [sh, -c, 'sleep 7777 & exec /usr/bin/csitest']\n  env:\n    CSITEST_CONFIG: '%s'\n",
		strings.TrimPrefix(config("brood", false), "CSITEST_CONFIG=")))
}

// testAgent checks that the plugin processes survive when the agent is killed, stopped or replaced.
// All services must continue to write, even if the plugin process itself serves the mounts.
func (g *guest) testAgent(next string) {
	loads := []*scribe{}
	pids := map[string]string{}
	for _, id := range []string{"fuse", "cmd", "again"} {
		pids[id] = g.ready(id)
		loads = append(loads, g.claim(id, "v-"+id))
	}
	same := func(after string) {
		g.t.Helper()
		for id, was := range pids {
			if pid := g.ready(id); pid != was {
				g.t.Errorf("after %s: plugin %s was process %s and is %s", after, id, was, pid)
			}
		}
		for _, l := range loads {
			l.goesOn()
		}
		// Each plugin must have only one process.
		if n := len(strings.Fields(g.run("pidof", "csitest"))); n != runs {
			g.t.Errorf("after %s: %d plugins run", after, n)
		}
	}
	same("the start")
	agent := func() string { return g.run("systemctl", "show", "-p", "MainPID", "--value", "volagent") }
	was := agent()
	g.run("systemctl", "kill", "-s", "KILL", "volagent")
	g.await("another agent", func() bool { pid := agent(); return pid != was && pid != "0" })
	g.run("volctl", "wait", "--timeout", "30s")
	same("a kill")
	g.run("systemctl", "restart", "volagent")
	same("a restart")
	g.must(os.Rename(next, next+".new"))
	raw, err := os.ReadFile(next + ".new")
	g.must(err)
	g.must(os.WriteFile(filepath.Join(g.root, "usr/bin/volagent.new"), raw, 0o755))
	g.must(os.Rename(filepath.Join(g.root, "usr/bin/volagent.new"), filepath.Join(g.root, "usr/bin/volagent")))
	g.run("systemctl", "restart", "volagent")
	if v := g.run("volctl", "status", "-o", "go-template={{.version}}"); v != "2.0.0" {
		g.t.Errorf("after the upgrade version %q runs", v)
	}
	same("an upgrade")
	// This drop-in makes systemd stop all processes in the agent's control group. The plugins must
	// survive nevertheless.
	g.run("mkdir", "-p", "/run/systemd/system/volagent.service.d")
	g.write("run/systemd/system/volagent.service.d/kill.conf", "[Service]\nKillMode=control-group\n")
	g.run("systemctl", "daemon-reload")
	g.run("systemctl", "stop", "volagent")
	for _, l := range loads {
		l.goesOn()
	}
	g.run("systemctl", "start", "volagent")
	same("a stop that kills the agent's control group")
	for id := range pids {
		g.run("systemctl", "stop", "writer-v-"+id)
		g.run("volctl", "volume", "detach", "v-"+id, "a")
	}
}

// testExec checks that a plugin's command runs as a systemd service of its own. The properties of
// the service must not reveal secrets. The agent must supervise the service like a process that the
// agent started itself.
func (g *guest) testExec() {
	pid := g.ready("cmd")
	group := g.cgroup(pid)
	if !strings.HasPrefix(group, "/system.slice/volagent-plugin-cmd-") {
		g.t.Errorf("the plugin is in %s", group)
	}
	env := g.run("cat", "/proc/"+pid+"/environ")
	if !strings.Contains(env, "TOKEN="+theSecret) || strings.Contains(env, "INVOCATION_ID=") {
		g.t.Errorf("the plugin's environment is %q", env)
	}
	if args := g.run("cat", "/proc/"+pid+"/cmdline"); args != "/usr/bin/csitest\x00a $HOME %i\x00" {
		g.t.Errorf("the plugin's command is %q", args)
	}
	if core := strings.Fields(g.run("grep", "Max core file size", "/proc/"+pid+"/limits")); len(core) < 6 || core[4] != "0" || core[5] != "unlimited" {
		g.t.Errorf("the plugin's limits of core dumps: %q", core)
	}
	unit := filepath.Base(group)
	for _, args := range [][]string{{"systemctl", "show", "--all", unit}, {"systemctl", "cat", unit}, {"grep", "-rs", "s3cret", "/run", "/var/log", "/var/lib/volagent"}} {
		if r := g.try(args...); strings.Contains(r.Out+r.Err, "s3cret") || args[0] == "systemctl" && r.Code != 0 {
			g.t.Errorf("%v: exit %d: %s%s", args, r.Code, r.Out, r.Err)
		}
	}
	// The agent must report how the plugin's process ended, and start the next process in another
	// service.
	g.run("systemctl", "kill", "--kill-whom=main", "-s", "SEGV", unit)
	g.await("another process", func() bool { now := g.plugin("cmd", "pid"); return now != "" && now != pid })
	if exit := g.plugin("cmd", "last_exit"); !strings.Contains(exit, "SIGSEGV") && !strings.Contains(exit, "exited with status 2") {
		g.t.Errorf("the last exit is %q", exit)
	}
	g.ready("cmd")
	if left := g.run("systemctl", "list-units", "--all", "--no-legend", "--plain", "volagent-plugin-cmd-*"); strings.Count(left, "\n") != 0 || strings.Contains(left, unit) {
		g.t.Errorf("services of the plugin are:\n%s", left)
	}
	g.run("volctl", "plugin", "stop", "cmd")
	g.await("systemd to unload the service of the stopped plugin", func() bool {
		return g.run("systemctl", "list-units", "--all", "--no-legend", "--plain", "volagent-plugin-cmd-*") == ""
	})
	g.run("volctl", "plugin", "start", "cmd")

	// A background process of the plugin may serve a mount, so this process must survive a restart
	// of the plugin.
	pid = g.ready("brood")
	group = g.cgroup(pid)
	g.run("volctl", "plugin", "restart", "brood")
	if now := g.ready("brood"); now == pid || g.cgroup(now) == group {
		g.t.Errorf("after a restart the plugin is process %s in %s, as it was", now, g.cgroup(now))
	}
	if left := g.run("cat", "/sys/fs/cgroup"+group+"/cgroup.procs"); left == "" || strings.Contains(left, pid) {
		g.t.Errorf("of the processes in %s there are left: %q", group, left)
	}
}

// testKilledInStart kills the agent while the agent starts a service for a plugin. The next agent
// must find this service and must not start a second one. The test repeats the kill with different
// delays, so that it interrupts the start at different moments.
func (g *guest) testKilledInStart() {
	g.run("mkdir", "-p", "/run/systemd/system/volagent.service.d")
	g.write("run/systemd/system/volagent.service.d/soon.conf", "[Service]\nRestartSec=50ms\n")
	g.run("systemctl", "daemon-reload")
	for i := range 10 {
		g.ready("cmd")
		g.run("sh", "-c", fmt.Sprintf("volctl plugin restart cmd --no-wait && sleep 0.0%d && systemctl kill -s KILL volagent", 2+i))
		g.await("the next agent", func() bool { return g.try("volctl", "wait", "--timeout", "10s").Code == 0 })
		pid := g.ready("cmd")
		services := strings.Fields(g.run("systemctl", "list-units", "--no-legend", "--plain", "--state=running", "volagent-plugin-cmd-*"))
		if len(services) == 0 || filepath.Base(g.cgroup(pid)) != services[0] || strings.Count(strings.Join(services, " "), ".service") != 1 {
			g.t.Errorf("after kill %d: process %s, services %q", i, pid, services)
		}
		if own := g.run("cat", "/sys/fs/cgroup/system.slice/volagent.service/cgroup.procs"); strings.Contains(own, "\n") {
			g.t.Errorf("after kill %d: in the agent's own service there are processes %q", i, own)
		}
	}
}

// testUnit checks plugins that are systemd units. If systemd restarts a unit, the agent does not
// interfere. If systemd does not restart a unit, the agent starts it. The agent counts a restart in
// both cases. A stopped plugin stays stopped, and `volctl plugin restart` starts a new process of
// the unit.
func (g *guest) testUnit() {
	for id, words := range map[string]string{"again": "csi-again.service, for the 1st time", "once": "killed by signal 9 (SIGKILL)"} {
		pid, restarts := g.ready(id), g.restarts(id)
		g.run("systemctl", "kill", "--kill-whom=main", "-s", "KILL", "csi-"+id)
		g.await("another process of "+id, func() bool { now := g.plugin(id, "pid"); return now != "" && now != pid })
		g.ready(id)
		if now := g.restarts(id); now != restarts+1 {
			g.t.Errorf("%s was started again %d times and now %d", id, restarts, now)
		}
		if exit := g.plugin(id, "last_exit"); !strings.Contains(exit, words) {
			g.t.Errorf("the last exit of %s is %q", id, exit)
		}
		bySystemd := g.run("systemctl", "show", "-p", "NRestarts", "--value", "csi-"+id)
		if want := map[string]string{"again": "1", "once": "0"}[id]; bySystemd != want {
			g.t.Errorf("systemd itself started %s again %s times, not %s", id, bySystemd, want)
		}
	}
	g.testMissed()
	g.run("volctl", "plugin", "stop", "again")
	if r := g.try("systemctl", "is-active", "csi-again"); strings.TrimSpace(r.Out) != "inactive" {
		g.t.Errorf("the unit of the plugin that was stopped is %s", r.Out)
	}
	g.run("systemctl", "restart", "volagent")
	g.run("volctl", "wait", "--timeout", "30s")
	if state := g.plugin("again", "state"); state != "stopped" {
		g.t.Errorf("the plugin that was stopped is %s", state)
	}
	g.run("volctl", "plugin", "start", "again")
	pid := g.ready("again")
	g.run("volctl", "plugin", "restart", "again")
	if now := g.ready("again"); now == pid {
		g.t.Error("a restart left the process as it was")
	}
	log := g.run("volctl", "plugin", "logs", "again", "-n", "20")
	if !strings.Contains(log, "Started csi-again.service") {
		g.t.Errorf("its log is %q", log)
	}
}

// testMissed suspends the agent while systemd restarts a unit. When the agent runs again, it must
// notice the restart.
func (g *guest) testMissed() {
	pid, restarts := g.plugin("again", "pid"), g.restarts("again")
	g.run("systemctl", "kill", "--kill-whom=main", "-s", "STOP", "volagent")
	g.run("systemctl", "kill", "--kill-whom=main", "-s", "KILL", "csi-again")
	g.await("systemd to start it again", func() bool {
		return !slices.Contains([]string{pid, "0"}, strings.TrimSpace(g.run("systemctl", "show", "-p", "MainPID", "--value", "csi-again")))
	})
	g.run("systemctl", "kill", "--kill-whom=main", "-s", "CONT", "volagent")
	g.await("the next process", func() bool { now := g.plugin("again", "pid"); return now != "" && now != pid })
	g.ready("again")
	const words = "ended; systemd restarted csi-again.service, for the 2nd time, before the agent could read how it ended (to see that: journalctl -u csi-again.service)"
	if exit := g.plugin("again", "last_exit"); exit != words || g.restarts("again") != restarts+1 {
		g.t.Errorf("after a restart that was missed the last exit is %q, and %d restarts were %d", exit, g.restarts("again"), restarts)
	}
}

func (g *guest) restarts(id string) int {
	g.t.Helper()
	n, err := strconv.Atoi("0" + g.plugin(id, "restarts"))
	g.must(err)
	return n
}

// testBadUnits checks that the agent reports each problem of a plugin's unit and its fix.
func (g *guest) testBadUnits() {
	g.run("systemctl", "mask", "csi-masked.service")
	// Each new plugin makes the agent retry the earlier plugins, and each failed retry makes the
	// next delay longer. The unit that the test later repairs is the last in this list, so its
	// delay is still short.
	bad := []struct{ id, unit, words string }{
		{"masked", "", "systemctl unmask csi-masked.service"},
		{"oneshot", "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n", "(Type=oneshot) has no main process"},
		{"ends", "[Service]\nType=exec\nExecStart=/bin/false\n", "exited with status 1"},
		{"nofile", "[Service]\nType=exec\nExecStart=/usr/bin/none\n", "203"},
		{"limit", "[Service]\nType=exec\nExecStart=/bin/false\nRestart=always\nRestartSec=1ms\n", "systemctl reset-failed csi-limit.service"},
		{"deaf", "[Service]\nType=exec\nExecStart=/bin/sleep 1000\n", "Environment=CSI_ENDPOINT=unix:///run/volagent/plugins/deaf/csi.sock"},
		{"absent", "", "systemd has no unit csi-absent.service; install its file, then: systemctl daemon-reload"},
	}
	for _, tt := range bad {
		id := tt.id
		if tt.unit != "" {
			g.write("etc/systemd/system/csi-"+id+".service", tt.unit)
			g.run("systemctl", "daemon-reload")
		}
		g.write("etc/volagent/plugins.d/"+id+".yaml", "id: "+id+"\nunit: csi-"+id+".service\nhealth: {start_timeout: 1s}\n")
		last := ""
		g.await(id+" to say "+tt.words, func() bool {
			r := g.try("volctl", "plugin", "status", id, "-o", "go-template={{.state}}: {{.reason}} {{.last_exit}}")
			if r.Code == 0 && r.Out != last {
				last = r.Out
				g.t.Log(id, last)
			}
			return strings.HasPrefix(last, "backing-off") && strings.Contains(last, tt.words)
		})
	}
	if log := g.plugin("limit", "last_log"); !strings.Contains(log, "Start request repeated too quickly") {
		g.t.Errorf("the last it logged is %q", log)
	}
	// The agent must notice the repaired unit without a command.
	g.run("systemctl", "unmask", "csi-masked.service")
	g.write("etc/systemd/system/csi-absent.service", "[Service]\nType=exec\nExecStart=/bin/sleep 1000\n")
	g.run("systemctl", "daemon-reload")
	g.await("systemd to run what was absent", func() bool { return g.try("systemctl", "is-active", "csi-absent").Code == 0 })
	for _, tt := range bad {
		g.must(os.Remove(filepath.Join(g.root, "etc/volagent/plugins.d", tt.id+".yaml")))
	}
	g.await("the last of them to go", func() bool { return g.try("volctl", "plugin", "status", "deaf").Code != 0 })
}

// stormKills is the number of times that testStorm kills a process.
const stormKills = 50

// testStorm kills the process of a unit repeatedly. systemd must restart the process each time, and
// the agent must count and report each restart. All services must continue to write to their
// volumes.
func (g *guest) testStorm() {
	g.ready("again")
	l, restarts := g.claim("again", "v-storm"), g.restarts("again")
	byUs := g.run("systemctl", "show", "-p", "NRestarts", "--value", "csi-again")
	for range stormKills {
		pid := g.ready("again")
		g.run("systemctl", "kill", "--kill-whom=main", "-s", "KILL", "csi-again")
		g.await("another process", func() bool { now := g.plugin("again", "pid"); return now != "" && now != pid })
	}
	g.ready("again")
	l.goesOn()
	if now := g.restarts("again"); now != restarts+stormKills {
		g.t.Errorf("%d restarts are counted, not %d", now-restarts, stormKills)
	}
	was, err := strconv.Atoi(byUs)
	g.must(err)
	if n := g.run("systemctl", "show", "-p", "NRestarts", "--value", "csi-again"); n != strconv.Itoa(was+stormKills) {
		g.t.Errorf("systemd started it %s times, not %d", n, was+stormKills)
	}
	told := g.run("volctl", "events")
	for n := restarts + 1; n <= restarts+stormKills; n++ {
		if words := fmt.Sprintf("ready: restart %d since the agent was started", n); !strings.Contains(told, words) {
			g.t.Errorf("no event says %q:\n%s", words, told)
			break
		}
	}
	if n := len(strings.Fields(g.run("pidof", "csitest"))); n != runs {
		g.t.Errorf("%d plugins run", n)
	}
}
