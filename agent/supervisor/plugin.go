package supervisor

import (
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/supervisor/definitions"
	"github.com/volagent/volagent/agent/supervisor/part"
	"github.com/volagent/volagent/agent/supervisor/pluginlog"
	"github.com/volagent/volagent/agent/supervisor/runner"
	"github.com/volagent/volagent/volmgr/csiclient"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/suggest"
)

// supervised is one part of a plugin; see package part. Most plugins have only one part. One
// goroutine drives the part; its code is in worker.go. Other goroutines only read the part, or
// change its desired state and wake the part's goroutine.
type supervised struct {
	*env
	siblings siblings

	id     string // the plugin's id
	slot   string // the key of the part; see package part
	m      *part.Machine
	logger hclog.Logger
	paths  part.Paths
	output *pluginlog.Copy // the log into which the output of the part's containers is copied
	record *record
	mask   *mask
	wake   chan struct{} // contains a value if the desired state may have changed
	over   chan struct{} // closed when the part's goroutine has ended

	mu      sync.Mutex
	desired part.Desired
	actual  part.Actual   // except Info, which is in the record
	run     runner.Runner // runs the definition in use; nil if there is none
	traits  runner.Traits // the traits of run; the zero value if run is nil
	client  *csiclient.Client
	quiet   bool // no new call may start, because the part is about to be stopped
	// how many requests are checking whether the part may stop; while there are any, no new call
	// may start
	asking int
	limits bool // the node part must report its limits again
}

// siblings gives a part access to the parts of all plugins.
type siblings interface {
	// of returns the parts of a plugin.
	of(id string) []*supervised
	// notify reports that the state of a part has changed. It also wakes the plugin's other parts,
	// because a changed file of another part may be waiting for this part.
	notify(p *supervised)
	// remove removes a part whose file was removed. It returns false if the file exists again. In
	// that case, the part stays.
	remove(p *supervised) bool
	// bind compares a driver with the drivers of the plugin's parts. If a part has a different
	// driver, bind returns this driver and the name of the part. Otherwise it records the driver
	// for the part p, and returns an empty driver.
	bind(p *supervised, driver string) (was, who string)
}

// newPlugin makes a part from the definition in its file and from its stored record. If the part
// was in use, it keeps its stored definition until a changed definition may come into force.
func newPlugin(e *env, group siblings, slot string, w definitions.Want, rec plugin.Record) *supervised {
	paths := e.dirs.Paths(w.ID, slot)
	p := &supervised{
		env: e, siblings: group, id: w.ID, slot: slot, logger: e.log.With("plugin", slot),
		paths: paths, output: pluginlog.NewCopy(paths.Log), record: newRecord(e.opts.Store, w.ID, slot, rec), mask: &mask{},
		wake: make(chan struct{}, 1), over: make(chan struct{}),
	}

	p.m = part.NewMachine(p.changed)
	p.define(rec.Definition)
	if rec.Stopped {
		p.desired.Wish = part.Stop
		p.m.Note(onRequest(p.id))
	}

	p.propose(w)
	return p
}

// propose stores the definition that the files now contain as the desired one. A zero Want means
// that the file was removed.
func (p *supervised) propose(w definitions.Want) {
	p.mu.Lock()
	if w.Err != nil && p.actual.Definition != nil {
		p.logger.Warn("cannot use the plugin's file", "error", w.Err)
	}

	if p.desired.Propose(w.Definition, w.File, w.Err, p.actual.Definition) {
		p.define(w.Definition)
	}

	p.mu.Unlock()
	p.poke()
}

// define puts a definition into force. The caller holds p.mu.
func (p *supervised) define(def *plugin.Definition) {
	if def != nil && !def.Equal(p.actual.Definition) {
		p.run = newRunner(p, def)
		p.traits = p.run.Traits()
	}
	p.actual.Definition = def
}

// change calls the given function to modify the desired state, and wakes the worker.
func (p *supervised) change(change func(*part.Desired)) {
	p.mu.Lock()
	change(&p.desired)
	p.mu.Unlock()
	p.poke()
}

// setForce decides whether the next change of the definition waits for staged volumes.
//
// setForce does not wake the worker. The caller then proposes the next change, which wakes the
// worker. If the worker ran before that, it could use the force for an older pending change, and
// the next change would wait for volumes.
func (p *supervised) setForce(force bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.desired.Force = force
}

// poke wakes the worker, which then reads the desired state again.
func (p *supervised) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// changed logs a change of the state and notifies the waiting callers. The log level is Debug,
// because users read about the change in the events, in which repetitions are suppressed.
func (p *supervised) changed(from part.State, now part.Status) {
	p.logger.Debug("plugin is "+string(now.State), "was", from, "reason", now.Reason, "restarts", now.Restarts)
	p.siblings.notify(p)
}

