package load_test

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/cmd/volagent/test/harness/lab"
	"github.com/volagent/volagent/volmgr/csitest/san"
	"github.com/volagent/volagent/volmgr/shared"
)

// failovers is the number of hosts that BenchmarkLoadFailover loses in each case.
var failovers = flag.Int("load.failovers", 1, "lose `N` hosts in each case, one after the other")

// BenchmarkLoadFailover switches a host off while it writes to an attached volume. A claim on another host
// waits for the volume. The benchmark measures the time until that host has written to the volume. Each of
// the three hosts runs an agent and a member of etcd. Each loss has a cluster of its own.
func BenchmarkLoadFailover(b *testing.B) {
	for _, c := range []struct {
		name    string
		most    time.Duration // of the own part
		elected bool          // the lost host is the elected host
		leads   bool          // the lost host runs the leader of etcd
	}{
		{name: "any host", most: 20 * time.Second},
		{name: "the elected host", most: 20 * time.Second, elected: true},
		{name: "the host with the leader of etcd", most: 25 * time.Second, leads: true},
	} {
		b.Run(c.name, func(b *testing.B) {
			var all []takeover
			for try := 0; len(all) < *failovers && try < *failovers+moreTries; try++ {
				b.Run(fmt.Sprint(try+1), func(b *testing.B) {
					f := startFailover(b, c.elected, c.leads)
					if !f.ready() {
						b.Log("the roles of the hosts have changed; this loss does not count")
						return
					}
					f.lose()
					one := f.measure()
					b.Log(one)
					b.ReportMetric(one.own().Seconds(), "own-s")
					all = append(all, one)
				})
			}
			if len(all) < *failovers {
				b.Fatalf("only %d of %d losses were measured", len(all), *failovers)
			}

			slices.SortFunc(all, func(x, y takeover) int { return cmp.Compare(x.own(), y.own()) })
			middle, worst := all[(len(all)-1)/2], all[len(all)-1]
			verdict(b, fmt.Sprintf("failover, %s lost %d times, own part", c.name, len(all)), worst.own().Seconds()/c.most.Seconds(),
				"at most %s; median %s, worst %s", c.most, middle, worst)
		})
	}
}

// moreTries is the number of further tries after losses that do not count.
const moreTries = 3

// takeover is the duration of each part of one takeover.
type takeover struct {
	lease    time.Duration // from the power loss to the end of the lease
	decision time.Duration // then to the first ControllerUnpublishVolume
	detach   time.Duration // then to the success of ControllerUnpublishVolume
	admit    time.Duration // then to ControllerPublishVolume for the host that waits
	mount    time.Duration // then to the first write of that host

	driver time.Duration // of the two calls to the controller
}

func (t takeover) total() time.Duration {
	return t.lease + t.decision + t.detach + t.admit + t.mount
}

// own returns the time without the calls to the controller.
func (t takeover) own() time.Duration { return t.total() - t.driver }

func (t takeover) String() string {
	return fmt.Sprintf("%.2f s = total %.2f s - driver %s (end of the lease %.2f s, decision %.2f s, detach %s, admission %.2f s, attach and mount %.2f s)",
		t.own().Seconds(), t.total().Seconds(), round(t.driver), t.lease.Seconds(), t.decision.Seconds(), round(t.detach), t.admit.Seconds(), t.mount.Seconds())
}

// failover is a cluster that loses a host.
type failover struct {
	*lab.Lab
	b     *testing.B
	san   *san.SAN
	lost  *lab.Host
	waits *lab.Host   // a claim waits on this host
	first *lab.Host   // the elected host
	etcd  *lab.Member // the leader of etcd

	begun time.Time // of the power loss
}

// startFailover starts a cluster. The agent that starts first becomes the elected host.
func startFailover(b *testing.B, elected, leads bool) *failover {
	b.Helper()
	f := &failover{b: b, san: lab.StartSAN(b)}
	f.Lab = lab.New(b, 3, lab.WithEtcd(3), lab.EtcdOnHosts(), lab.Clustered())
	f.Hosts[0].Await("the leader of etcd", func() bool {
		i := slices.IndexFunc(f.Etcd, (*lab.Member).Leads)
		if i >= 0 {
			f.etcd = f.Etcd[i]
		}
		return i >= 0
	})
	others := slices.DeleteFunc(slices.Clone(f.Hosts), func(h *lab.Host) bool { return h == f.etcd.Host })
	f.lost, f.waits, f.first = others[0], others[1], f.etcd.Host
	switch {
	case elected:
		f.first = f.lost
	case leads:
		f.lost, f.first = f.etcd.Host, others[0]
	}

	f.start(f.first)
	f.watch()
	f.first.Await("the election", func() bool { return f.electedIs(f.first) })
	for _, h := range f.Hosts {
		if h != f.first {
			f.start(h)
		}
	}
	f.share()
	f.use()
	return f
}

