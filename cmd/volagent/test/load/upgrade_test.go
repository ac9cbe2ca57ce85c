package load_test

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/shared"
)

// upgradedAtOnce is the number of hosts that BenchmarkLoadUpgrade restarts at the same time.
var upgradedAtOnce = flag.Int("load.upgrade", 10, "restart the agents of `N` hosts at once")

// programRestart stands for the time between the end of the old program and the start of the new one.
const programRestart = time.Second

// BenchmarkLoadUpgrade restarts the agents of all hosts of a fleet, as an upgrade does. Each agent says that it
// stops in order, and a host waits for one of its volumes meanwhile. No volume may be taken over, and no host
// may register more often than its agent has started.
func BenchmarkLoadUpgrade(b *testing.B) {
	f := newFleet(b)
	held, registered := f.holds(), f.registrations()
	lease, err := f.store.Grant(context.Background(), time.Hour)
	if err != nil {
		b.Fatal(err)
	}
	fencings := f.countFencings()
	was, worked, m := f.etcd.Requests(), f.work(), newMeter(f.etcd)

	var mu sync.Mutex
	var away samples
	b.ResetTimer()
	stop := m.run()
	took := drive(b, len(f.hosts), *upgradedAtOnce, func(i int) error {
		begun := time.Now()
		err := f.upgrade(f.hosts[i], f.hosts[(i+len(f.hosts)/2)%len(f.hosts)].node, lease)
		mu.Lock()
		away = append(away, time.Since(begun)-programRestart)
		mu.Unlock()
		return err
	})
	b.StopTimer()
	stop()
	done := f.work()
	done.etcd, done.hosts = done.etcd-worked.etcd, done.hosts-worked.hosts
	f.awaitCalm()
	now := f.etcd.Requests()

	other, words := idleRequests(was, now)
	other += now["Watch"] - was["Watch"]
	each := float64(other) / float64(len(f.hosts))
	b.ReportMetric(took.Seconds(), "seconds")
	b.ReportMetric(away.median().Seconds(), "away-s")
	b.ReportMetric(away.at(1).Seconds(), "worst-away-s")
	b.ReportMetric(m.peak, "peak-requests/s")
	b.ReportMetric(each, "requests/host")
	b.ReportMetric(float64(f.etcdMemory().Anon>>10), "etcd-MiB")
	what := fmt.Sprintf("upgrade of %d hosts with %d volumes, %d at once", len(f.hosts), len(held), *upgradedAtOnce)
	verdict(b, what+", longest absence", away.at(1).Seconds()/upgradeWithin.Seconds(), "%.2f s, median %.2f s, beside the restart of the program, at most %s (%.0f s for all, %s; at most %.0f requests/s; memory of etcd %d MiB)",
		away.at(1).Seconds(), away.median().Seconds(), upgradeWithin, took.Seconds(), done, m.peak, f.etcdMemory().Anon>>10)
	counted(b, what+", requests for each host", each, upgradeRequests, "%.1f beside renewals, at most %d (%s)", each, upgradeRequests, words)

	taken := 0
	left := f.holds()
	for key, created := range held {
		if left[key] != created {
			taken++
		}
	}
	counted(b, what+", volumes taken over", float64(taken)+float64(fencings())+float64(f.detached.Load()), 0, "%d, %d fencings begun, %d detaches, none allowed",
		taken, fencings(), f.detached.Load())
	more := f.registrations() - registered - len(f.hosts)
	counted(b, what+", leases lost", float64(more), 0, "%d, none allowed", more)
}

// upgradeWithin is the longest time that a host may be away beside the restart of its program. It is shorter
// than the time in which another host would take its volumes over. upgradeRequests is the number of requests
// that each host may need. It does not depend on the number of its volumes.
const (
	upgradeWithin   = 15 * time.Second
	upgradeRequests = 80
)

// upgrade restarts the agent of a host. Another host wants one of its volumes meanwhile.
func (f *fleet) upgrade(h *fleetHost, other string, lease shared.Lease) error {
	ctx := context.Background()
	if err := h.service.Leave(ctx); err != nil {
		return err
	}
	if err := h.end(); err != nil {
		return err
	}

	key := shared.WantedKey(h.node+"-00000", other)
	_, err := f.store.Do(ctx, shared.Txn{Then: []shared.Op{
		shared.PutLeased(key, shared.Entry[shared.Wanted]{}.Encode(shared.Wanted{Since: time.Now().UTC()}), lease),
	}})
	if err != nil {
		return err
	}
	time.Sleep(programRestart)
	if err := h.start(); err != nil {
		return err
	}
	_, err = f.store.Do(ctx, shared.Txn{Then: []shared.Op{shared.Delete(key)}})
	return err
}

// countFencings counts the fencings that begin from now on.
func (f *fleet) countFencings() (begun func() int) {
	f.b.Helper()
	var mu sync.Mutex
	n := 0
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = shared.Follow(ctx, f.store, []shared.Span{shared.Nodes()}, nil, func(u shared.Update) { // the error is that of ctx
			for _, c := range u.Changes {
				node, err := shared.Decode[shared.Node](c.KV)
				if err == nil && node.Value.State == shared.NodeFencing {
					mu.Lock()
					n++
					mu.Unlock()
				}
			}
		})
	}()
	f.b.Cleanup(func() { cancel(); <-ended })
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return n
	}
}

// run takes samples until the result stop is called.
func (m *meter) run() (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-end:
				return
			case <-time.After(meterWindow):
				m.sample()
			}
		}
	}()
	return func() { close(end); <-ended }
}
