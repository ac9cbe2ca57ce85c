package guest_test

import (
	"strings"
)

// testUpgrade checks that an upgrade replaces the agent, but neither the plugins nor the mounts,
// and that all services continue to write.
func (p *packageGuest) testUpgrade() {
	was := p.agentPID()
	p.run("dpkg", "--unpack", "/root/2.deb") // the state after a power failure during an upgrade
	if pid := p.agentPID(); pid != was {
		p.t.Errorf("half of an upgrade made process %s of %s", pid, was)
	}
	p.run("dpkg", "--configure", "-a")
	if v, pid := p.run("volctl", "status", "-o", "go-template={{.version}}"), p.agentPID(); v != "2.0.0" || pid == was {
		p.t.Errorf("version %q runs as process %s, which was %s", v, pid, was)
	}
	for id, was := range p.plugins {
		if pid := p.ready(id); pid != was {
			p.t.Errorf("plugin %s was process %s and is %s", id, was, pid)
		}
	}
	p.untouched("an upgrade")
	// Disable the service and install the older version, as an administrator may do.
	p.run("systemctl", "disable", "--now", "--quiet", "volagent.service")
	p.run("dpkg", "-i", "/root/1.deb")
	if r := p.try("systemctl", "is-enabled", "volagent.service"); strings.TrimSpace(r.Out) != "disabled" || p.agentPID() != "0" {
		p.t.Errorf("an agent that was disabled is %s, process %s", r.Out, p.agentPID())
	}
	p.run("systemctl", "enable", "--now", "--quiet", "volagent.service")
	if v := p.run("volctl", "status", "-o", "go-template={{.version}}"); v != "1.0.0" {
		p.t.Errorf("after a downgrade version %q runs", v)
	}
	p.untouched("a downgrade with no agent")
	// Unlike dpkg, rpm runs the script of the new package before the scripts of the old package.
	was = p.agentPID()
	for _, script := range []string{"postinst 2", "prerm 1", "postrm 1"} {
		name, count, _ := strings.Cut(script, " ")
		p.run("sh", "/var/lib/dpkg/info/volagent."+name, count)
	}
	if pid := p.agentPID(); pid == was || pid == "0" {
		p.t.Errorf("after rpm's upgrade the agent is process %s, which was %s", pid, was)
	}
	p.untouched("rpm's upgrade")
}

// testBadConfig checks an upgrade with an invalid configuration, with which the new agent could not
// start. The upgrade must not stop the running agent.
func (p *packageGuest) testBadConfig() {
	good, was := p.run("cat", "/etc/volagent/volagent.yaml"), p.agentPID()
	p.write("etc/volagent/volagent.yaml", good+"\nno_such_key: 1\n")
	r := p.try("dpkg", "-i", "/root/2.deb")
	if r.Code != 0 || !strings.Contains(r.Err, `unknown key "no_such_key"`) || !strings.Contains(r.Err, "systemctl restart volagent") || p.agentPID() != was {
		p.t.Errorf("exit %d, process %s, which was %s\n%s%s", r.Code, p.agentPID(), was, r.Out, r.Err)
	}
	// A removal must detect volumes in use even if the configuration is invalid.
	if r := p.try("dpkg", "-r", "volagent"); r.Code == 0 || !strings.Contains(r.Err, `volume "line" is claimed by "srv-line.mount"`) {
		p.t.Errorf("removal: exit %d\n%s%s", r.Code, r.Out, r.Err)
	}
	p.write("etc/volagent/volagent.yaml", good+"\n")
	p.untouched("a configuration that is refused")
}

// testRefused checks that neither dpkg nor rpm removes the package while volumes are in use, even
// if the agent is not running. All processes must continue to run.
func (p *packageGuest) testRefused() {
	was := p.agentPID()
	refused := func(args ...string) {
		p.t.Helper()
		r := p.try(args...)
		for _, words := range []string{`volume "dir" is claimed by "a"`, "volctl volume detach dir a", "volctl volume detach fusevol a", `volume "line" is claimed by "srv-line.mount"`, "volctl node drain", "VOLAGENT_FORCE_REMOVE=1"} {
			if r.Code == 0 || !strings.Contains(r.Err, words) {
				p.t.Errorf("%v: exit %d, and does not say %q:\n%s%s", args, r.Code, words, r.Out, r.Err)
			}
		}
		p.untouched(strings.Join(args, " "))
	}
	refused("dpkg", "-r", "volagent")
	refused("dpkg", "-P", "volagent")
	refused("sh", "/var/lib/dpkg/info/volagent.prerm", "0") // rpm passes 0
	if s := p.run("dpkg-query", "-W", "-f", "${Status}", "volagent"); s != "install ok installed" && s != "deinstall ok installed" && s != "purge ok installed" {
		p.t.Errorf("the package is %q", s)
	}
	if p.agentPID() != was {
		p.t.Error("it is another agent")
	}
	p.run("sh", "-c", "systemctl stop volagent.service $(cd /usr/lib/systemd/system && ls | grep '^volagent.*[.]socket$')")
	refused("dpkg", "-r", "volagent")
	p.run("systemctl", "start", "volagent")
	for id, was := range p.plugins {
		if pid := p.ready(id); pid != was {
			p.t.Errorf("plugin %s was process %s and is %s", id, was, pid)
		}
	}
}

