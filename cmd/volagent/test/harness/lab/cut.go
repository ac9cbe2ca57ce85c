package lab

// Cut stops all packets from one host to another, until Join or Heal. Packets in the other direction
// still pass. Neither host receives an error.
func (l *Lab) Cut(from, to *Host) {
	l.T.Helper()
	to.Must(l.network.cut(from.Address, to.port()))
}

// Join ends Cut.
func (l *Lab) Join(from, to *Host) {
	l.T.Helper()
	to.Must(l.network.join(from.Address, to.port()))
}

// Isolate cuts a host from all other hosts in both directions. The hosts of etcd are among them.
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
	for _, from := range l.all {
		for _, to := range l.all {
			l.Join(from, to)
		}
	}
}

// Dropped returns the number of packets since PowerOn that did not reach the host because of Cut.
func (h *Host) Dropped() int {
	h.T.Helper()
	n, err := dropped(h.MustRun("nft", "list", "chain", "inet", "lab", "in"))
	h.Must(err)
	return n
}
