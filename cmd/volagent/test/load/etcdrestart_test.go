package load_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/shared"
)

// BenchmarkLoadEtcdRestart restarts the etcd of a fleet. It measures the time until all hosts use the cluster again,
// and until all their watches work again. It counts the requests that this needs. No host may lose its lease.
func BenchmarkLoadEtcdRestart(b *testing.B) {
	f := newFleet(b)
	was, begun := f.etcd.Requests(), time.Now()
	time.Sleep(4 * calmWindow)
	idle := float64(sum(f.etcd.Requests())-sum(was)) / time.Since(begun).Seconds()
	atRest := f.etcdMemory()

	for _, c := range []struct {
		name    string
		outage  bool // etcd stays away until all hosts have noticed
		compact bool // the revisions that the watches need are gone afterwards
	}{
		{name: "restart"},
		{name: "outage", outage: true},
		{name: "outage with compaction", outage: true, compact: true},
	} {
		b.Run(c.name, func(b *testing.B) {
			one := f.restart(c.outage, c.compact)
			n := float64(len(f.hosts))
			b.ReportMetric(one.serve.Seconds(), "serve-s")
			b.ReportMetric(one.watch.Seconds(), "watch-s")
			b.ReportMetric(one.half.Seconds(), "half-serve-s")
			b.ReportMetric(one.peak, "peak-requests/s")
			b.ReportMetric(one.work.etcd.Seconds(), "etcd-cpu-s")
			b.ReportMetric(one.work.hosts.Seconds(), "hosts-cpu-s")
			b.ReportMetric(float64(one.memory.Anon>>10), "etcd-MiB")
			b.ReportMetric(float64(one.memory.Peak>>10), "etcd-peak-MiB")
			b.ReportMetric(float64(one.requests)/n, "requests/host")
			what := fmt.Sprintf("%s of etcd with %d hosts and %d volumes", c.name, len(f.hosts), len(f.hosts)*fleetVolumes)
			verdict(b, what+", all hosts back", max(one.serve, one.watch).Seconds()/restartWithin.Seconds(),
				"half serve after %.1f s, all after %.1f s, all watches after %.1f s, at most %s (down for %.1f s; %s; at most %.0f requests/s, %.1f times the %.0f/s at rest; memory of etcd %d MiB, %d MiB at rest)",
				one.half.Seconds(), one.serve.Seconds(), one.watch.Seconds(), restartWithin, one.down.Seconds(), one.work, one.peak, one.peak/idle, idle,
				one.memory.Anon>>10, atRest.Anon>>10)
			counted(b, what+", requests for each host", float64(one.requests)/n, restartRequests, "%.1f beside renewals, at most %d (%s)",
				float64(one.requests)/n, restartRequests, one.words)
			verdict(b, what+", hosts that lost their lease", 1+20*float64(one.lost)/n, "%d, none allowed", one.lost)
		})
	}
}

// restartWithin is the time in which all hosts must be back after etcd answers again. restartRequests is the
// number of requests that each host may need for that. It does not depend on the number of its volumes.
const (
	restartWithin   = 30 * time.Second
	restartRequests = 80
)

// comeback is the return of a fleet after a restart of etcd.
type comeback struct {
	down     time.Duration // how long etcd was down
	half     time.Duration // from the first answer of etcd until half of the hosts use the cluster
	serve    time.Duration // until all hosts use the cluster
	watch    time.Duration // until all hosts have seen a new key
	peak     float64       // the highest rate of requests, in 1/s
	requests int           // all requests of the hosts beside renewals
	words    string        // the requests by method
	lost     int           // hosts that have registered again
	work     work          // until all hosts are back
	memory   memory        // of etcd
}

// restart restarts etcd, and waits until the whole fleet is back.
func (f *fleet) restart(outage, compact bool) (c comeback) {
	f.b.Helper()
	registered := f.registrations()
	if compact {
		f.compact()
	}
	begun := time.Now()
	f.etcd.Kill(0)
	for end := time.Now().Add(loadWait); outage && f.serving() > 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			f.b.Fatalf("%d hosts do not notice that etcd is down", f.serving())
		}
	}

	was := cpuOf(f.b, os.Getpid())
	f.etcd.Start(0)
	up := time.Now()
	c.down = up.Sub(begun)
	m := &meter{etcd: f.etcd, last: map[string]int{}, at: up}
	answers := f.ask(fmt.Sprintf("after-%d", up.UnixNano()))
	f.await("the return of all hosts", m, func() bool {
		serving := f.serving()
		if c.half == 0 && serving >= len(f.hosts)/2 {
			c.half = time.Since(up)
		}
		if c.serve == 0 && serving == len(f.hosts) {
			c.serve = time.Since(up)
		}
		if c.watch == 0 && answers() == len(f.hosts) {
			c.watch = time.Since(up)
		}
		return c.serve > 0 && c.watch > 0
	})
	m.sample()
	c.work = f.work()
	c.work.hosts -= was
	f.awaitCalm()

	now := f.etcd.Requests()
	c.peak, c.lost = m.peak, f.registrations()-registered
	c.requests, c.words = idleRequests(nil, now)
	c.requests += now["Watch"]
	c.memory = f.etcdMemory()
	return c
}

// compact compacts the history, so that no watch can continue where it is.
func (f *fleet) compact() {
	f.b.Helper()
	res, err := f.store.Do(context.Background(), shared.Txn{Then: []shared.Op{shared.Put("bench/one", []byte("x"))}})
	if err == nil {
		res, err = f.store.Do(context.Background(), shared.Txn{Then: []shared.Op{shared.Put("bench/two", []byte("x"))}})
	}
	if err != nil {
		f.b.Fatal(err)
	}
	f.etcd.Compact(res.Revision)
}

// ask asks all hosts a question, as for the share of a volume. A host answers when its watch has delivered the
// question. The result returns the number of answers so far.
func (f *fleet) ask(id string) (answers func() int) {
	f.b.Helper()
	q := shared.Question{ID: id, Node: "bench", Volume: id, Driver: "load.example.com", ExternalID: id}
	f.etcd.Put("/volagent/v1/"+shared.QuestionKey(q.Driver, q.ExternalID), string(shared.Entry[shared.Question]{}.Encode(q)))

	var mu sync.Mutex
	given := map[string]bool{}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = shared.Follow(ctx, f.store, []shared.Span{shared.Answers(id)}, nil, func(u shared.Update) { // the error is that of ctx
			mu.Lock()
			defer mu.Unlock()
			for _, c := range u.Changes {
				given[c.Key] = !c.Deleted
			}
		})
	}()
	f.b.Cleanup(func() { cancel(); <-ended })
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(given)
	}
}
