// Package etcdtest runs real etcd servers for tests. Every server is a process with its own data
// directory and its own loopback address. Only tests import this package.
package etcdtest

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// startTimeout is the longest time that a server may take until it serves requests. A busy machine
// with two processors needs several seconds.
const startTimeout = 30 * time.Second

// Cluster is an etcd cluster whose members run on this machine. Its methods fail the test on errors.
// They are not safe for concurrent use.
type Cluster struct {
	t       testing.TB
	binary  string
	scheme  string   // http or https, for clients
	args    []string // additional flags for each member
	members []*member
}

// Start starts an etcd cluster and waits until it serves requests. Further arguments are flags of
// etcd, and override the flags that Start sets. The members end with the test.
func Start(t testing.TB, members int, args ...string) *Cluster {
	t.Helper()
	return start(t, Binary(t), members, nil, args)
}

// OldVersion is the version of the etcd that StartOld starts. It is the newest version that is too old for
// a cluster.
const OldVersion = "3.5.17"

// StartOld is like Start, with members of the version OldVersion.
func StartOld(t testing.TB, members int) *Cluster {
	t.Helper()
	return start(t, build(t, "oldetcd.mod"), members, nil, nil)
}

// StartTLS is like Start. The members serve clients with TLS, and accept only clients that have a
// certificate of the given CA.
func StartTLS(t testing.TB, members int, ca *CA, args ...string) *Cluster {
	t.Helper()
	return start(t, Binary(t), members, ca, args)
}

// start starts a cluster whose members serve clients with TLS if ca is not nil.
func start(t testing.TB, binary string, members int, ca *CA, args []string) *Cluster {
	t.Helper()
	c := &Cluster{t: t, binary: binary, scheme: "http", args: args}
	dir := t.TempDir()
	for i := range members {
		c.members = append(c.members, &member{
			name: fmt.Sprintf("m%d", i),
			dir:  filepath.Join(dir, fmt.Sprintf("m%d", i)),
			ip:   freeIP(t),
		})
	}
	if ca != nil {
		var ips []string
		for _, m := range c.members {
			ips = append(ips, m.ip)
		}
		cert, key := ca.Issue("server", ips...)
		c.scheme = "https"
		c.args = append([]string{"--trusted-ca-file=" + ca.File, "--client-cert-auth", "--cert-file=" + cert, "--key-file=" + key}, args...)
	}

	t.Cleanup(c.end)
	for i := range members {
		c.launch(i)
	}
	for i := range members {
		c.AwaitReady(i)
	}
	return c
}

// Endpoints returns the URL for clients of each member.
func (c *Cluster) Endpoints() (urls []string) {
	for _, m := range c.members {
		urls = append(urls, c.scheme+"://"+m.address(clientPort))
	}
	return urls
}

// Start starts a member again that was stopped or killed, and waits until it serves requests.
func (c *Cluster) Start(i int) {
	c.t.Helper()
	c.launch(i)
	c.AwaitReady(i)
}

// Launch starts a member again that was stopped or killed, and does not wait for it. A member serves
// requests only while the majority of the members runs.
func (c *Cluster) Launch(i int) {
	c.t.Helper()
	c.launch(i)
}

// Stop stops a member with SIGTERM and waits for its end.
func (c *Cluster) Stop(i int) { c.signalAndWait(i, syscall.SIGTERM) }

// Kill kills a member with SIGKILL and waits for its end.
func (c *Cluster) Kill(i int) { c.signalAndWait(i, syscall.SIGKILL) }

// Freeze stops the execution of a member. The kernel still accepts connections for it.
func (c *Cluster) Freeze(i int) { c.signal(i, syscall.SIGSTOP) }

// Thaw ends Freeze.
func (c *Cluster) Thaw(i int) { c.signal(i, syscall.SIGCONT) }

// PID returns the process id of a member.
func (c *Cluster) PID(i int) int {
	c.t.Helper()
	m := c.members[i]
	if !m.runs() {
		c.t.Fatalf("etcd member %d does not run", i)
	}
	return m.cmd.Process.Pid
}

// Leader returns the index of the member that leads the cluster. It waits until there is one.
func (c *Cluster) Leader() int {
	c.t.Helper()
	for end := time.Now().Add(startTimeout); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		for i, m := range c.members {
			if m.runs() && strings.Contains(c.get(i, "/metrics"), "\netcd_server_is_leader 1\n") {
				return i
			}
		}
	}
	c.t.Fatal("the etcd cluster has no leader")
	return -1
}

// AwaitReady waits until a member serves linearizable requests.
func (c *Cluster) AwaitReady(i int) {
	c.t.Helper()
	m := c.members[i]
	for end := time.Now().Add(startTimeout); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if !m.runs() {
			c.t.Fatalf("etcd member %d has ended (%v):\n%s", i, m.err, m.log())
		}
		if strings.Contains(c.get(i, "/health"), `"health":"true"`) {
			return
		}
	}
	c.t.Fatalf("etcd member %d does not become ready:\n%s", i, m.log())
}

