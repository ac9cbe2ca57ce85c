package simulation_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/claim"
	"github.com/volagent/volagent/agent/drain"
	"github.com/volagent/volagent/agent/hold"
	"github.com/volagent/volagent/agent/hold/clean"
	"github.com/volagent/volagent/agent/hold/fence"
	"github.com/volagent/volagent/agent/hold/move"
	"github.com/volagent/volagent/agent/hold/task"
	"github.com/volagent/volagent/agent/reconcile"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// host is one simulated host. Its agents run one after another.
type host struct {
	w          *world
	number     int
	name       string
	controller bool // the drivers with apart have a controller here
	box        *box

	disk     image
	boots    int
	mounts   map[string]mounted    // by path; guarded by san.mu
	made     uint64                // the number of mounts that were made; guarded by san.mu
	outdated atomic.Bool           // the host has booted with old records in this storm
	empty    bool                  // the host is drained, and nothing was left on it; guarded by san.mu
	agent    atomic.Pointer[agent] // nil while no agent runs

	partitioned bool       // guarded by world.mu
	power       sync.Mutex // held while an agent starts and while the host loses its power

	mu      sync.Mutex
	paused  chan struct{} // closed when the agent continues; nil while it runs
	resumed time.Time     // the end of the last pause
}

// mounted is one mount of a volume.
type mounted struct {
	id     uint64
	volume string // external id
	access call.AccessMode
	writes bool
	boot   int
}

// newHost returns a host on which no agent runs.
func newHost(w *world, number int) *host {
	return &host{
		w: w, number: number, name: fmt.Sprintf("h%d", number), controller: number%4 != 3, box: w.boxes[number],
		disk: image{volumes: map[string]volume.Record{}}, boots: 1, mounts: map[string]mounted{},
	}
}

// nodeID returns the CSI node id of the host.
func (h *host) nodeID() string { return "node-" + h.name }

// boot returns the boot id of the host.
func (h *host) boot() string { return fmt.Sprintf("%s-boot-%d", h.name, h.booted()) }

// booted returns how often the host has booted.
func (h *host) booted() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.boots
}

// agent is one process of volagent on a host.
type agent struct {
	h    *host
	dead chan struct{} // closed when the process ends
	ctx  context.Context
	stop context.CancelFunc

	link    *link
	records *records
	holds   *hold.Service
	tasks   *task.Service
	cleaner *clean.Cleaner
	fencer  *fence.Fencer
	queue   *reconcile.Queue
	claims  *claim.Service
	drainer *drain.Service
	moves   *move.Service
	running sync.WaitGroup
}

// gone reports whether the process of the agent has ended.
func (a *agent) gone() bool {
	select {
	case <-a.dead:
		return true
	default:
		return false
	}
}

// gate waits while the process of the agent is paused. It reports whether it was paused.
func (a *agent) gate() (late bool) {
	for {
		a.h.mu.Lock()
		paused := a.h.paused
		a.h.mu.Unlock()
		if paused == nil {
			return late
		}
		late = true
		select {
		case <-paused:
		case <-a.dead:
			return late
		}
	}
}

// start starts an agent, as the host does after a boot or after the end of the last agent. It does nothing
// if an agent runs.
func (h *host) start() {
	h.power.Lock()
	defer h.power.Unlock()
	if h.agent.Load() != nil {
		return
	}

	after := volume.Crashed
	rebooted := h.disk.boot != h.booted() && h.disk.boot != 0
	switch {
	case rebooted && h.disk.clean:
		after = volume.Shut
	case rebooted:
		after = volume.Rebooted
	case h.disk.clean:
		after = volume.Stopped
	}

	a := &agent{h: h, dead: make(chan struct{})}
	a.ctx, a.stop = context.WithCancel(context.Background())
	a.link = &link{a: a, inner: h.w.server.Open(prefix)}
	a.records = newRecords(a, after)
	a.connect(after)
	h.agent.Store(a)
	h.w.note(h.name, "", "the agent starts (%d) in boot %d", after, h.booted())
	a.running.Go(func() { a.holds.Run(a.ctx) })
	a.running.Go(func() { a.tasks.Run(a.ctx) })
	a.running.Go(func() { a.cleaner.Run(a.ctx) })
	a.running.Go(func() { a.moves.Run(a.ctx) })
	a.queue.Start()
}

