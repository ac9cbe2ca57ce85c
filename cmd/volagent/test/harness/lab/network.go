package lab

import (
	"fmt"
	"strconv"
	"strings"
)

// network is a bridge in a network namespace, with the cuts between the hosts that are connected to it.
type network struct {
	bridge *space
	cuts   map[cut]bool
}

// cut is a direction between two addresses in which no packets pass.
type cut struct{ from, to string }

// port is the end of the network in the namespaces of a host.
type port struct {
	name    string // of the device of the bridge
	number  int    // the last byte of the hardware address
	address string // an IPv4 address
	space   *space // nil while the host is off
}

// newNetwork makes a network without hosts.
func newNetwork() (*network, error) {
	bridge, err := newSpace(netKind)
	if err != nil {
		return nil, err
	}
	n := &network{bridge: bridge, cuts: map[cut]bool{}}
	if err := bridge.run("link add bridge type bridge\nlink set bridge up\n", "ip", "-batch", "-"); err != nil {
		return n, err
	}
	return n, nil
}

// close removes the network.
func (n *network) close() error { return n.bridge.close(func() {}) }

// plugIn connects a host with the bridge.
func (n *network) plugIn(p port) error {
	err := n.bridge.run(fmt.Sprintf("link add %[1]s type veth peer name eth0 netns %[2]d\nlink set %[1]s master bridge up\n",
		p.name, p.space.pid()), "ip", "-batch", "-")
	if err != nil {
		return err
	}

	// The address of the device stays the same, so that the other hosts still find it after a reboot.
	err = p.space.run(fmt.Sprintf("link set lo up\nlink set eth0 address 02:00:00:00:00:%02x up\naddr add %s/24 dev eth0\n",
		p.number, p.address), "ip", "-batch", "-")
	if err != nil {
		return err
	}

	// The receiver drops the packets. If the sender dropped them, its system calls would fail.
	rules := "table inet lab {\n set cut {\n type ipv4_addr\n }\n" +
		" chain in {\n type filter hook input priority 0\n ip saddr @cut counter drop\n }\n}\n"
	for c := range n.cuts {
		if c.to == p.address {
			rules += fmt.Sprintf("add element inet lab cut { %s }\n", c.from)
		}
	}
	return p.space.run(rules, "nft", "-f", "-")
}

// pullOut disconnects a host from the bridge. The other hosts do not notice it.
func (n *network) pullOut(p port) error { return n.bridge.run("", "ip", "link", "del", p.name) }

// cut stops the packets from an address to a host.
func (n *network) cut(from string, to port) error {
	c := cut{from, to.address}
	if n.cuts[c] {
		return nil
	}
	n.cuts[c] = true
	return to.changeCut("add", from)
}

// join ends cut.
func (n *network) join(from string, to port) error {
	c := cut{from, to.address}
	if !n.cuts[c] {
		return nil
	}
	delete(n.cuts, c)
	return to.changeCut("delete", from)
}

// changeCut adds an address to the set of those whose packets do not reach the host, or deletes it
// there. If the host is off, plugIn makes the set.
func (p port) changeCut(verb, from string) error {
	if p.space == nil {
		return nil
	}
	return p.space.run("", "nft", verb, "element", "inet", "lab", "cut", "{", from, "}")
}

// dropped returns the number in the output of nft that counts the packets dropped by cuts.
func dropped(chain string) (int, error) {
	_, rest, _ := strings.Cut(chain, "counter packets ")
	number, _, _ := strings.Cut(rest, " ")
	return strconv.Atoi(number)
}
