package load_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/cluster"
	"github.com/volagent/volagent/agent/cluster/etcdtest"
	"github.com/volagent/volagent/agent/hold"
	"github.com/volagent/volagent/agent/hold/clean"
	"github.com/volagent/volagent/agent/hold/fence"
	"github.com/volagent/volagent/agent/hold/move"
	"github.com/volagent/volagent/agent/hold/task"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// fleetVolumes is the number of volumes that each host of a fleet holds.
const fleetVolumes = 100

// fleet is a cluster of many hosts on one etcd. Each host runs all services of an agent that use the cluster,
// with a connection of its own. There is no agent, and nothing is mounted.
type fleet struct {
	b     *testing.B
	etcd  *etcdtest.Cluster
	store *cluster.Store // of the benchmark itself
	hosts []*fleetHost

	detached atomic.Int64 // the successful calls of ControllerUnpublishVolume
}

// fleetHost is one host of a fleet.
type fleetHost struct {
	f       *fleet
	node    string
	records *memoryRecords

	service       *hold.Service
	registrations atomic.Int64 // of all agents that the host has had
	end           func() error // ends the agent without a word to the cluster
}

// newFleet starts a fleet of -load.hosts hosts. Each of them holds attached volumes, and its plugin permits
// the proof by a detach.
func newFleet(b *testing.B) *fleet {
	b.Helper()
	f := &fleet{b: b, etcd: etcdtest.Start(b, 1, "--quota-backend-bytes=4294967296")}
	f.store = openStore(b, f.etcd)
	if _, err := f.store.Do(context.Background(), shared.Found("bench")); err != nil {
		b.Fatal(err)
	}
	for i := range *idleHosts {
		h := &fleetHost{f: f, node: fmt.Sprintf("h%04d", i)}
		addHolder(b, f.store, h.node, fleetVolumes)
		h.records = &memoryRecords{records: heldRecords(b, f.store, h.node)}
		f.hosts = append(f.hosts, h)
	}

	drive(b, len(f.hosts), 16, func(i int) error { return f.hosts[i].start() })
	b.Cleanup(func() {
		drive(b, len(f.hosts), 16, func(i int) error { return f.hosts[i].end() })
	})
	f.awaitCalm()
	return f
}

// info describes the plugin of a host to the other hosts.
func (h *fleetHost) info() shared.NodeInfo {
	one := shared.NodePlugin{Driver: "load.example.com", NodeID: "csi-" + h.node, Fence: plugin.FenceDetach}
	return shared.NodeInfo{Version: "1", Plugins: map[string]shared.NodePlugin{"load": one}}
}

// noted counts the registrations among some events.
func (h *fleetHost) noted(all ...volume.Event) {
	for _, e := range all {
		if e.Type == volume.EventNodeRegistered {
			h.registrations.Add(1)
		}
	}
}

// start starts the services of the host, as a new agent does, and waits until the host is a member.
func (h *fleetHost) start() error {
	log := hclog.NewNullLogger()
	store, err := cluster.Open(context.Background(), cluster.Options{Endpoints: h.f.etcd.Endpoints(), Prefix: "/volagent", Log: log})
	if err != nil {
		return err
	}

	var cleaner *clean.Cleaner
	reachable := make(chan struct{}, 1)
	h.service = hold.New(hold.Options{
		Store: store, Endpoints: func() string { return "etcd" }, Node: h.node, Boot: "boot-" + h.node, Machine: shared.Machine{ID: h.node},
		Records: h.records, StagingPath: func(_, id string) string { return "/staging/" + id }, Wake: func(string) {},
		Reachable: func() {
			cleaner.Wake()
			select {
			case reachable <- struct{}{}:
			default: // the host was a member before
			}
		},
		Uses: func(string, string) string { return "" }, Info: h.info, AwaitPlugin: func(context.Context, string) error { return nil },
		Status: func() shared.Status { return shared.Status{At: time.Now()} }, Draining: func() bool { return false },
		Admitted: func(time.Duration) {}, Events: h.noted, Log: log,
	})
	cleaner = newCleaner(store, h.node, h.service.Asker, &h.f.detached)
	tasks := task.New(task.Options{Store: store, Node: h.node, Asker: h.service.Asker, Log: log})
	moves := move.New(move.Options{Store: store, Node: h.node, Asker: h.service.Asker, Lease: h.service.Lease, Draining: func() bool { return false }, Log: log})

	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, run := range []func(context.Context){h.service.Run, cleaner.Run, tasks.Run, moves.Run} {
		running.Go(func() { run(ctx) })
	}
	h.end = sync.OnceValue(func() error {
		cancel()
		running.Wait()
		return store.Close()
	})

	select {
	case <-reachable:
		return nil
	case <-time.After(loadWait):
		return fmt.Errorf("host %s does not become a member: %w", h.node, h.service.Usable())
	}
}

