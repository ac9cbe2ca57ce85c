package load_test

import (
	"context"
	"flag"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/cluster/etcdtest"
	"github.com/volagent/volagent/agent/hold/clean"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// rackHosts is the number of hosts that BenchmarkLoadRack loses at once. With -load.hosts 960, the cluster
// has 1 000 hosts.
var rackHosts = flag.Int("load.rack", 40, "lose `N` hosts with 100 volumes each at once")

// BenchmarkLoadRack loses a rack of hosts at once, while other hosts wait for all their volumes. The plugin
// permits the proof by a detach, and its controller answers at once. The benchmark measures the time from
// the end of the last lease to the last takeover, and counts the requests to etcd.
func BenchmarkLoadRack(b *testing.B) {
	const volumes, most = 100, 60 // seconds
	etcd := etcdtest.Start(b, 1, "--quota-backend-bytes=4294967296")
	store := openStore(b, etcd)
	fencer := join(b, etcd, "fencer", map[string]volume.Record{})
	for i := range *idleHosts {
		addHolder(b, store, fmt.Sprintf("h%04d", i), volumes)
		join(b, etcd, fmt.Sprintf("h%04d", i), map[string]volume.Record{})
	}
	var lost []*member
	for i := range *rackHosts {
		node := fmt.Sprintf("lost%04d", i)
		addHolder(b, store, node, volumes)
		lost = append(lost, join(b, etcd, node, heldRecords(b, store, node)))
	}
	r := newRack(b, store, fencer)
	awaitQuiet(b, etcd)

	for _, m := range lost {
		describe(b, store, m.Node) // after the description that the host has written itself
		m.stop()                   // without a word to the cluster, as at a power loss
	}
	r.awaitGone(len(lost))
	was := etcd.Requests()
	b.ResetTimer()
	begun := time.Now()
	n := len(lost) * volumes
	drive(b, n, 32, func(i int) error { return r.want(fmt.Sprintf("lost%04d-%05d", i/volumes, i%volumes)) })
	r.awaitTaken(n)
	took := time.Since(begun)
	b.StopTimer()

	requests := sum(etcd.Requests()) - sum(was)
	b.ReportMetric(took.Seconds(), "seconds")
	b.ReportMetric(float64(requests)/float64(n), "requests/volume")
	counted(b, fmt.Sprintf("%d of %d hosts lost at once, %d volumes taken over, seconds", len(lost), len(lost)+*idleHosts+1, n), took.Seconds(), most,
		"%.1f, at most %d (%.1f requests to etcd for each volume)", took.Seconds(), most, float64(requests)/float64(n))
}

// addHolder adds volumes that a host holds with an attachment.
func addHolder(b *testing.B, store shared.Store, node string, volumes int) {
	b.Helper()
	for _, ops := range foreignVolumes(volumes, node) {
		for i, op := range ops {
			if _, id, ok := shared.HoldIDs(op.Key); ok && shared.Holds().Contains(op.Key) {
				h := shared.Hold{
					Access: call.SingleNodeWriter, Operation: operationOf(id), Incarnation: 1, Since: time.Now().UTC(),
					Attachment: shared.Attached, NodeID: "csi-" + node,
				}
				ops[i] = shared.Put(op.Key, shared.Entry[shared.Hold]{}.Encode(h))
			}
		}
		if _, err := store.Do(context.Background(), shared.Txn{Then: ops}); err != nil {
			b.Fatal(err)
		}
	}
}

// heldRecords returns the records that explain the holds of a host.
func heldRecords(b *testing.B, store shared.Store, node string) map[string]volume.Record {
	b.Helper()
	records := map[string]volume.Record{}
	if err := shared.Each(context.Background(), store, shared.HoldsOf(node), func(kv shared.KV) error {
		_, id, _ := shared.HoldIDs(kv.Key)
		r := wanting(id)
		r.Node.Hold.State, r.Node.Hold.Token = volume.Present, volume.Token{Epoch: 1, Revision: kv.Create}
		records[id] = r
		return nil
	}); err != nil {
		b.Fatal(err)
	}
	return records
}

// describe says in the cluster that the plugin of a host permits the proof by a detach.
func describe(b *testing.B, store shared.Store, node string) {
	b.Helper()
	info := shared.NodeInfo{Version: "1", Plugins: map[string]shared.NodePlugin{"load": {Driver: "load.example.com", NodeID: "csi-" + node, Fence: plugin.FenceDetach}}}
	op := shared.Put(shared.NodeInfoKey(node), shared.Entry[shared.NodeInfo]{}.Encode(info))
	if _, err := store.Do(context.Background(), shared.Txn{Then: []shared.Op{op}}); err != nil {
		b.Fatal(err)
	}
}

// rack is the host that fences a rack.
type rack struct {
	b        *testing.B
	store    shared.Store
	cleaner  *clean.Cleaner
	detached atomic.Int64
	lease    shared.Lease
}

// newRack starts the services of the host that fences, and waits until it is elected.
func newRack(b *testing.B, store shared.Store, m *member) *rack {
	b.Helper()
	r := &rack{b: b, store: store}
	r.cleaner = newCleaner(store, m.Node, m.Asker, &r.detached)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.cleaner.Run(ctx)
	}()
	b.Cleanup(func() { cancel(); <-ended })
	r.await("the election", r.cleaner.Elected)

	lease, err := store.Grant(ctx, 10*time.Minute)
	if err != nil {
		b.Fatal(err)
	}
	r.lease = lease
	return r
}

// want says that a host waits for a volume.
func (r *rack) want(id string) error {
	key := shared.WantedKey(id, "fencer")
	_, err := r.store.Do(context.Background(), shared.Txn{Then: []shared.Op{
		shared.PutLeased(key, shared.Entry[shared.Wanted]{}.Encode(shared.Wanted{Since: time.Now().UTC()}), r.lease),
	}})
	return err
}

// awaitGone waits until the leases of the lost hosts have ended.
func (r *rack) awaitGone(hosts int) {
	r.b.Helper()
	r.await("the end of the leases", func() bool {
		live := 0
		r.each(shared.Lives(), func(string) { live++ })
		return live == *idleHosts+1
	})
	r.b.Logf("%d hosts are gone", hosts)
}

// awaitTaken waits until the lost hosts have no hold any more.
func (r *rack) awaitTaken(n int) {
	r.b.Helper()
	r.await("the last takeover", func() bool {
		if int(r.detached.Load()) < n {
			return false
		}
		left := 0
		r.each(shared.Span{Key: "holds/lost", End: "holds/losu"}, func(string) { left++ })
		return left == 0
	})
}

// each calls fn for each key of a span.
func (r *rack) each(span shared.Span, fn func(key string)) {
	r.b.Helper()
	if err := shared.Each(context.Background(), r.store, span, func(kv shared.KV) error { fn(kv.Key); return nil }); err != nil {
		r.b.Fatal(err)
	}
}

// await waits until a condition is true.
func (r *rack) await(what string, ok func() bool) {
	r.b.Helper()
	for end := time.Now().Add(loadWait); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			r.b.Fatalf("timed out: %s", what)
		}
	}
}
