// Package lab simulates many hosts on one machine for the tests of clusters. Only tests import this
// package.
//
// Each host is a harness.Host in namespaces of its own, for mounts, network, processes and the host
// name. It therefore has its own mounts and its own /proc, and a scan of all processes finds only
// those of the host. Pairs of veth devices connect the hosts with a bridge in another network
// namespace:
//
//	 h1 10.77.0.1    h2 10.77.0.2        e1 10.77.0.101
//	     eth0            eth0                eth0
//	      |               |                   |
//	+---- h1 ------------ h2 --- ... -------- e1 ----+
//	|                     bridge                     |
//	+------------------------------------------------+
//
// The members of etcd run on hosts of their own, e1 and so on. All hosts share the files of the
// machine, so a test can read and write files of a host directly unless they are in a mount. They also
// share loop devices, FUSE and control groups.
package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/cluster/etcdtest"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

// Lab is a set of hosts with a network. Its methods fail the test on errors. Only one goroutine at a
// time may call them.
type Lab struct {
	T     testing.TB
	Hosts []*Host   // h1, h2, and so on
	Etcd  []*Member // e1, e2, and so on

	Files Files // with which a client connects to etcd

	all     []*Host // with the hosts of etcd
	network *network
}

// Option changes the lab that New makes.
type Option func(*options)

type options struct {
	members   int
	onHosts   bool
	clustered bool
	noDMI     bool
	fails     bool
}

// WithEtcd adds an etcd cluster with the given number of members, and starts it. The members are on
// hosts of their own.
func WithEtcd(members int) Option { return func(o *options) { o.members = members } }

// EtcdOnHosts changes WithEtcd: the first member is on h1, the second on h2, and so on.
func EtcdOnHosts() Option { return func(o *options) { o.onHosts = true } }

// WithFailpoints changes WithEtcd: the members have failpoints. See Member.SetFailpoint.
func WithFailpoints() Option { return func(o *options) { o.fails = true } }

// Clustered writes the section "cluster" into the configuration of each host, so that the agents use
// the lab's etcd. It needs WithEtcd.
func Clustered() Option { return func(o *options) { o.clustered = true } }

// WithoutDMI makes hosts without DMI, such as many virtual machines.
func WithoutDMI() Option { return func(o *options) { o.noDMI = true } }

// New makes a lab with the given number of hosts and switches them on. It does not start their agents.
// At the end of the test, everything in the lab ends.
func New(t testing.TB, hosts int, opts ...Option) *Lab {
	t.Helper()
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	l := &Lab{T: t, network: startNetwork(t)}
	for i := range hosts {
		l.Hosts = append(l.Hosts, l.newHost(fmt.Sprintf("h%d", i+1), 1+i, o))
	}
	l.all = slices.Clone(l.Hosts)
	for i := range o.members {
		if !o.onHosts {
			l.all = append(l.all, l.newHost(fmt.Sprintf("e%d", i+1), 101+i, o))
			l.Etcd = append(l.Etcd, &Member{Host: l.all[len(l.all)-1]})
		} else {
			l.Etcd = append(l.Etcd, &Member{Host: l.Hosts[i]})
		}
	}

	if o.members > 0 {
		l.setUpEtcd(o.fails)
	}
	if o.clustered {
		for _, h := range l.Hosts {
			l.JoinCluster(h)
		}
	}
	return l
}

// startNetwork makes a network and removes it at the end of the test.
func startNetwork(t testing.TB) *network {
	t.Helper()
	n, err := newNetwork()
	if n != nil {
		t.Cleanup(func() {
			if err := n.close(); err != nil {
				t.Errorf("cannot remove the network: %v", err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// newHost makes a host and switches it on.
func (l *Lab) newHost(name string, number int, o options) *Host {
	l.T.Helper()
	h := &Host{
		Host: harness.NewHost(l.T), Name: name, Address: fmt.Sprintf("10.77.0.%d", number),
		MachineID: randomHex(16), network: l.network, number: number, identity: l.T.TempDir(),
	}
	if !o.noDMI {
		h.ProductUUID = randomUUID()
	}
	h.OmitFlags, h.MoreArgs = []string{"--node-id"}, []string{"--node-id", name}
	h.Place = place{h}
	h.T.Cleanup(h.end)
	h.PowerOn()
	return h
}

// setUpEtcd makes the certificates of etcd, starts all members, and waits until they serve requests.
func (l *Lab) setUpEtcd(failpoints bool) {
	l.T.Helper()
	var addresses, initial []string
	for _, m := range l.Etcd {
		addresses = append(addresses, m.Host.Address)
		initial = append(initial, m.Host.Name+"="+m.url("http", peerPort))
	}

	build := etcdtest.Binary
	if failpoints {
		build = etcdtest.FailpointBinary
	}
	binary, ca := build(l.T), etcdtest.NewCA(l.T)
	server := Files{CA: ca.File}
	server.Cert, server.Key = ca.Issue("server", addresses...)
	l.Files.CA = ca.File
	l.Files.Cert, l.Files.Key = ca.Issue("agent")
	for _, m := range l.Etcd {
		m.binary, m.fails, m.initial, m.server = binary, failpoints, strings.Join(initial, ","), server
		l.T.Cleanup(m.showLog)
		m.Launch()
	}
	for _, m := range l.Etcd {
		m.AwaitReady()
	}
}

// Endpoints returns the URLs of all members of etcd for clients.
func (l *Lab) Endpoints() (urls []string) {
	for _, m := range l.Etcd {
		urls = append(urls, m.url("https", clientPort))
	}
	return urls
}

// ClusterSection returns the section "cluster" of the configuration of an agent.
func (l *Lab) ClusterSection() string {
	return fmt.Sprintf("cluster:\n  endpoints: [%s]\n  ca: %s\n  cert: %s\n  key: %s\n",
		strings.Join(l.Endpoints(), ", "), l.Files.CA, l.Files.Cert, l.Files.Key)
}

// JoinCluster writes the section "cluster" into the configuration of a host. The agent uses the lab's
// etcd after its next start.
func (l *Lab) JoinCluster(h *Host) {
	h.T.Helper()
	file := filepath.Join(h.Dir, "volagent.yaml")
	raw, err := os.ReadFile(file)
	h.Must(err)
	h.Must(os.WriteFile(file, append(raw, l.ClusterSection()...), 0o644))
}