// start starts the agent of a host. Its plugin permits the proof by a detach.
func (f *failover) start(h *lab.Host) {
	f.b.Helper()
	self, err := os.Executable()
	h.Must(err)
	file, err := f.san.Driver(nodeID(h), san.Config{Attach: true, Stage: true}).PluginFile("san", self)
	h.Must(err)
	text := strings.TrimSuffix(strings.TrimSpace(string(file)), "}") + `, "fence": "detach"}`
	h.Must(os.WriteFile(filepath.Join(h.Dir, "plugins.d", "san.yaml"), []byte(text), 0o600))
	h.Start("san")
}

// nodeID returns the CSI node id of a host.
func nodeID(h *lab.Host) string { return "csi-" + h.Name }

// share registers the shared volume "db".
func (f *failover) share() {
	f.b.Helper()
	f.first.Must(f.san.AddDisk("disk-db", 1<<20))
	file := filepath.Join(f.first.Dir, "db.yaml")
	const text = "id: db\nplugin_id: san\nexternal_id: disk-db\nscope: shared\ncapabilities: [{access_mode: single-node-multi-writer}]\n"
	f.first.Must(os.WriteFile(file, []byte(text), 0o600))
	f.first.Volctl("volume", "register", file)
}

// use lets the host that is going to be lost write to the volume all the time, and a claim of another host
// wait for the volume. The process with this claim writes to the volume as soon as it has it.
func (f *failover) use() {
	f.b.Helper()
	path := strings.TrimSpace(f.lost.Volctl("volume", "claim", "db", "--alloc", "web"))
	f.lost.Spawn(nil, "sh", "-c", `exec 3> "$1"; while :; do echo lost >&3; sleep 0.1; done`, "sh", filepath.Join(path, "log"))
	f.lost.Await("a write", func() bool { return len(f.san.Writes("disk-db")) > 2 })

	f.waits.Spawn(f.waits.Log, "sh", "-c", `path=$("$1" volume claim db --alloc web --timeout 120s) && echo usable > "$path/owner"`, "sh", filepath.Join(harness.BinDir, "volctl"))
	f.waits.Await("the claim to wait", func() bool {
		return slices.ContainsFunc(f.waits.Claims(), func(c string) bool { return strings.HasPrefix(c, "db web") })
	})
}

// ready reports whether the hosts still have the roles that they had at the start.
func (f *failover) ready() bool {
	f.b.Helper()
	return f.etcd.Leads() && f.electedIs(f.first)
}

// lose switches the host off. The SAN first ends its sessions, so that no write comes after the loss.
func (f *failover) lose() {
	f.b.Helper()
	time.Sleep(rand.N(5 * time.Second)) // the loss is at any time between two renewals of the lease
	f.begun = time.Now()
	f.san.CutOff(nodeID(f.lost))
	f.lost.PowerOff()
}

// measure waits until the volume is usable, and returns the duration of each part.
func (f *failover) measure() (t takeover) {
	f.b.Helper()
	var usable san.Event
	f.waits.Await("the first write of the host that waits", func() bool {
		f.b.Helper()
		usable = f.event(time.Time{}, func(e san.Event) bool { return e.Kind == san.KindWrite && e.Node == nodeID(f.waits) })
		return usable.Seq > 0
	})
	call := func(method string, of *lab.Host) (begun, answered time.Time) {
		f.b.Helper()
		first := f.event(f.begun, func(e san.Event) bool {
			return e.Kind == san.KindCall && e.Method == method && e.Target == nodeID(of)
		})
		answer := f.event(f.begun, func(e san.Event) bool {
			return e.Kind == san.KindAnswer && e.Method == method && e.Target == nodeID(of) && e.Code == "OK"
		})
		if first.Seq == 0 || answer.Seq == 0 {
			f.b.Fatalf("the SAN has seen no %s for %s", method, of.Name)
		}
		return first.Time, answer.Time
	}

	gone := f.leaseEnd()
	detach, detached := call("ControllerUnpublishVolume", f.lost)
	attach, attached := call("ControllerPublishVolume", f.waits)
	return takeover{
		lease: gone.Sub(f.begun), decision: detach.Sub(gone), detach: detached.Sub(detach), admit: attach.Sub(detached), mount: usable.Time.Sub(attach),
		driver: detached.Sub(detach) + attached.Sub(attach),
	}
}

// event returns the first event of the SAN after a time that matches. Without one, its Seq is 0.
func (f *failover) event(after time.Time, match func(san.Event) bool) san.Event {
	for _, e := range f.san.Events() {
		if e.Time.After(after) && match(e) {
			return e
		}
	}
	return san.Event{}
}

// leaseEnd returns the time at which the lease of the lost host has ended.
func (f *failover) leaseEnd() time.Time {
	f.b.Helper()
	for _, c := range f.changes() {
		if c.Key == shared.LiveKey(f.lost.Name) && c.Deleted && c.Time.After(f.begun) {
			return c.Time
		}
	}
	f.b.Fatal("the lease of the lost host has not ended")
	return time.Time{}
}
