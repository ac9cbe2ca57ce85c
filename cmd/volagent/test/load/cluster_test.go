package load_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/agent/cluster"
	"github.com/volagent/volagent/agent/cluster/etcdtest"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// clusterRig is a rig whose agent belongs to a cluster.
type clusterRig struct {
	*rig
	etcd  *etcdtest.Cluster
	store *cluster.Store // of the benchmark itself
}

// newClusterRig starts an etcd, and an agent that uses it.
func newClusterRig(b *testing.B, p *loadPlugin) *clusterRig {
	b.Helper()
	etcd := etcdtest.Start(b, 1)
	r := &clusterRig{rig: newRig(b, p), etcd: etcd, store: openStore(b, etcd)}
	section := fmt.Sprintf("cluster: {endpoints: [%s]}\n", strings.Join(etcd.Endpoints(), ", "))
	r.Must(os.WriteFile(filepath.Join(r.Dir, "volagent.yaml"), []byte(section), 0o644))
	return r
}

// openStore connects to an etcd with the prefix of the agents.
func openStore(tb testing.TB, etcd *etcdtest.Cluster) *cluster.Store {
	tb.Helper()
	store, err := cluster.Open(context.Background(), cluster.Options{Endpoints: etcd.Endpoints(), Prefix: "/volagent", Log: hclog.NewNullLogger()})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = store.Close() })
	return store
}

// share registers a shared volume that several claims of one host may use.
func (r *clusterRig) share(id string) {
	r.T.Helper()
	spec := api.VolumeSpec{
		ID: id, PluginID: "load", ExternalID: id, Scope: api.ScopeShared,
		Capabilities: []api.Capability{{AccessMode: "single-node-multi-writer", AttachmentMode: "file-system"}},
	}
	r.Await("the registration in the cluster", func() bool {
		_, err := r.api.RegisterVolume(context.Background(), spec, false)
		return err == nil
	})
}

// take claims a volume.
func (r *clusterRig) take(id, alloc string) error {
	_, err := r.api.ClaimVolume(context.Background(), id, alloc, api.ClaimRequest{}, loadWait)
	return err
}

// leave detaches a claim.
func (r *clusterRig) leave(id, alloc string) error {
	return r.api.DetachClaim(context.Background(), id, alloc, apiclient.DetachOptions{Wait: loadWait})
}

// awaitFree waits until the agent has given up all its holds.
func (r *clusterRig) awaitFree() {
	r.T.Helper()
	r.Await("the end of all holds", func() bool {
		page, err := r.store.Range(context.Background(), shared.Holds(), 1, 0)
		r.Must(err)
		return len(page.KVs) == 0
	})
}

// writeOnce writes as much to etcd as an admission.
func (r *clusterRig) writeOnce(int) error {
	value := []byte(strings.Repeat("x", 200))
	_, err := r.store.Do(context.Background(), shared.Txn{Then: []shared.Op{
		shared.Put("bench/use", value), shared.Put("bench/hold", value), shared.Put("bench/call", value),
	}})
	return err
}

// readOnce reads the keys of an admission from etcd.
func (r *clusterRig) readOnce(int) error {
	_, err := r.store.Do(context.Background(), shared.Txn{Then: shared.Reads("test-host", "shared")})
	return err
}

// transactionsFile is the file with one line for each transaction of a tapped agent.
func (r *clusterRig) transactionsFile() string { return filepath.Join(r.Dir, "transactions") }

// tap makes the agent count its transactions.
func (r *clusterRig) tap() { r.tapped = []string{loadTransactions + "=" + r.transactionsFile()} }

// transactions returns the number of transactions that the tapped agent has sent, by kind.
func (r *clusterRig) transactions() map[string]int {
	r.T.Helper()
	raw, err := os.ReadFile(r.transactionsFile())
	r.Must(err)
	n := map[string]int{}
	for line := range strings.Lines(string(raw)) {
		n[strings.TrimSpace(line)]++
	}
	return n
}

// transactionKind returns the kind of a transaction: one about a volume that only reads, one about a
// volume that writes, or one about the host itself.
func transactionKind(t shared.Txn) string {
	kind := "host"
	for _, op := range t.Then {
		about := strings.HasPrefix(op.Key, "use/") || strings.HasPrefix(op.Key, "holds/") || strings.HasPrefix(op.Key, "volumes/")
		if about && op.Kind != shared.OpGet {
			return "write"
		}
		if about {
			kind = "read"
		}
	}
	return kind
}

