package guest_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/cluster/etcdtest"
)

// failoverGuest is one of several hosts on which the same service is installed. It runs on one of them.
type failoverGuest struct {
	*guest
	name  string
	other *failoverGuest // the other host
}

// TestFailover installs a service with failover on two hosts that share an etcd. The service runs on one
// host at a time. It moves when its host is paused or drained, when it ends, when its host loses the
// claim, and when its host is shut down. It continues to run while the agent is killed.
func TestFailover(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t, 1)
	programs := t.TempDir()
	built(t, filepath.Join(programs, "volagent"), "build", "-buildvcs=false", "../..")
	built(t, filepath.Join(programs, "volctl"), "build", "-buildvcs=false", "../../../volctl")
	plugin := pluginProgram(t)

	var hosts []*failoverGuest
	for _, name := range []string{"h1", "h2"} {
		h := &failoverGuest{guest: newTree(t), name: name}
		h.have("usr/bin/volagent", filepath.Join(programs, "volagent"))
		h.have("usr/bin/volctl", filepath.Join(programs, "volctl"))
		h.have("usr/bin/csitest", plugin)
		h.install()
		if state := h.boot(); state != "running" {
			t.Fatalf("%s is %s: %s", name, state, h.failed())
		}
		h.reach(strings.TrimPrefix(etcd.Endpoints()[0], "http://"))
		h.run("systemctl", "start", "volagent")
		h.ready("disk")
		hosts = append(hosts, h)
	}
	a, b := hosts[0], hosts[1]
	a.other, b.other = b, a
	for _, h := range hosts {
		h.await(h.name+" to be ready in the cluster", func() bool {
			r := h.try("volctl", "node", "list", "-q")
			return r.Code == 0 && strings.Count(r.Out, "\n") == 2
		})
	}

	a.write("root/db.yaml", "id: db\nplugin_id: disk\nexternal_id: ext-db\nscope: shared\ncapabilities: [{access_mode: single-node-writer}]\n")
	a.run("volctl", "volume", "register", "/root/db.yaml")
	for _, h := range hosts {
		h.run("volctl", "systemd", "generate", "db", "/srv/db", "--failover", "--for", "web.service", "--prefer", "h1,h2", "--delay", "1s", "--install")
		h.run("systemctl", "start", "failover-web")
		a.runs("the start on " + h.name)
	}

	b.standsBy()
	a.survivesKill()

	a.run("volctl", "failover", "pause", "web.service")
	b.runs("the pause of h1")
	a.stopped()
	a.run("volctl", "failover", "resume", "web.service")

	b.run("systemctl", "stop", "web")
	a.runs("a stop on h2")
	b.stopped()

	b.run("volctl", "failover", "resume", "web.service") // it forgets that the service has just ended here
	a.run("volctl", "node", "drain", "--deadline", "60s")
	b.runs("the drain of h1")
	a.run("volctl", "node", "undrain")

	b.run("volctl", "volume", "detach", "db", "web.service", "--force", "--no-wait")
	a.runs("the end of the claim on h2")
	b.stopped()

	a.run("volctl", "volume", "move", "db", "h2")
	b.runs("a move to h2")
	a.run("volctl", "volume", "move", "db", "h1")
	a.runs("a move to h1")

	a.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", "failover-web")
	a.await("the service on one host", func() bool { return a.active() != b.active() })
	b.run("systemctl", "stop", "failover-web")
	a.runs("the stop of failover on h2")
	b.stopped()

	b.run("systemctl", "start", "failover-web")
	a.down()
	a.leader = ""
	b.runs("the shutdown of h1")
}

// install writes the agent's unit and the service to the disk of a guest that is not running.
func (h *failoverGuest) install() {
	h.t.Helper()
	for from, to := range map[string]string{
		"volagent.service":           "etc/systemd/system/volagent.service",
		"volagent-cluster-generator": "etc/systemd/system-generators/volagent-cluster-generator",
	} {
		h.must(os.MkdirAll(filepath.Dir(filepath.Join(h.tree, to)), 0o755))
		h.have(to, filepath.Join("../../../../packaging", from))
	}
	h.command("disk", false)
	h.put("etc/volagent/volagent.yaml", fmt.Sprintf("node_id: %s\ncluster: {endpoints: ['http://127.0.0.1:2379']}\n", h.name))
	h.put("etc/systemd/system/web.service", "[Service]\nWorkingDirectory=/srv/db\nExecStart=/bin/sleep infinity\n")
}