// connect creates the services of the agent, as package agent does.
func (a *agent) connect(after volume.Stop) {
	h, log := a.h, a.logger()
	a.holds = hold.New(hold.Options{
		Store: a.link, Endpoints: func() string { return "the simulation" }, Node: h.name, Boot: h.boot(), Machine: shared.Machine{ID: "machine-" + h.name},
		DataDir: h.name, Records: a.records, Host: steps{a}, StagingPath: a.StagingPath, Wake: func(id string) { a.queue.Wake(id) },
		Reachable: func() { a.cleaner.Wake() }, Uses: func(string, string) string { return "" }, Info: a.info,
		AwaitPlugin: func(context.Context, string) error { return nil }, Status: func() shared.Status { return shared.Status{} },
		Concerned: func(string) bool { return false }, Draining: a.records.Draining, Admitted: func(time.Duration) { h.w.count("admission") },
		Events: a.events, Log: log,
	})
	noSecrets := func(volume.Volume) (call.Secrets, error) { return nil, nil }
	local := func(v volume.Volume, k call.Method) (call.Caller, error) {
		if h.view(v.PluginID).LacksController() {
			return nil, noAnswer(k, volume.CodeUnavailable)
		}
		return controller{a}, nil
	}
	a.tasks = task.New(task.Options{
		Store: a.link, Node: h.name, Asker: a.holds.Asker, View: h.view, Plugin: local, Secrets: noSecrets, Box: h.box,
		PeersChanged: a.wakeAll, Overtaken: func(id, node, nodeID string, wait time.Duration) { a.cleaner.Overtaken(id, node, nodeID, wait) },
		Detached: func(ctx context.Context, v volume.Volume, nodeID string) error {
			return a.fencer.Unlisted(ctx, v, nodeID)
		},
		Log: log,
	})
	a.fencer = fence.New(fence.Options{
		Store: a.link, Node: h.name, Detacher: a.tasks.Detacher,
		Published: func(ctx context.Context, v volume.Volume) ([]string, bool, error) { return a.cleaner.Published(ctx, v) },
		Hooks:     hooks{a}, Wake: func() { a.cleaner.Wake() }, Events: a.events, Log: log,
	})
	a.cleaner = clean.New(clean.Options{
		Store: a.link, Node: h.name, Asker: a.holds.Asker, View: h.view, Plugin: local, Secrets: noSecrets, Fencer: a.fencer, Log: log,
	})
	a.queue = reconcile.New(reconcile.Options{
		Store: a.records, Plugins: views{h}, Host: a.holds.Steps(), Cluster: a.holds.Cluster, Idle: a.holds.Idle, Borrow: a.tasks.Borrow,
		Events: func(evs []volume.Event) { a.events(evs...) }, Crashed: after == volume.Crashed, Log: hclog.NewNullLogger(),
	})
	a.claims = &claim.Service{
		Store: a.records, Queue: a.queue, Plugins: views{h}, Paths: a, Fetch: a.holds.Fetch, Leaving: func(id string) string { return a.moves.Leaving(id) },
		Events: claim.EventSink(a.events),
	}
	a.drainer = &drain.Service{
		Store: a.records, Claims: a.claims, Queue: a.queue, Owners: noOwners{}, Events: a.events, Changed: a.holds.DrainChanged,
	}
	a.moves = move.New(move.Options{
		Store: a.link, Node: h.name, Asker: a.holds.Asker, Lease: a.holds.Lease, Accepts: a.accepts, Draining: a.records.Draining,
		Freed: func(string) {}, Release: a.drainer.Release, Events: a.events, Log: log, Answer: answerWithin, Reserve: reserveFor,
	})
}

// views reports the state of the plugins of a host.
type views struct{ h *host }

// View returns the state of a plugin.
func (v views) View(id string) plugin.View { return v.h.view(id) }

// Changed returns a channel that is never closed, because the plugins do not change.
func (views) Changed(string) <-chan struct{} { return nil }

// info describes the plugins of the host to the other hosts.
func (a *agent) info() shared.NodeInfo {
	info := shared.NodeInfo{Version: "1", Schema: shared.Schema, Plugins: map[string]shared.NodePlugin{}, Key: a.h.box.public, Hooks: hooks{}.Names()}
	for _, d := range drivers {
		v := a.h.view(d.id)
		info.Plugins[d.id] = shared.NodePlugin{
			Driver: v.Info.Driver, Version: v.Info.Version, NodeID: v.Info.NodeID, Controller: v.Info.HasController, Caps: v.Info.Caps,
			ControllerTimeout: v.ControllerTimeout, Fence: v.Fence,
		}
	}
	return info
}

// events remembers the events of an agent.
func (a *agent) events(evs ...volume.Event) {
	for _, e := range evs {
		a.h.w.note(a.h.name, e.Volume, "event %s %s %s", e.Type, e.Alloc, e.Message)
		a.holds.StatusChanged()
	}
}

