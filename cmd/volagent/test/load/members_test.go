package load_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/cluster/etcdtest"
	"github.com/volagent/volagent/agent/hold"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// idleHosts is the number of hosts of BenchmarkLoadHosts. With 1000, the benchmark needs some
// minutes and 2 GiB.
var idleHosts = flag.Int("load.hosts", 50, "simulate `N` idle hosts with 100 volumes each")

// memoryRecords are the records of a host, in memory.
type memoryRecords struct {
	mu      sync.Mutex
	member  shared.Membership
	records map[string]volume.Record
}

func (m *memoryRecords) Volume(id string) (volume.Record, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.records[id]
	return r, ok
}

func (m *memoryRecords) Volumes() (all []volume.Record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.records {
		all = append(all, r)
	}
	return all
}

func (m *memoryRecords) Membership() shared.Membership {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.member
}

func (m *memoryRecords) PutMembership(_ context.Context, member shared.Membership) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.member = member
	return nil
}

func (m *memoryRecords) ChangeShared(_ context.Context, key string, fn func(volume.Record, bool) (volume.Record, bool)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.records[key]
	if now, put := fn(r, ok); put {
		m.records[key] = now
	}
	return nil
}

func (m *memoryRecords) Leftovers() []volume.Record { return nil }

func (m *memoryRecords) ForgetIdle(context.Context, string) error { return nil }

// member is a host of a cluster without an agent.
type member struct {
	*hold.Service
	records *memoryRecords
	stop    func()
}

// join makes a host a member of the cluster, and waits until it is one. The records are those that
// the host has at first.
func join(b *testing.B, etcd *etcdtest.Cluster, node string, records map[string]volume.Record) *member {
	b.Helper()
	m := &member{records: &memoryRecords{records: records}}
	reachable := make(chan struct{}, 1)
	m.Service = hold.New(hold.Options{
		Store: openStore(b, etcd), Endpoints: func() string { return "etcd" }, Node: node, Boot: "boot-" + node, Machine: shared.Machine{ID: node},
		Records: m.records, StagingPath: func(_, id string) string { return "/staging/" + id }, Wake: func(string) {},
		Reachable: func() {
			select {
			case reachable <- struct{}{}:
			default: // the host was a member before
			}
		},
		Uses: func(string, string) string { return "" }, Info: func() shared.NodeInfo { return shared.NodeInfo{} },
		AwaitPlugin: func(context.Context, string) error { return nil },
		Status:      func() shared.Status { return shared.Status{At: time.Now()} }, Draining: func() bool { return false },
		Admitted: func(time.Duration) {}, Events: func(...volume.Event) {}, Log: hclog.NewNullLogger(),
	})

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.Run(ctx)
	}()
	m.stop = func() { cancel(); <-ended }
	b.Cleanup(m.stop)
	select {
	case <-reachable:
	case <-time.After(loadWait):
		b.Fatalf("host %s does not become a member", node)
	}
	return m
}

// BenchmarkLoadAdmissions gets and gives up holds on many volumes, with 128 requests at once, while
// etcd runs beside on the same processors. For comparison, a bare client sends the same transactions
// in turn: the read of a volume's keys, and the admission.
func BenchmarkLoadAdmissions(b *testing.B) {
	const volumes, atOnce, rounds = 2048, 128, 4
	etcd := etcdtest.Start(b, 1)
	r := &rates{b: b, member: join(b, etcd, "h1", map[string]volume.Record{})}
	for i := range volumes {
		if _, err := r.Store.Do(context.Background(), shared.Txn{Then: volumeKeys(loadID(i), "")}); err != nil {
			b.Fatal(err)
		}
	}

	r.round(volumes, atOnce) // fill connections and caches before the measurement
	r.admit, r.bare = 0, 0
	b.ResetTimer()
	for range rounds * b.N {
		r.round(volumes, atOnce)
	}
	b.StopTimer()
	n := float64(volumes * rounds * b.N)
	admitted, bare := n/r.admit.Seconds(), n/r.bare.Seconds()
	b.ReportMetric(admitted, "admissions/s")
	b.ReportMetric(bare, "bare-admissions/s")
	verdict(b, "admissions/s at 128 at once", min(1500/admitted, 0.6/(admitted/bare)), "%.0f, at least 1500, or at least 60 %% of a bare client (%.0f/s, so %.0f %%)",
		admitted, bare, 100*admitted/bare)
}

// rates measures admissions.
type rates struct {
	*member
	b           *testing.B
	admit, bare time.Duration
}