// newCleaner returns the service of a host that cleans up and fences. Its plugin has a controller, which
// answers at once. The counter detached is that of the calls of ControllerUnpublishVolume.
func newCleaner(store shared.Store, node string, asker func() (shared.Asker, error), detached *atomic.Int64) *clean.Cleaner {
	view := plugin.View{Known: true, Ready: true, ControllerTimeout: time.Minute, Info: plugin.Info{Driver: "load.example.com", HasController: true}}
	answers := call.Handlers{call.ControllerUnpublish: func(context.Context, any) (any, error) {
		detached.Add(1)
		return call.Nothing{}, nil
	}}
	var cleaner *clean.Cleaner
	fencer := fence.New(fence.Options{
		Store: store, Node: node,
		Detacher: func(context.Context, volume.Volume) (call.Caller, call.Secrets, time.Duration, error) {
			return answers, nil, time.Minute, nil
		},
		Published: func(context.Context, volume.Volume) ([]string, bool, error) { return nil, false, nil },
		Hooks:     noHooks{}, Wake: func() { cleaner.Wake() }, Events: func(...volume.Event) {}, Log: hclog.NewNullLogger(),
	})
	cleaner = clean.New(clean.Options{
		Store: store, Node: node, Asker: asker, View: func(string) plugin.View { return view },
		Plugin:  func(volume.Volume, call.Method) (call.Caller, error) { return answers, nil },
		Secrets: func(volume.Volume) (call.Secrets, error) { return nil, nil }, Fencer: fencer, Log: hclog.NewNullLogger(),
	})
	return cleaner
}

// noHooks is a host without fence hooks.
type noHooks struct{}

func (noHooks) Names() []string { return nil }

func (noHooks) Off(context.Context, string, shared.Machine) (string, error) { return "", nil }

// each calls fn for each host.
func (f *fleet) each(fn func(*fleetHost)) {
	for _, h := range f.hosts {
		fn(h)
	}
}

// serving returns the number of hosts that can use the cluster.
func (f *fleet) serving() (n int) {
	f.each(func(h *fleetHost) {
		if h.service.Usable() == nil {
			n++
		}
	})
	return n
}

// registrations returns the number of registrations since the start of the fleet.
func (f *fleet) registrations() (n int) {
	f.each(func(h *fleetHost) { n += int(h.registrations.Load()) })
	return n
}

// await waits until a condition is true, and samples the requests meanwhile.
func (f *fleet) await(what string, m *meter, ok func() bool) {
	f.b.Helper()
	for end := time.Now().Add(5 * time.Minute); !ok(); time.Sleep(50 * time.Millisecond) {
		m.sample()
		if time.Now().After(end) {
			f.b.Fatalf("timed out: %s", what)
		}
	}
}

// awaitCalm waits until the hosts send little beside renewals. In a large cluster, some host always makes one of
// its rare passes, and the elected host reads all keys about once a minute.
func (f *fleet) awaitCalm() {
	f.b.Helper()
	was := f.etcd.Requests()
	for end := time.Now().Add(10 * time.Minute); time.Now().Before(end); {
		time.Sleep(calmWindow)
		now := f.etcd.Requests()
		other, _ := idleRequests(was, now)
		if was = now; other <= len(f.hosts)/5 {
			return
		}
	}
	f.b.Fatal("the hosts do not become calm")
}

// calmWindow is the time in which the hosts of a fleet must send little. It is longer than the time between two
// renewals.
const calmWindow = 6 * time.Second

// holds returns the revisions in which the holds of the fleet were created, by key.
func (f *fleet) holds() map[string]int64 {
	f.b.Helper()
	all := map[string]int64{}
	if err := shared.Each(context.Background(), f.store, shared.Holds(), func(kv shared.KV) error { all[kv.Key] = kv.Create; return nil }); err != nil {
		f.b.Fatal(err)
	}
	return all
}

// etcdMemory returns the memory of etcd.
func (f *fleet) etcdMemory() memory {
	f.b.Helper()
	return memoryOf(f.b, f.etcd.PID(0))
}

// work is the processor time of etcd and of all hosts together.
type work struct{ etcd, hosts time.Duration }

// work returns the work since the start of etcd and of the benchmark.
func (f *fleet) work() work {
	f.b.Helper()
	return work{etcd: cpuOf(f.b, f.etcd.PID(0)), hosts: cpuOf(f.b, os.Getpid())}
}

func (w work) String() string {
	return fmt.Sprintf("%.1f s of processor time of etcd and %.1f s of all hosts", w.etcd.Seconds(), w.hosts.Seconds())
}

// meterWindow is the shortest time between two samples of a meter.
const meterWindow = 500 * time.Millisecond

// meter measures the rate of the requests to etcd.
type meter struct {
	etcd *etcdtest.Cluster
	last map[string]int
	at   time.Time
	peak float64 // the highest rate in a second
}

// newMeter returns a meter that begins now.
func newMeter(etcd *etcdtest.Cluster) *meter {
	return &meter{etcd: etcd, last: etcd.Requests(), at: time.Now()}
}

// sample takes a sample if the last one is old enough.
func (m *meter) sample() {
	if time.Since(m.at) < meterWindow {
		return
	}
	now, at := m.etcd.Requests(), time.Now()
	if sum(now) < sum(m.last) {
		return // etcd did not answer
	}
	m.peak = max(m.peak, float64(sum(now)-sum(m.last))/at.Sub(m.at).Seconds())
	m.last, m.at = now, at
}
