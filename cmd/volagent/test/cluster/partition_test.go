package cluster_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/cmd/volagent/test/harness/lab"
	"github.com/volagent/volagent/volmgr/csitest/san"
)

var (
	partitionFull = flag.Bool("partition.full", false, "cut every pair of hosts in each direction, and not one pair of each kind")
	partitionSeed = flag.Uint64("partition.seed", 0, "seed of the random pairs of TestPartition; 0 chooses one")
)

// healWithin is the promised time from the end of all faults until holds, mounts and attachments agree.
const healWithin = 30 * time.Second

// field is a lab whose hosts share a SAN, with an etcd of three members.
type field struct {
	*lab.Lab
	t   *testing.T
	san *san.SAN
}

// newField starts the hosts of a field.
func newField(t *testing.T, hosts int) *field {
	t.Helper()
	f := &field{t: t, san: lab.StartSAN(t)}
	f.san.SetPermissive(true)
	f.Lab = lab.New(t, hosts, lab.WithEtcd(3), lab.Clustered())
	for _, h := range f.Hosts {
		addDriver(h.Host, f.san, "", san.Config{Attach: true, Stage: true}) // the host name is the node id
		h.Start("san")
	}
	return f
}

// cut is a set of directions between two hosts in which no packets pass.
type cut struct {
	name  string
	ways  [][2]*lab.Host
	total bool // the first host reaches no member of etcd
}

// TestPartition cuts single directions of the network. It does so between a host and a member of etcd,
// between two hosts, between two members, and between a host and all members. Claims under an
// existing hold succeed. A new hold succeeds, waits, or fails because etcd is not reachable. After the
// end of each cut, the holds, mounts and attachments agree within 30 s. (I1, I4, I5, I8)
func TestPartition(t *testing.T) {
	t.Parallel()
	seed := seedOf(t, "partition.seed", *partitionSeed)
	f := newField(t, 2)
	a := f.Hosts[0]
	for _, id := range []string{"db", "other"} {
		shareOn(a.Host, f.san, id, mode("single-node-multi-writer"))
	}
	base := claim(a.Host, "db", "base")

	for i, c := range f.cuts(diceOf(seed, "cuts")) {
		begun := time.Now()
		for _, way := range c.ways {
			f.Cut(way[0], way[1])
		}

		alloc := fmt.Sprintf("alloc%d", i)
		path := claim(a.Host, "db", alloc, "--timeout", "10s")
		a.MustRun("sh", "-c", `echo x > "$1"`, "sh", filepath.Join(path, alloc))
		a.MustRun("sh", "-c", `echo x > "$1"`, "sh", filepath.Join(base, "base"))
		a.Volctl("volume", "detach", "db", alloc, "--timeout", "10s")
		f.claimNew(a, c, alloc)

		f.Heal()
		healed := time.Now()
		f.awaitAgreement(c.name, map[string]string{"db": "h1"})
		t.Logf("%s: the cut took %s, and the agreement after it %s", c.name, healed.Sub(begun).Round(time.Millisecond), time.Since(healed).Round(time.Millisecond))
	}

	a.Volctl("volume", "detach", "db", "base", "--timeout", "60s")
	f.awaitAgreement("the last detach", map[string]string{})
}

// claimNew claims a volume of which the host has no hold, during a cut.
func (f *field) claimNew(h *lab.Host, c cut, alloc string) {
	f.t.Helper()
	timeout := "5s"
	if c.total {
		timeout = "12s" // a decision may take 8 s until it fails
	}
	r := h.Try("volume", "claim", "other", "--alloc", alloc, "--timeout", timeout)
	switch {
	case c.total && r.Code != 6:
		f.t.Errorf("%s: a new hold ended with %d: %s", c.name, r.Code, r.Err)
	case !slices.Contains([]int{0, 5, 6}, r.Code):
		f.t.Errorf("%s: a new hold ended with %d: %s", c.name, r.Code, r.Err)
	case r.Code == 0:
		h.Volctl("volume", "detach", "other", alloc, "--timeout", "60s")
	}
}

// cuts returns the cuts of the test: all of them, or one random cut of each kind.
func (f *field) cuts(dice *rand.Rand) (chosen []cut) {
	f.t.Helper()
	one := func(from, to *lab.Host) cut {
		return cut{name: from.Name + " to " + to.Name, ways: [][2]*lab.Host{{from, to}}}
	}
	var up, down, hosts, members, all []cut
	for _, h := range f.Hosts {
		for _, m := range f.Etcd {
			up, down = append(up, one(h, m.Host)), append(down, one(m.Host, h))
		}
		for _, o := range f.Hosts {
			if o != h {
				hosts = append(hosts, one(h, o))
			}
		}
	}
	for _, m := range f.Etcd {
		for _, o := range f.Etcd {
			if o != m {
				members = append(members, one(m.Host, o.Host))
			}
		}
	}
	to, from := cut{name: "h1 to etcd", total: true}, cut{name: "etcd to h1", total: true}
	for _, m := range f.Etcd {
		to.ways = append(to.ways, [2]*lab.Host{f.Hosts[0], m.Host})
		from.ways = append(from.ways, [2]*lab.Host{m.Host, f.Hosts[0]})
	}
	all = []cut{to, from}

	if *partitionFull {
		return slices.Concat(up, down, hosts, members, all)
	}
	for _, kind := range [][]cut{up, down, hosts, members, all} {
		chosen = append(chosen, kind[dice.IntN(len(kind))])
	}
	return chosen
}

// awaitAgreement waits until the holds of etcd, the mounts of the hosts and the attachments of the SAN
// are all as expected. The map contains the one host of each volume in use.
func (f *field) awaitAgreement(after string, want map[string]string) {
	f.t.Helper()
	hosts := map[string]*harness.Host{}
	for _, h := range f.Hosts {
		hosts[h.Name] = h.Host
	}
	awaitAgreement(f.t, after, f.san, hosts, want, func() map[string]string {
		holds := map[string]string{}
		for _, id := range []string{"db", "other"} {
			v, ok := volumeOn(f.Hosts[1].Host, id)
			for _, h := range v.Holds {
				holds[id] += h.Host
			}
			if !ok {
				holds[id] += " unknown"
			}
		}
		return holds
	})
}

// diskMounted matches a mount of a disk of the SAN.
var diskMounted = regexp.MustCompile(` san:disk-([^/ ]+)/`)

// awaitAgreement waits until the given holds, the mounts of the hosts and the attachments of the SAN are all
// as expected. The maps contain the names of the hosts of each volume.
func awaitAgreement(t *testing.T, after string, s *san.SAN, hosts map[string]*harness.Host, want map[string]string, seen func() map[string]string) {
	t.Helper()
	for end := time.Now().Add(healWithin); ; time.Sleep(50 * time.Millisecond) {
		holds, mounts, attached := seen(), map[string]string{}, map[string]string{}
		for name, h := range hosts {
			for _, m := range diskMounted.FindAllStringSubmatch(h.Mounts(), -1) {
				if !strings.Contains(mounts[m[1]], name) {
					mounts[m[1]] += name
				}
			}
		}
		for _, a := range s.Attachments() {
			attached[strings.TrimPrefix(a.Volume, "disk-")] += a.Node
		}
		got := fmt.Sprintf("holds %v, mounts %v, attachments %v", holds, mounts, attached)
		if got == fmt.Sprintf("holds %v, mounts %v, attachments %v", want, want, want) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s after %s: %s, want %v", healWithin, after, got, want)
		}
	}
}
