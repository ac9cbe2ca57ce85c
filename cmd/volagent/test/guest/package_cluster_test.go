package guest_test

import (
	"strings"
)

// etcdPID returns the process id of volagent-etcd, or 0.
func (p *packageGuest) etcdPID() string {
	p.t.Helper()
	return p.run("systemctl", "show", "-p", "MainPID", "--value", "volagent-etcd")
}

// testCluster makes the guest the first host of a cluster. It checks that systemd restricts
// volagent-etcd and starts it again after a kill, and that the agent can use a shared volume. The unit
// of the agent permits the network only then.
func (p *packageGuest) testCluster() {
	if pid := p.etcdPID(); pid != "0" {
		p.t.Errorf("volagent-etcd runs without a cluster, as process %s", pid)
	}
	// Without a daemon-reload, the unit of the agent does not permit the network yet.
	good := p.run("cat", "/etc/volagent/volagent.yaml")
	p.write("etc/volagent/volagent.yaml", good+"\ncluster: {endpoints: ['http://127.0.0.1:2379']}\n")
	p.run("systemctl", "restart", "volagent")
	p.await("the reason why the agent does not reach etcd", func() bool {
		return strings.Contains(p.try("volctl", "node", "status").Out, "the unit of the agent does not permit the network; run: systemctl daemon-reload && systemctl restart volagent")
	})
	p.write("etc/volagent/volagent.yaml", good+"\n")

	p.run("volctl", "cluster", "init", "--address", "127.0.0.1", "--name", "first")
	p.run("systemctl", "is-enabled", "volagent-etcd.service")
	p.run("systemctl", "restart", "volagent")
	p.inCluster()
	if r := p.restrictions(p.etcdPID()); r == p.restrictions("1") || !strings.Contains(r, "NoNewPrivs:\t1") || !strings.Contains(r, "Seccomp:\t2") {
		p.t.Errorf("the restrictions of volagent-etcd are %q", r)
	}

	p.write("root/both.yaml", "id: both\nplugin_id: fuse\nexternal_id: ext-both\nscope: shared\ncapabilities: [{access_mode: single-node-writer}]\n")
	p.run("volctl", "volume", "register", "/root/both.yaml")
	path := p.run("volctl", "volume", "claim", "both", "--alloc", "a", "--owner", "none")
	p.run("mountpoint", "-q", path)

	was := p.etcdPID()
	p.run("systemctl", "kill", "--signal", "KILL", "volagent-etcd")
	p.await("another volagent-etcd", func() bool {
		r := p.try("systemctl", "is-active", "volagent-etcd.service")
		return strings.TrimSpace(r.Out) == "active" && p.etcdPID() != was
	})
	p.run("mountpoint", "-q", path)
	p.inCluster()
	p.run("volctl", "cluster", "backup", "/root/cluster.backup")
	p.etcd, p.mounts = p.etcdPID(), p.volumeMounts()
	if out := p.try("journalctl", "-u", "volagent-etcd", "-o", "cat").Out; strings.Contains(out, "not permitted") || strings.Contains(out, "denied") {
		p.t.Errorf("volagent-etcd was kept from something:\n%s", out)
	}
}

// inCluster waits until the cluster is healthy, and its only host is ready.
func (p *packageGuest) inCluster() {
	p.t.Helper()
	p.await("the host to be ready in the cluster", func() bool {
		r := p.try("volctl", "node", "list")
		return r.Code == 0 && strings.Contains(r.Out, "ready")
	})
	p.await("a healthy cluster", func() bool { return p.try("volctl", "cluster", "status").Code == 0 })
}

// leaveCluster checks that the package is not removed from a host in a cluster, and takes the guest out
// of the cluster. The volumes that only this host uses stay.
func (p *packageGuest) leaveCluster() {
	p.inCluster()
	if r := p.try("dpkg", "-r", "volagent"); r.Code == 0 || !strings.Contains(r.Err, `volume "both" is claimed by "a"`) {
		p.t.Errorf("removal with a shared volume: exit %d\n%s%s", r.Code, r.Out, r.Err)
	}
	p.run("volctl", "volume", "detach", "both", "a")
	p.run("volctl", "volume", "deregister", "both")
	if r := p.try("dpkg", "-r", "volagent"); r.Code == 0 || !strings.Contains(r.Err, "volctl cluster leave") || p.etcdPID() != p.etcd {
		p.t.Errorf("removal in a cluster: exit %d\n%s%s", r.Code, r.Out, r.Err)
	}
	p.run("volctl", "cluster", "leave", "--forget")
	if r := p.try("systemctl", "is-enabled", "volagent-etcd.service"); r.Code == 0 || p.etcdPID() != "0" {
		p.t.Errorf("after it has left, volagent-etcd is %s, process %s", r.Out, p.etcdPID())
	}
	p.etcd = ""
}