// Requests returns the number of requests that all members have received from clients, by method. A
// renewal of a lease is one request. A watch is one request, and so is each message about it.
func (c *Cluster) Requests() map[string]int {
	c.t.Helper()
	requests := map[string]int{}
	for i := range c.members {
		for line := range strings.Lines(c.get(i, "/metrics")) {
			name, labels, _ := strings.Cut(line, "{")
			_, rest, _ := strings.Cut(labels, `grpc_method="`)
			method, _, _ := strings.Cut(rest, `"`)
			// The counter of messages also counts the end of a stream, so it fits only long streams.
			counter := "grpc_server_started_total"
			if method == "Watch" {
				counter = "grpc_server_msg_received_total"
			}
			if name != counter {
				continue
			}

			_, number, _ := strings.Cut(labels, "} ")
			n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
			if err != nil {
				c.t.Fatalf("etcd member %d counts %q: %v", i, line, err)
			}
			requests[method] += int(n)
		}
	}
	return requests
}

// get returns the text of a page of a member's metrics listener, or "" if the member does not answer
// soon.
func (c *Cluster) get(i int, path string) string {
	client := http.Client{Timeout: 2 * time.Second}
	defer client.CloseIdleConnections()
	r, err := client.Get("http://" + c.members[i].address(metricsPort) + path)
	if err != nil {
		return ""
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return ""
	}
	return string(text)
}

// launch starts the process of a member.
func (c *Cluster) launch(i int) {
	c.t.Helper()
	m := c.members[i]
	if m.runs() {
		c.t.Fatalf("etcd member %d runs already", i)
	}
	if err := m.start(c.binary, c.flags(m)); err != nil {
		c.t.Fatalf("cannot start etcd member %d: %v", i, err)
	}
}

// flags returns the command line of a member.
func (c *Cluster) flags(m *member) []string {
	var initial []string
	for _, other := range c.members {
		initial = append(initial, other.name+"=http://"+other.address(peerPort))
	}
	clients, peers := c.scheme+"://"+m.address(clientPort), "http://"+m.address(peerPort)
	return slices.Concat([]string{
		"--name=" + m.name,
		"--data-dir=" + m.dir,
		"--listen-client-urls=" + clients,
		"--advertise-client-urls=" + clients,
		"--listen-peer-urls=" + peers,
		"--initial-advertise-peer-urls=" + peers,
		"--listen-metrics-urls=http://" + m.address(metricsPort),
		"--initial-cluster=" + strings.Join(initial, ","),
		"--initial-cluster-token=" + filepath.Dir(m.dir),
		"--quota-backend-bytes=268435456",
		"--log-level=warn",
	}, c.args)
}

// signal sends a signal to a member.
func (c *Cluster) signal(i int, sig syscall.Signal) {
	c.t.Helper()
	if err := syscall.Kill(c.PID(i), sig); err != nil {
		c.t.Fatalf("cannot send %v to etcd member %d: %v", sig, i, err)
	}
}

// signalAndWait sends a signal to a member and waits for its end.
func (c *Cluster) signalAndWait(i int, sig syscall.Signal) {
	c.t.Helper()
	c.signal(i, sig)
	c.AwaitEnd(i)
}

// AwaitEnd waits for the end of a member that was killed.
func (c *Cluster) AwaitEnd(i int) {
	c.t.Helper()
	select {
	case <-c.members[i].ended:
	case <-time.After(startTimeout):
		c.t.Fatalf("etcd member %d does not end:\n%s", i, c.members[i].log())
	}
}

// end kills all members, and prints their logs if the test has failed.
func (c *Cluster) end() {
	for i, m := range c.members {
		if m.runs() {
			_ = m.cmd.Process.Kill() // fails only if the process has just ended
			<-m.ended
		}
		if c.t.Failed() {
			c.t.Logf("log of etcd member %d:\n%s", i, m.log())
		}
	}
}

// These are the ports of each member. They never collide, because each member has its own IP address.
const (
	clientPort  = 2379
	peerPort    = 2380
	metricsPort = 2381
)

// freeIP returns a random loopback address that no server uses. Random addresses avoid the race
// between tests that ask the kernel for a free port and then release it.
func freeIP(t testing.TB) string {
	t.Helper()
	for range 100 {
		ip := fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
		l, err := net.Listen("tcp", net.JoinHostPort(ip, fmt.Sprint(clientPort)))
		if err != nil {
			continue
		}
		_ = l.Close() // a listener without connections
		return ip
	}
	t.Fatal("cannot find a free loopback address")
	return ""
}

// tail returns the last lines of a file.
func tail(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	if most := 4 << 10; len(text) > most {
		text = text[len(text)-most:]
	}
	return string(text)
}
