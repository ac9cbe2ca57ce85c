package lab

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// cut is a direction in which no packets pass.
type cut struct{ from, to *Host }

// newBridge makes the network namespace with the bridge of a lab.
func newBridge(t testing.TB) *space {
	t.Helper()
	s, err := newSpace(netKind)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(func() {}); err != nil {
			t.Error(err)
		}
	})
	if err := s.run("link add bridge type bridge\nlink set bridge up\n", "ip", "-batch", "-"); err != nil {
		t.Fatal(err)
	}
	return s
}

// plugIn connects a host with the bridge.
func (l *Lab) plugIn(h *Host) {
	l.T.Helper()
	h.Must(l.bridge.run(fmt.Sprintf("link add %[1]s type veth peer name eth0 netns %[2]d\nlink set %[1]s master bridge up\n",
		h.Name, h.space.pid()), "ip", "-batch", "-"))
	// The address of the device stays the same, so that the other hosts still find it after a reboot.
	h.Must(h.space.run(fmt.Sprintf("link set lo up\nlink set eth0 address 02:00:00:00:00:%02x up\naddr add %s/24 dev eth0\n",
		h.number, h.Address), "ip", "-batch", "-"))

	// The receiver drops the packets. If the sender dropped them, its system calls would fail.
	rules := "table inet lab {\n set cut {\n type ipv4_addr\n }\n chain in {\n type filter hook input priority 0\n ip saddr @cut counter drop\n }\n}\n"
	for c := range l.cuts {
		if c.to == h {
			rules += fmt.Sprintf("add element inet lab cut { %s }\n", c.from.Address)
		}
	}
	h.Must(h.space.run(rules, "nft", "-f", "-"))
}

// pullOut disconnects a host from the bridge. The other hosts do not notice it.
func (l *Lab) pullOut(h *Host) {
	l.T.Helper()
	h.Must(l.bridge.run("", "ip", "link", "del", h.Name))
}

// Cut stops all packets from one host to another, until Join or Heal. Packets in the other direction
// still pass. Neither host receives an error.
func (l *Lab) Cut(from, to *Host) {
	l.T.Helper()
	if !l.cuts[cut{from, to}] {
		l.cuts[cut{from, to}] = true
		to.changeCut("add", from)
	}
}

// Join ends Cut.
func (l *Lab) Join(from, to *Host) {
	l.T.Helper()
	if l.cuts[cut{from, to}] {
		delete(l.cuts, cut{from, to})
		to.changeCut("delete", from)
	}
}

// Isolate cuts a host from all other hosts, also from those of etcd, in both directions.
func (l *Lab) Isolate(h *Host) {
	l.T.Helper()
	for _, other := range l.all {
		if other != h {
			l.Cut(h, other)
			l.Cut(other, h)
		}
	}
}

// Heal ends all cuts.
func (l *Lab) Heal() {
	l.T.Helper()
	for c := range l.cuts {
		l.Join(c.from, c.to)
	}
}

// Dropped returns the number of packets that did not reach the host because of Cut since PowerOn.
func (h *Host) Dropped() int {
	h.T.Helper()
	_, rest, _ := strings.Cut(h.MustRun("nft", "list", "chain", "inet", "lab", "in"), "counter packets ")
	number, _, _ := strings.Cut(rest, " ")
	n, err := strconv.Atoi(number)
	h.Must(err)
	return n
}

// changeCut adds a host to the set of hosts whose packets do not reach h, or deletes it there.
func (h *Host) changeCut(verb string, from *Host) {
	h.T.Helper()
	if h.On() { // otherwise PowerOn uses the set of the lab
		h.Must(h.space.run("", strings.Fields(fmt.Sprintf("nft %s element inet lab cut { %s }", verb, from.Address))...))
	}
}
