package simulation_test

import (
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/volagent/volagent/agent/cluster/memory"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// These are the deadlines of the calls to the simulated plugins.
const (
	nodeDeadline       = 5 * time.Second
	controllerDeadline = 10 * time.Second
)

// prefix is the prefix of the cluster's keys.
const prefix = "/sim"

// driver is one simulated kind of storage.
type driver struct {
	id     string
	attach bool // the driver needs ControllerPublishVolume
	single bool // the storage attaches a volume to one node only
	lists  bool // the driver lists the nodes of a volume
	stage  bool // the driver needs NodeStageVolume
	apart  bool // some hosts have no controller of the driver
	fence  plugin.Fence
}

// drivers are the simulated kinds of storage.
var drivers = []driver{
	{id: "single", attach: true, single: true, lists: true, stage: true, apart: true, fence: plugin.FenceDetach},
	{id: "many", attach: true, fence: plugin.FenceHook},
	{id: "network", stage: true, fence: plugin.FenceHook},
}

// driverOf returns the driver with an id.
func driverOf(id string) driver {
	return drivers[slices.IndexFunc(drivers, func(d driver) bool { return d.id == id })]
}

// trouble contains the faults in force. Each number is a probability.
type trouble struct {
	calls float64 // of a fault in a call of a plugin
	lost  float64 // of a transaction whose answer is lost
	late  float64 // of a transaction that is executed late, without an answer
	slow  float64 // of a slow transaction
}

// world is one simulated cluster: its hosts, its store and its storage.
type world struct {
	seed     uint64
	begun    time.Time
	server   *memory.Server
	store    shared.Store // the judge reads with it
	hosts    []*host
	volumes  []volume.Volume
	boxes    []*box
	san      *san
	judge    *judge
	virtual  atomic.Int64 // the virtual time, for the watchdog outside
	sent     atomic.Int64 // requests to the store
	ended    atomic.Bool  // the run has ended
	epochs   atomic.Int64 // how often the store was restored
	restored atomic.Bool  // the store was or will be restored in this storm

	mu        sync.Mutex
	trouble   trouble
	outage    bool // the store answers no host
	restoring bool // the store is off, and is being restored
	drawn     map[string]uint64
	counts    map[string]int
	trace     []line
	broken    string // the first broken rule
	about     string // the volume of the first broken rule
	longest   time.Duration
	lastOff   time.Time // when a hook has switched a host off
	idle      int64     // the most requests to the store in a minute at rest
}

// line is one event of a run.
type line struct {
	at           time.Duration
	host, volume string
	text         string
}

// keptLines limits the events that a world remembers.
const keptLines = 200_000

// newWorld returns a cluster in which no host runs.
func newWorld(seed uint64, hosts, volumes int, boxes []*box) *world {
	w := &world{
		seed: seed, begun: time.Now(), server: memory.New(), drawn: map[string]uint64{}, counts: map[string]int{}, boxes: boxes,
	}
	w.store = w.server.Open(prefix)
	w.san = &san{w: w, disks: map[string]*disk{}, calls: map[*flight]bool{}, failures: map[string]int{}}
	w.judge = &judge{w: w, tokens: map[string]int64{}, holds: map[holder]int64{}, calls: map[string]shared.Call{}}
	modes := []call.AccessMode{call.SingleNodeWriter, call.SingleNodeMultiWriter, call.SingleNodeWriter, call.MultiNodeSingleWriter, call.SingleNodeWriter, call.MultiNodeMultiWriter}
	for i := range volumes {
		d := drivers[i%len(drivers)]
		mode := modes[(i/len(drivers))%len(modes)]
		if d.single && mode != call.SingleNodeMultiWriter {
			mode = call.SingleNodeWriter
		}
		v := volume.Volume{
			ID: fmt.Sprintf("v%02d", i), Shared: true, PluginID: d.id, Driver: d.id + ".example", ExternalID: fmt.Sprintf("disk%02d", i),
			RegisteredAt: w.begun.Add(time.Duration(i)), Capabilities: []call.Capability{{Access: mode, Attachment: call.FileSystem}},
		}
		if mode == call.MultiNodeMultiWriter {
			v.Capabilities = append(v.Capabilities, call.Capability{Access: call.SingleNodeWriter, Attachment: call.FileSystem})
		}
		w.volumes = append(w.volumes, v)
		w.san.disks[v.ExternalID] = &disk{id: v.ID, driver: d, attached: map[string]bool{}}
	}
	for i := range hosts {
		w.hosts = append(w.hosts, newHost(w, i))
	}
	return w
}

// now returns the virtual time since the begin of the run.
func (w *world) now() time.Duration { return time.Since(w.begun) }

// draw returns random numbers that depend only on the seed, on a name, and on how often the name was drawn.
// So they do not depend on the order of the goroutines.
func (w *world) draw(name string) *rand.Rand {
	w.mu.Lock()
	w.drawn[name]++
	n := w.drawn[name]
	w.mu.Unlock()

	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return rand.New(rand.NewPCG(w.seed*1_000_003+n, h.Sum64()))
}

// count counts an operation or a fault for the report.
func (w *world) count(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts[what]++
}

// note remembers an event.
func (w *world) note(host, id, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()

	if len(w.trace) >= keptLines {
		w.trace = slices.Clone(w.trace[keptLines/2:])
	}
	w.trace = append(w.trace, line{w.now(), host, id, fmt.Sprintf(format, args...)})
}

// breaks records that a rule is broken. Only the first one counts.
func (w *world) breaks(id, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.note("judge", id, "BROKEN %s", text)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts["violations"]++
	if w.broken == "" {
		w.broken, w.about = fmt.Sprintf("seed %d, at %s: %s", w.seed, w.now(), text), id
	}
}

// over reports whether a rule is broken, so that the run ends.
func (w *world) over() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.broken != ""
}