// round admits all volumes by the service, and then by the bare client.
func (r *rates) round(volumes, atOnce int) {
	r.b.Helper()
	steps, view := r.Steps(), plugin.View{Info: plugin.Info{NodeID: "csi-h1", Caps: plugin.Caps{Attach: true}}}
	r.admit += r.drive(volumes, atOnce, func(i int) error {
		return failure(steps.Do(context.Background(), wanting(loadID(i)), volume.Action{Kind: volume.Acquire}, view))
	})
	r.drive(volumes, atOnce, func(i int) error {
		return failure(steps.Do(context.Background(), wanting(loadID(i)), volume.Action{Kind: volume.GiveUp}, view))
	})

	who, err := r.Asker()
	if err != nil {
		r.b.Fatal(err)
	}
	txns := make([]shared.Txn, volumes)
	r.drive(volumes, atOnce, func(i int) error {
		s, err := r.situation(loadID(i))
		if err != nil {
			return err
		}
		txns[i], err = s.Admit(shared.Ask{Asker: who, Operation: operationOf(loadID(i)), Access: call.SingleNodeWriter, Attach: true, NodeID: "csi-h1", Now: time.Now().UTC()})
		return err
	})
	r.bare += r.drive(volumes, atOnce, func(i int) error {
		if _, err := r.Store.Do(context.Background(), shared.Txn{Then: shared.Reads(r.Node, loadID(i))}); err != nil {
			return err
		}
		return r.send(txns[i])
	})
	r.drive(volumes, atOnce, func(i int) error {
		s, err := r.situation(loadID(i))
		if err != nil {
			return err
		}
		txn, err := s.GiveUp(who, operationOf(loadID(i)), time.Now().UTC())
		if err != nil {
			return err
		}
		return r.send(txn)
	})
}

// situation reads the keys about a volume.
func (r *rates) situation(id string) (shared.Situation, error) {
	res, err := r.Store.Do(context.Background(), shared.Txn{Then: shared.Reads(r.Node, id)})
	if err != nil {
		return shared.Situation{}, err
	}
	return shared.ParseSituation(r.Node, id, res)
}

// send executes a transaction whose conditions are true.
func (r *rates) send(t shared.Txn) error {
	res, err := r.Store.Do(context.Background(), t)
	if err == nil && !res.Done {
		err = errors.New("a condition of the transaction is false")
	}
	return err
}

// drive calls the function do n times, with at most atOnce calls at the same time.
func (r *rates) drive(n, atOnce int, do func(i int) error) time.Duration {
	r.b.Helper()
	return drive(r.b, n, atOnce, do)
}

// wanting returns the record of a volume whose hold is being acquired.
func wanting(id string) volume.Record {
	r := volume.Record{Volume: volume.Volume{ID: id, PluginID: "load", Shared: true}}
	r.Node.Hold = volume.Hold{State: volume.Unknown, Operation: operationOf(id), Access: call.SingleNodeWriter}
	return r
}

// failure returns the error of a step, or nil.
func failure(out volume.Outcome) error {
	if out.Err == nil {
		return nil
	}
	return out.Err
}

// BenchmarkLoadHosts counts the requests of many idle hosts with 100 held volumes each. An idle host
// only renews its lease.
func BenchmarkLoadHosts(b *testing.B) {
	const volumes, most = 100, 220 // requests a second of 1 000 hosts
	etcd := etcdtest.Start(b, 1, "--quota-backend-bytes=4294967296")
	store := openStore(b, etcd)
	founded := join(b, etcd, "first", map[string]volume.Record{})
	for i := range *idleHosts {
		node := fmt.Sprintf("h%04d", i)
		records := map[string]volume.Record{}
		for part, ops := range foreignVolumes(volumes, node) {
			res, err := store.Do(context.Background(), shared.Txn{Then: ops})
			if err != nil {
				b.Fatal(err)
			}
			for j := range 20 {
				id := fmt.Sprintf("%s-%05d", node, part*20+j)
				r := wanting(id)
				r.Node.Hold.State, r.Node.Hold.Token = volume.Present, volume.Token{Epoch: 1, Revision: res.Revision}
				records[id] = r
			}
		}
		join(b, etcd, node, records)
	}
	founded.stop()
	awaitQuiet(b, etcd)

	was := etcd.Requests()
	b.ResetTimer()
	time.Sleep(idleWindow)
	b.StopTimer()
	now := etcd.Requests()
	_, words := idleRequests(was, now)
	rate := float64(sum(now)-sum(was)) / idleWindow.Seconds()
	b.ReportMetric(rate, "requests/s")
	scaled := rate * 1000 / float64(*idleHosts)
	counted(b, fmt.Sprintf("%d idle hosts with %d volumes each, requests/s for 1 000 hosts", *idleHosts, volumes), scaled, most, "%.0f, at most %d (in %s: %s)", scaled, most, idleWindow, words)
}

// awaitQuiet waits until the hosts send nothing but renewals for some seconds. After its
// registration, a host reads the definitions of its volumes.
func awaitQuiet(tb testing.TB, etcd *etcdtest.Cluster) {
	tb.Helper()
	was := etcd.Requests()
	for end := time.Now().Add(10 * time.Minute); time.Now().Before(end); {
		time.Sleep(6 * time.Second)
		now := etcd.Requests()
		other, _ := idleRequests(was, now)
		if was = now; other == 0 {
			return
		}
	}
	tb.Log("the hosts do not become idle")
}