// wakeAll makes the queue look at all volumes again.
func (a *agent) wakeAll() {
	for _, r := range a.records.Volumes() {
		a.queue.Wake(r.Volume.ID)
	}
}

// StagingPath returns the path at which a volume is staged.
func (a *agent) StagingPath(_, id string) string { return "/staging/" + id }

// TargetPath returns the path at which a volume is published.
func (a *agent) TargetPath(_, alloc, id string, _ bool) string { return "/target/" + alloc + "/" + id }

// logger returns a log whose lines become events of the run.
func (a *agent) logger() hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Output: logLines{a}, Level: hclog.Warn, DisableTime: true})
}

// logLines writes a log into the events of the run.
type logLines struct{ a *agent }

func (l logLines) Write(p []byte) (int, error) {
	l.a.h.w.note(l.a.h.name, l.a.h.w.named(string(p)), "log %s", trimLine(string(p)))
	return len(p), nil
}

// kill ends the process of the agent at once. Its calls continue at the plugins.
func (h *host) kill() {
	a := h.agent.Swap(nil)
	if a == nil {
		return
	}
	a.end()
	h.w.san.mu.Lock()
	h.w.san.orphaned(a)
	h.w.san.mu.Unlock()
	h.resume()
}

// end ends the process: it changes nothing from now on.
func (a *agent) end() {
	a.records.mu.Lock()
	close(a.dead)
	a.records.mu.Unlock()
	a.stop()
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	a.running.Go(func() {
		a.queue.Stop(gone)
		_ = a.link.Close()
	})
}

// stopInOrder stops the agent as an upgrade does.
func (h *host) stopInOrder() {
	a := h.agent.Swap(nil)
	if a == nil {
		return
	}
	within, cancel := context.WithTimeout(context.Background(), controllerDeadline*2)
	defer cancel()
	stopped := a.queue.Stop(within)
	if err := a.holds.Leave(within); err != nil {
		h.w.note(h.name, "", "cannot tell the cluster that the agent stops: %v", err)
	}
	if stopped && !a.gone() {
		a.records.stopped()
	}
	a.end()
	h.w.san.mu.Lock()
	h.w.san.orphaned(a)
	h.w.san.mu.Unlock()
}

// die takes the power from the host: all processes and mounts end at once.
func (h *host) die() {
	h.power.Lock()
	defer h.power.Unlock()
	h.kill()
	h.w.san.mu.Lock()
	clear(h.mounts)
	h.w.san.mu.Unlock()
	h.mu.Lock()
	h.boots++
	h.mu.Unlock()
}

// image returns a copy of the records on the disk, as a snapshot of the host's disk contains it.
func (h *host) image() image {
	if a := h.agent.Load(); a != nil {
		a.records.mu.Lock()
		defer a.records.mu.Unlock()
	}
	return h.disk
}

// pause stops the process of the agent, as SIGSTOP does.
func (h *host) pause() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.paused == nil {
		h.paused = make(chan struct{})
	}
}

// resume continues the process of the agent.
func (h *host) resume() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.paused != nil {
		close(h.paused)
		h.paused, h.resumed = nil, time.Now()
	}
}

// lateFor is how long after the end of a pause a call may rest on a decision from before the pause.
const lateFor = 3 * time.Second

// resumedLately reports whether the agent was paused a short time ago.
func (h *host) resumedLately() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.resumed.IsZero() && time.Since(h.resumed) < lateFor
}

// hooks are the fence hooks of a host. They switch other hosts off.
type hooks struct{ a *agent }

// Names implements fence.Hooks.
func (hooks) Names() []string { return []string{"power"} }

// Off switches a host off, and starts it again later. It may fail while calls of plugins go wrong.
func (k hooks) Off(ctx context.Context, name string, _ shared.Machine) (string, error) {
	w := k.a.h.w
	r := w.draw("hook " + name)
	k.a.gate()
	select {
	case <-time.After(200*time.Millisecond + time.Duration(r.Int64N(int64(3*time.Second)))):
	case <-ctx.Done():
		return "", ctx.Err()
	case <-k.a.dead:
		return "", errDead
	}
	if r.Float64() < w.troubles().calls {
		return "", errors.New("the power switch does not answer")
	}

	h := w.hostOf(name)
	w.count("host switched off by a hook")
	w.note(name, "", "a hook of %s switches the host off", k.a.h.name)
	h.die()
	w.mu.Lock()
	w.lastOff = time.Now()
	w.mu.Unlock()
	time.AfterFunc(time.Second+time.Duration(r.Int64N(int64(10*time.Second))), func() {
		if !w.ended.Load() {
			h.start()
		}
	})
	k.a.gate()
	return "power", nil
}
