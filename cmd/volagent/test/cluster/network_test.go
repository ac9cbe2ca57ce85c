package cluster_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/cmd/volagent/test/harness/lab"
)

// TestCut checks that Cut stops the packets in one direction only, that a reboot does not end it, and
// that Join and Heal do.
func TestCut(t *testing.T) {
	t.Parallel()
	l := lab.New(t, 3)
	h1, h2, h3 := l.Hosts[0], l.Hosts[1], l.Hosts[2]
	n := mesh{t: t, conns: map[*lab.Host]net.PacketConn{}}
	for _, h := range l.Hosts {
		n.listen(h)
	}
	n.expect("at first", nil)

	l.Cut(h1, h2)
	n.expect("after a cut", map[string]bool{"h1 h2": true})
	h2.Reboot()
	n.listen(h2)
	n.expect("after a reboot of the receiver", map[string]bool{"h1 h2": true})
	l.Cut(h3, h1)
	n.expect("after a second cut", map[string]bool{"h1 h2": true, "h3 h1": true})
	l.Join(h1, h2)
	n.expect("after the end of the first cut", map[string]bool{"h3 h1": true})
	l.Isolate(h2)
	n.expect("with h2 alone", map[string]bool{"h3 h1": true, "h1 h2": true, "h2 h1": true, "h3 h2": true, "h2 h3": true})
	l.Heal()
	n.expect("at last", nil)
}

// mesh sends packets between all hosts of a lab.
type mesh struct {
	t     *testing.T
	conns map[*lab.Host]net.PacketConn
	sent  int
}

// listen opens the socket of a host.
func (n *mesh) listen(h *lab.Host) {
	n.t.Helper()
	var conn net.PacketConn
	h.Must(h.Enter(func() (err error) {
		conn, err = net.ListenPacket("udp4", net.JoinHostPort(h.Address, "7"))
		return err
	}))
	n.t.Cleanup(func() { h.Must(conn.Close()) })
	n.conns[h] = conn
}

// expect sends a packet in each direction, and waits until each one has arrived or was dropped. It
// asserts that exactly those in the cut directions were dropped.
func (n *mesh) expect(when string, cut map[string]bool) {
	n.t.Helper()
	n.sent++
	before := n.dropped()
	for to := range n.conns {
		for from, sender := range n.conns {
			if from != to {
				_, err := sender.WriteTo(fmt.Appendf(nil, "%d %s %s", n.sent, from.Name, to.Name), &net.UDPAddr{IP: net.ParseIP(to.Address), Port: 7})
				to.Must(err)
			}
		}
	}

	got, all := map[string]bool{}, len(n.conns)*(len(n.conns)-1)
	for end := time.Now().Add(20 * time.Second); len(got)+n.dropped()-before != all; {
		if time.Now().After(end) {
			n.t.Fatalf("%s: of %d packets, %d were dropped, and these arrived: %v", when, all, n.dropped()-before, got)
		}
		for _, receiver := range n.conns {
			if text := n.receive(receiver); text != "" {
				got[text] = true
			}
		}
	}
	for to := range n.conns {
		for from := range n.conns {
			way := from.Name + " " + to.Name
			if arrived := got[fmt.Sprintf("%d %s", n.sent, way)]; from != to && arrived == cut[way] {
				n.t.Errorf("%s: a packet in the direction %s arrived: %t", when, way, arrived)
			}
		}
	}
}

// dropped returns the number of packets that all hosts have dropped.
func (n *mesh) dropped() (sum int) {
	n.t.Helper()
	for h := range n.conns {
		sum += h.Dropped()
	}
	return sum
}

// receive returns the next packet, or "" if none arrives soon.
func (n *mesh) receive(conn net.PacketConn) string {
	n.t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
		n.t.Fatal(err)
	}
	buf := make([]byte, 100)
	k, _, err := conn.ReadFrom(buf)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		n.t.Fatal(err)
	}
	return string(buf[:k])
}

// TestEtcd checks that all hosts reach an etcd of three members, that the members outvote a member that
// is frozen, killed or cut off, and that cuts apply to etcd.
func TestEtcd(t *testing.T) {
	t.Parallel()
	l := lab.New(t, 2, lab.WithEtcd(3), lab.Clustered())
	h1, h2 := l.Hosts[0], l.Hosts[1]
	for _, h := range l.Hosts {
		for i := range l.Etcd {
			expectHealth(l, h, i, true)
		}
		raw, err := os.ReadFile(h.Dir + "/volagent.yaml")
		if err != nil || !strings.Contains(string(raw), "endpoints: [https://10.77.0.101:2379, https://10.77.0.102:2379,") {
			t.Errorf("the configuration of %s is %q, %v", h.Name, raw, err)
		}
	}

	e1 := l.Etcd[0]
	l.Cut(e1.Host, h1)
	expectHealth(l, h1, 0, false)
	expectHealth(l, h1, 1, true)
	expectHealth(l, h2, 0, true)
	l.Heal()
	expectHealth(l, h1, 0, true)

	e1.Freeze()
	expectHealth(l, h2, 0, false)
	h2.Await("the others to have a leader", func() bool { return l.Etcd[1].Leads() || l.Etcd[2].Leads() })
	e1.Thaw()
	e1.AwaitReady()
	e1.Kill()
	if e1.Runs() || e1.Leads() {
		t.Error("a killed member runs")
	}
	e1.Start()
	e1.Stop()
	l.Etcd[1].AwaitReady()
	e1.Host.Reboot()
	e1.Start()
	expectHealth(l, h2, 0, true)
}

// TestEtcdOnHosts checks that the members of etcd can be on the hosts of the agents.
func TestEtcdOnHosts(t *testing.T) {
	t.Parallel()
	l := lab.New(t, 2, lab.WithEtcd(1), lab.EtcdOnHosts())
	h1 := l.Hosts[0]
	expectHealth(l, h1, 0, true)
	expectHealth(l, l.Hosts[1], 0, true)
	h1.Reboot()
	if l.Etcd[0].Runs() {
		t.Error("etcd outlived the reboot of its host")
	}
	l.Etcd[0].Start()
	expectHealth(l, l.Hosts[1], 0, true)
}

// expectHealth asserts that a client on a host reaches a healthy member of etcd, or that it does not
// within a second.
func expectHealth(l *lab.Lab, h *lab.Host, member int, want bool) {
	l.T.Helper()
	cert, err := tls.LoadX509KeyPair(l.Files.Cert, l.Files.Key)
	h.Must(err)
	ca, err := os.ReadFile(l.Files.CA)
	h.Must(err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	limit := time.Second
	if want {
		limit = 30 * time.Second
	}
	client := http.Client{Timeout: limit, Transport: &http.Transport{
		DialContext: h.Dial, DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12},
	}}
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, l.Endpoints()[member]+"/health", http.NoBody)
	h.Must(err)
	var text []byte
	resp, err := client.Do(req)
	if err == nil {
		text, err = io.ReadAll(resp.Body)
		h.Must(resp.Body.Close())
	}
	if healthy := strings.Contains(string(text), `"health":"true"`); healthy != want {
		l.T.Errorf("%s finds member %d healthy: %t (%q, %v)", h.Name, member, healthy, text, err)
	}
}