// testForced checks that a forced removal removes only the agent. After the package is installed
// again, the agent must find all plugins and mounts unchanged.
func (p *packageGuest) testForced() {
	p.run("env", "VOLAGENT_FORCE_REMOVE=1", "dpkg", "-r", "volagent")
	if pid := p.agentPID(); pid != "" && pid != "0" {
		p.t.Errorf("an agent runs: %s", pid)
	}
	p.untouched("a forced removal")
	if r := p.try("dpkg", "-P", "volagent"); r.Code == 0 || !strings.Contains(r.Err, "not purged") || !strings.Contains(r.Err, "per-alloc/a/dir") {
		p.t.Errorf("a purge of what is mounted: exit %d\n%s%s", r.Code, r.Out, r.Err)
	}
	p.run("test", "-e", "/var/lib/volagent/state.db")
	p.untouched("a refused purge")
	p.run("dpkg", "-i", "/root/2.deb")
	p.run("systemctl", "is-enabled", "volagent.service")
	for id, was := range p.plugins {
		if pid := p.ready(id); pid != was {
			p.t.Errorf("plugin %s was process %s and is %s", id, was, pid)
		}
	}
	p.untouched("a new installation")
}

// testRemove removes the package while no volume is in use, which must stop all processes. After
// the package is installed again, the agent must still know all volumes.
func (p *packageGuest) testRemove() {
	for _, w := range p.writers {
		p.run("systemctl", "stop", w.unit)
	}
	for _, v := range []string{"dir", "image", "fusevol"} {
		p.run("volctl", "volume", "detach", v, "a")
	}
	// A volume that systemd mounted for /etc/fstab counts as in use.
	if r := p.try("dpkg", "-r", "volagent"); r.Code == 0 || !strings.Contains(r.Err, `volume "line" is claimed by "srv-line.mount"`) || strings.Contains(r.Err, "fusevol") {
		p.t.Errorf("removal under a mount of /etc/fstab: exit %d\n%s%s", r.Code, r.Out, r.Err)
	}
	p.run("systemctl", "stop", "srv-line.mount")
	p.leaveCluster()
	p.run("volctl", "wait", "--volume", "line", "--for", "free", "--timeout", "60s")
	p.run("dpkg", "-r", "volagent")
	p.gone()
	if r := p.try("systemctl", "is-enabled", "volagent.service"); r.Code == 0 {
		p.t.Errorf("the service is still %s", r.Out)
	}
	p.run("dpkg", "-i", "/root/2.deb")
	p.run("systemctl", "is-enabled", "volagent.service")
	for id := range p.plugins { // the new installation must start all plugins
		p.ready(id)
	}
	if v := p.run("volctl", "volume", "list", "-q"); v != "dir\nfusevol\nimage\nline" {
		p.t.Errorf("the next agent knows of %q", v)
	}
}

// gone asserts that no process, mount or unit of the agent and of its plugins remains.
func (p *packageGuest) gone() {
	p.t.Helper()
	if r := p.try("pidof", "volagent", "csitest"); r.Out != "" {
		p.t.Errorf("there are processes left: %s", r.Out)
	}
	if r := p.try("grep", "/var/lib/volagent", "/proc/1/mountinfo"); r.Code == 0 {
		p.t.Errorf("there are mounts left: %s", r.Out)
	}
	if r := p.run("systemctl", "list-units", "--all", "--no-legend", "--plain", "volagent*.service", "volagent*.socket"); r != "" {
		p.t.Errorf("there are units left: %s", r)
	}
}

// testPurge checks that a purge removes all files of the agent but keeps the data of the volumes.
func (p *packageGuest) testPurge() {
	// Stop the agent first. The removal must end the plugins without it.
	p.run("sh", "-c", "systemctl stop volagent.service $(cd /usr/lib/systemd/system && ls | grep '^volagent.*[.]socket$')")
	p.run("dpkg", "-r", "volagent")
	p.run("mkdir", "-p", "/var/lib/volagent/csi/strange")
	if r := p.try("touch", "/srv/line/x"); r.Code == 0 {
		p.t.Error("where a volume was mounted can be written to")
	}
	p.run("mount", "-t", "tmpfs", "none", "/var/lib/volagent/csi/strange")
	r := p.try("dpkg", "-P", "volagent")
	if r.Code == 0 || !strings.Contains(r.Err, "/var/lib/volagent/csi/strange") {
		p.t.Errorf("a purge of what is mounted: exit %d\n%s%s", r.Code, r.Out, r.Err)
	}
	p.run("test", "-e", "/var/lib/volagent/state.db")
	p.run("umount", "/var/lib/volagent/csi/strange")
	data := p.run("sh", "-c", "find /var/lib/volagent/plugins/local -name log")
	if data == "" {
		p.t.Error("there is no data to lose")
	}
	r = p.try("dpkg", "-P", "volagent")
	if r.Code != 0 || !strings.Contains(r.Out, "kept, because it may be somebody's data:\n  /var/lib/volagent/plugins/local\n") {
		p.t.Errorf("purge: exit %d\n%s%s", r.Code, r.Out, r.Err)
	}
	for path := range strings.SplitSeq(data, "\n") {
		p.run("test", "-s", path)
	}
	if left := p.run("sh", "-c", "cd /var/lib/volagent && find . -maxdepth 3"); left != ".\n./plugins\n./plugins/local\n./plugins/local/state" {
		p.t.Errorf("there is left:\n%s", left)
	}
	p.run("touch", "/srv/line/x")
	if r := p.try("ls", "-A", "/etc/volagent", "/run/volagent"); strings.TrimSpace(r.Out) != "/etc/volagent:\nplugins.d" {
		p.t.Errorf("there is left: %s", r.Out)
	}
	p.gone()
}