// reach makes an address of the test reachable in the guest, as port 2379 of the guest's loopback.
func (h *failoverGuest) reach(address string) {
	h.t.Helper()
	listener, err := listenIn("/proc/"+h.leader+"/ns/net", "127.0.0.1:2379")
	h.must(err)
	var relays sync.WaitGroup
	h.t.Cleanup(func() {
		h.must(listener.Close())
		h.halt() // so that all connections end
		relays.Wait()
	})
	relays.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			relays.Go(func() { relay(conn, address) })
		}
	})
}

// listenIn opens a listener in another network namespace.
func listenIn(namespace, address string) (listener net.Listener, err error) {
	theirs, err := os.Open(namespace)
	if err != nil {
		return nil, err
	}
	defer theirs.Close()

	runtime.LockOSThread()
	own, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
	if err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	defer own.Close()

	if err = unix.Setns(int(theirs.Fd()), unix.CLONE_NEWNET); err == nil {
		listener, err = net.Listen("tcp", address)
	}
	if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); back != nil {
		return listener, errors.Join(err, back) // the thread stays locked, so that no other goroutine uses it
	}
	runtime.UnlockOSThread()
	return listener, err
}

// relay connects a connection with an address, until one side ends.
func relay(conn net.Conn, address string) {
	defer conn.Close()
	server, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer server.Close()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{conn, server}, {server, conn}} {
		both.Go(func() {
			_, _ = io.Copy(way[0], way[1])
			_ = way[0].Close()
			_ = way[1].Close()
		})
	}
	both.Wait()
}

// active reports whether the service runs on the host.
func (h *failoverGuest) active() bool {
	h.t.Helper()
	return h.try("systemctl", "is-active", "--quiet", "web").Code == 0
}

// runs waits until the service runs on the host and has the volume. It must not run on the other host.
func (h *failoverGuest) runs(after string) {
	h.t.Helper()
	h.await("the service on "+h.name+" after "+after, h.active)
	h.run("mountpoint", "-q", "/srv/db")
	if h.other.leader != "" && h.other.active() {
		h.t.Errorf("after %s, the service runs on both hosts", after)
	}
}

// stopped waits until the host has given the volume up.
func (h *failoverGuest) stopped() {
	h.t.Helper()
	h.await("the end of the service on "+h.name, func() bool {
		return !h.active() && h.try("mountpoint", "-q", "/srv/db").Code != 0
	})
}

// standsBy checks a host on which the service does not run. The host has booted completely, and systemd
// refuses to start the service by hand.
func (h *failoverGuest) standsBy() {
	h.t.Helper()
	if state := h.run("systemctl", "is-system-running"); state != "running" {
		h.t.Errorf("%s is %s", h.name, state)
	}
	h.await("the reason why "+h.name+" waits", func() bool {
		return h.run("systemctl", "show", "--property=StatusText", "--value", "failover-web") == `standby: host "h1" holds the volume`
	})
	if r := h.try("systemctl", "start", "web"); r.Code == 0 || !strings.Contains(r.Err, "Assertion failed") || h.active() {
		h.t.Errorf("a start by hand on %s: exit %d, %s", h.name, r.Code, r.Err)
	}
}

// survivesKill kills the agent. The same process of the service must run when the agent is back.
func (h *failoverGuest) survivesKill() {
	h.t.Helper()
	pid := func(unit string) string { return h.run("systemctl", "show", "-p", "MainPID", "--value", unit) }
	agent, service := pid("volagent"), pid("web")
	h.run("systemctl", "kill", "-s", "KILL", "volagent")
	h.await("another agent", func() bool {
		p := pid("volagent")
		return p != agent && p != "0" && h.try("volctl", "node", "status").Code == 0
	})
	h.await("the claim after a kill of the agent", func() bool {
		return strings.Contains(h.run("volctl", "claim", "list", "-q"), "db\tweb.service")
	})
	if now := pid("web"); now != service || service == "0" {
		h.t.Errorf("after a kill of the agent, the service is process %s, and was %s", now, service)
	}
}