// troubles returns the faults in force.
func (w *world) troubles() trouble {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.trouble
}

// cut reports whether the store does not answer a host.
func (w *world) cut(h *host) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.outage || w.restoring || h.partitioned
}

// shownLines limits the events that a failure prints.
const shownLines = 300

// history returns the last events of a volume, and the faults of all hosts among them.
func (w *world) history(id string) string {
	w.mu.Lock()
	defer w.mu.Unlock()

	var out []string
	for _, l := range slices.Backward(w.trace) {
		if l.volume != "" && l.volume != id {
			continue
		}
		out = append(out, fmt.Sprintf("%14s %-6s %-4s %s", l.at.Round(time.Microsecond), l.host, l.volume, l.text))
		if len(out) == shownLines {
			break
		}
	}
	slices.Reverse(out)
	return strings.Join(out, "\n")
}

// report describes the counts of a run.
func (w *world) report() string {
	w.mu.Lock()
	defer w.mu.Unlock()

	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, %s: longest way to rest %s, at most %d requests to the store in a minute of rest, %d requests in all",
		w.seed, w.now().Round(time.Second), w.longest.Round(time.Millisecond), w.idle, w.sent.Load())
	for _, what := range slices.Sorted(maps.Keys(w.counts)) {
		fmt.Fprintf(&b, "\n  %-46s %d", what, w.counts[what])
	}
	if w.counts["violations"] == 0 {
		fmt.Fprintf(&b, "\n  %-46s 0", "violations")
	}
	return b.String()
}

// view returns the state of a driver's plugin on a host.
func (h *host) view(id string) plugin.View {
	i := slices.IndexFunc(drivers, func(d driver) bool { return d.id == id })
	if i < 0 {
		return plugin.View{State: plugin.Stopped}
	}

	d := drivers[i]
	controller := !d.apart || h.controller
	caps := plugin.Caps{Stage: d.stage}
	if controller {
		caps.Attach, caps.List, caps.PublishedNodes = d.attach, d.lists, d.lists
	}
	return plugin.View{
		Known: true, Ready: true, State: plugin.Ready, Incarnation: uint64(1 + h.booted()), CallTimeout: nodeDeadline, ControllerTimeout: controllerDeadline, Fence: d.fence,
		Info: plugin.Info{
			ID: d.id, Driver: d.id + ".example", Version: "1", NodeID: h.nodeID(), HasController: controller, HasNode: true, Caps: caps,
		},
	}
}