// BenchmarkLoadShared claims a shared volume and a volume of the host in turn. The first claim of a
// shared volume on a host needs two transactions more: one before the attachment, and one before the
// stage. A further claim of the volume on the host needs none, and does not become slower without
// etcd.
func BenchmarkLoadShared(b *testing.B) {
	r := newClusterRig(b, &loadPlugin{Attach: true})
	r.tap()
	r.electAnother()
	r.startReady()
	r.register(1)
	r.share("shared")
	r.Must(r.take("shared", "warm"))
	r.Must(r.leave("shared", "warm"))

	rounds := 200 * b.N
	var local, first, commit, write, read samples
	var localCommits, firstCommits uint64
	count := map[string]int{}
	b.ResetTimer()
	for range rounds {
		commit.time(r.rig, r.commitOnce, 0)
		write.time(r.rig, r.writeOnce, 0)
		read.time(r.rig, r.readOnce, 0)
		commits := r.commits()
		local.time(r.rig, r.claim, 0)
		localCommits += r.commits() - commits
		r.Must(r.release(0))

		r.awaitFree()
		before, commits := r.transactions(), r.commits()
		first.time(r.rig, func(int) error { return r.take("shared", "one") }, 0)
		firstCommits += r.commits() - commits
		for kind, n := range r.transactions() {
			count[kind] += n - before[kind]
		}
		r.Must(r.leave("shared", "one"))
	}
	b.StopTimer()
	per := func(n int) float64 { return float64(n) / float64(rounds) }
	counted(b, "first claim of a shared volume, transactions", per(count["write"]), 2, "%.2f, at most 2 (and %.2f reads of the definition)", per(count["write"]), per(count["read"]))
	more := per(int(firstCommits)) - per(int(localCommits))
	own := first.median() - local.median() - 2*write.median() - read.median() - time.Duration(more*float64(commit.median()))
	verdict(b, "first claim of a shared volume, time", float64(own)/float64(time.Millisecond), "%s = %s of a local claim + 2 transactions of %s + a read of %s + %.2f commits of %s + %s, at most 1ms",
		round(first.median()), round(local.median()), round(write.median()), round(read.median()), more, round(commit.median()), round(own))

	r.second(rounds)
	r.end()
}

// second measures further claims of a shared volume, with etcd and without.
func (r *clusterRig) second(rounds int) {
	r.T.Helper()
	r.Must(r.take("shared", "holder"))
	measure := func() (s samples) {
		for range rounds {
			s.time(r.rig, func(int) error { return r.take("shared", "more") }, 0)
			r.Must(r.leave("shared", "more"))
		}
		return s
	}

	awaitQuiet(r.T, r.etcd)
	was, before := r.etcd.Requests(), r.transactions()
	with := measure()
	awaitQuiet(r.T, r.etcd)
	now, after := r.etcd.Requests(), r.transactions()
	told := after["host"] - before["host"] // the status of the host for people, at most once a second
	const requests = 2                     // of one status: the tap sees the write, and not the read before it
	sent := now["Txn"] + now["Range"] - was["Txn"] - was["Range"] - requests*told
	counted(r.T, "second claim of a shared volume on a host, requests", float64(sent), 0, "%d for %d claims, none allowed (%d times the status of the host)", sent, rounds, told)
	r.etcd.Stop(0)
	without := measure()
	ratio := float64(without.median()) / float64(with.median())
	verdict(r.T, "second claim of a shared volume without etcd", ratio/1.2, "%s, %.2f times the %s with etcd, at most 1.2 times", round(without.median()), ratio, round(with.median()))
	r.etcd.Start(0)
	r.Must(r.leave("shared", "holder"))
}

// idleWindow is the time in which the benchmarks count the requests of idle hosts. It contains
// several renewals of a lease, and one request for the progress of a watch.
const idleWindow = time.Minute