// must logs an event that the state machine rejected. Such an event is a bug of the agent.
func (p *supervised) must(err error) {
	if err != nil {
		p.logger.Error("impossible change of a plugin's state", "error", err)
	}
}

// next returns the next step of the part. The argument use states whether volumes use the part.
func (p *supervised) next(use part.Use) part.Step {
	p.mu.Lock()
	defer p.mu.Unlock()
	return part.Next(p.desired, p.actual, p.ends.Load() != nil, use)
}

// due reports whether the worker must interrupt its work, because the host shuts down or the part
// must switch to another definition or wish. If due returns true because no volume is in use, new
// calls stay blocked until the switch is complete.
func (p *supervised) due() bool {
	switch p.next(part.Unknown) {
	case part.End, part.Switch:
		return true
	case part.Ask:
	default:
		return false
	}

	if len(p.needed()) > 0 {
		return false
	}

	// A volume may just have started to use the plugin, so check again while new calls are blocked.
	if !p.shut() {
		// During this check, new calls were blocked. This notification wakes callers that now wait.
		p.siblings.notify(p)
		return false
	}

	return true
}

// shut blocks new calls if no volume needs the part. It reports whether it has blocked them. A lock
// ensures that only one part at a time decides this. Otherwise two controllers could both stop,
// because each relies on the other.
func (p *supervised) shut() bool {
	p.doors.Lock()
	defer p.doors.Unlock()

	p.setQuiet(true)
	if len(p.needed()) == 0 {
		return true
	}

	p.setQuiet(false)
	return false
}

func (p *supervised) setQuiet(quiet bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.quiet = quiet
}

// needed returns the ids of the volumes for which the part must keep running. The process of a node
// part may provide the mounts of its volumes. A controller provides no mounts, so the volumes need
// a controller only while no other controller is ready.
func (p *supervised) needed() []string {
	ids := p.inUse(p.id)
	if len(ids) == 0 || p.look().Kind != part.Controller {
		return ids
	}

	for _, other := range p.siblings.of(p.id) {
		if g := other.look(); other != p && g.View.Ready && g.Serves(part.Controller) {
			return nil
		}
	}

	return ids
}

// holds reports whether the process of the part may provide mounts.
func (p *supervised) holds() bool {
	return p.look().Kind != part.Controller && len(p.inUse(p.id)) > 0
}

// look returns a snapshot of the part's state.
func (p *supervised) look() part.Glance {
	p.mu.Lock()
	defer p.mu.Unlock()

	g := part.Glance{
		ID: p.id, Slot: p.slot, Client: p.client, Quiet: p.quiet, Desired: p.desired, Actual: p.actual,
		// must be read under p.mu, so that all fields describe the same moment
		Status: p.m.Snapshot(),
	}
	g.Info = p.record.get().Info
	g.Look(!p.quiet && p.asking == 0, !p.traits.Owned)
	return g
}

// onRequest returns the reason that the status shows for a plugin that was stopped by an operator.
func onRequest(id string) string {
	return "on request; to start it: " + suggest.Command("volctl plugin start %s", id)
}

// waits reports whether the part has a changed definition that is not in force yet.
func (p *supervised) waits() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.desired.Change != nil
}

// take clears a flag and reports whether it was set.
func (p *supervised) take(flag *bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	was := *flag
	*flag = false
	return was
}

// runner returns the runner of the definition in use, or nil if there is no definition.
func (p *supervised) runner() runner.Runner {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.run
}

// definition returns the definition in use. It also returns the reason why the plugin's file cannot
// be used, or nil.
func (p *supervised) definition() (*plugin.Definition, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.actual.Definition, p.desired.Fault
}

// runs records which instance is running, or that none is running if inst is nil. It reports
// whether inst differs from the previous instance.
func (p *supervised) runs(inst runner.Instance) (another bool) {
	p.mu.Lock()
	defer p.mu.Unlock()

	a := &p.actual
	a.PID, a.Up = 0, inst != nil
	if inst == nil {
		a.Warnings = nil
		return false
	}

	a.PID = inst.PID()
	key := inst.Key()
	if key == a.Key {
		return false
	}

	another = a.Key != ""
	a.Key = key
	a.Incarnation = p.incarnations.Add(1)
	return another
}

// renew gives the running instance a new incarnation number.
func (p *supervised) renew() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.actual.Incarnation = p.incarnations.Add(1)
}

// use sets the client that callers get, and returns the previous client.
func (p *supervised) use(client *csiclient.Client) *csiclient.Client {
	p.mu.Lock()
	defer p.mu.Unlock()

	before := p.client
	p.client = client
	return before
}