// BenchmarkLoadClusterIdle counts the requests of an idle agent with a shared volume. It compares the
// agent's memory with 5 000 and with 55 000 volumes that other hosts use.
func BenchmarkLoadClusterIdle(b *testing.B) {
	const warm, foreign = 5_000, 50_000
	r := newClusterRig(b, &loadPlugin{})
	r.electAnother()
	r.startReady()
	r.share("shared")
	r.Must(r.take("shared", "one"))
	r.addForeign(warm, "near") // an agent that has watched a burst keeps some memory
	before := r.settled()
	was := r.etcd.Requests()
	b.ResetTimer()
	time.Sleep(idleWindow)
	b.StopTimer()
	now := r.etcd.Requests()
	other, words := idleRequests(was, now)
	counted(b, "an idle agent, requests beside the renewals of its lease", float64(other), 0, "%d in %s (%s), none allowed", other, idleWindow, words)
	progress := now["Watch"] - was["Watch"]
	counted(b, "an idle agent, requests for the progress of its watch", float64(progress), 2, "%d in %s, at most 2", progress, idleWindow)

	r.addForeign(foreign, "far")
	after := r.settled()
	perVolume := float64(after.Anon-before.Anon) * 1024 / foreign
	b.ReportMetric(float64(after.Anon), "anon-KiB")
	verdict(b, fmt.Sprintf("an agent's memory with %d more volumes of other hosts", foreign), perVolume/64,
		"%d KiB instead of %d, %.0f bytes for each foreign volume, at most 64", after.Anon, before.Anon, perVolume)
	r.end()
}

// electAnother founds the cluster, and makes the agents believe that another host is elected. The elected
// host also cleans up, and renews a second lease.
func (r *clusterRig) electAnother() {
	r.T.Helper()
	_, err := r.store.Do(context.Background(), shared.Found("bench"))
	r.Must(err)
	_, err = r.store.Do(context.Background(), shared.Txn{Then: []shared.Op{shared.Put(shared.LeaderKey, []byte(`{"node":"elsewhere"}`))}})
	r.Must(err)
}

// idleRequests returns the number of requests between two counts that renew no lease, and describes
// all of them. The request of a watch for its progress, once a minute, does not count.
func idleRequests(was, now map[string]int) (other int, words string) {
	for method, n := range now {
		n -= was[method]
		if n == 0 {
			continue
		}
		words += fmt.Sprintf("%s %d, ", method, n)
		if method != "LeaseKeepAlive" && method != "Watch" {
			other += n
		}
	}
	return other, strings.TrimSuffix(words, ", ")
}

// addForeign writes volumes that another host holds to etcd. The agent watches the notices of them.
func (r *clusterRig) addForeign(n int, node string) {
	r.T.Helper()
	for _, ops := range foreignVolumes(n, node) {
		_, err := r.store.Do(context.Background(), shared.Txn{Then: ops})
		r.Must(err)
	}
}

// foreignVolumes returns the keys of n volumes that a host holds, in parts that fit into a
// transaction.
func foreignVolumes(n int, node string) (parts [][]shared.Op) {
	const perPart = 20 // etcd permits 128 operations
	for i := range n {
		id := fmt.Sprintf("%s-%05d", node, i)
		if i%perPart == 0 {
			parts = append(parts, nil)
		}
		parts[len(parts)-1] = append(parts[len(parts)-1], volumeKeys(id, node)...)
	}
	return parts
}

// volumeKeys returns the operations that write the keys of a volume. The volume is free if node is
// empty.
func volumeKeys(id, node string) []shared.Op {
	v := volume.Volume{
		ID: id, Name: id, PluginID: "load", Driver: "load.example.com", ExternalID: id, Provision: volume.Provisioned, Shared: true,
		Capabilities: []call.Capability{{Access: call.SingleNodeWriter, Attachment: call.FileSystem}},
	}
	use := shared.Use{}
	ops := []shared.Op{
		shared.Put(shared.VolumeKey(id), shared.Entry[shared.Definition]{}.Encode(shared.Definition{Volume: v})),
		shared.Put(shared.ExternalKey(v.Driver, id), shared.Entry[shared.Claimed]{}.Encode(shared.Claimed{Volume: id})),
	}
	if node != "" {
		use = shared.Use{Access: call.SingleNodeWriter, Holder: node, Since: time.Now().UTC(), Generation: 1}
		h := shared.Hold{Access: call.SingleNodeWriter, Operation: operationOf(id), Incarnation: 1, Since: time.Now().UTC()}
		ops = append(ops, shared.Put(shared.HoldKey(node, id), shared.Entry[shared.Hold]{}.Encode(h)),
			shared.Put(shared.NoticeKey(id), shared.Entry[shared.Notice]{}.Encode(shared.Notice{By: node})))
	}
	return append(ops, shared.Put(shared.UseKey(id), shared.Entry[shared.Use]{}.Encode(use)))
}

// operationOf returns the operation of the hold on a volume.
func operationOf(id string) string { return "op-" + id }

// sum returns the sum of all counts.
func sum(counts map[string]int) (n int) {
	for c := range maps.Values(counts) {
		n += c
	}
	return n
}
