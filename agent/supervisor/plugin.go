package supervisor

import (
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/supervisor/definitions"
	"github.com/volagent/volagent/agent/supervisor/part"
	"github.com/volagent/volagent/agent/supervisor/pluginlog"
	"github.com/volagent/volagent/agent/supervisor/runner"
	"github.com/volagent/volagent/volmgr/csiclient"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// plugin is one supervised part of a plugin; see package part. Few plugins have more than one part.
// One goroutine, in worker.go, drives it. Other goroutines only read the part, or change its desired
// state and wake that goroutine.
type plugin struct {
	*env
	siblings siblings

	id     string // the plugin's id
	slot   string // the part's key
	m      *part.Machine
	logger hclog.Logger
	paths  part.Paths
	output *pluginlog.Copy // the log of its containers
	record *record
	mask   *mask
	wake   chan struct{} // holds one token: the desired state may have changed
	over   chan struct{} // closed when its goroutine has ended

	mu      sync.Mutex
	desired part.Desired
	actual  part.Actual   // without Info, which is in the record
	run     runner.Runner // of the definition in use; nil if there is none
	traits  runner.Traits // of run; the zero value if there is none
	client  *csiclient.Client
	quiet   bool // no new call may start: the plugin is about to be stopped
	asking  int  // requests that are checking whether the plugin may be stopped; each blocks new calls
	limits  bool // ask the node for its limits again
}

// siblings are the parts of all plugins, as one part sees them.
type siblings interface {
	// of returns the parts of a plugin.
	of(id string) []*plugin
	// notify reports a change of a part's state. It also wakes other parts of the same plugin: a
	// change of their files may have waited for this one.
	notify(p *plugin)
	// remove forgets a part whose file was removed. It returns false if the file is back.
	remove(p *plugin) bool
	// bind returns the driver that a part conflicts with, and the name of the other part that has this
	// driver. It returns an empty driver if there is no conflict, and then records driver for the part.
	bind(p *plugin, driver string) (was, who string)
}

// newPlugin makes a part from the definition that its file asks for and from its record. A part that
// was in use keeps its stored definition until a change may be applied.
func newPlugin(e *env, group siblings, slot string, w definitions.Want, rec volume.PluginRecord) *plugin {
	paths := e.dirs.Paths(w.ID, slot)
	p := &plugin{
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

// propose takes over the definition that the files now contain. The zero Want means that the file
// was removed.
func (p *plugin) propose(w definitions.Want) {
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
func (p *plugin) define(def *volume.PluginDefinition) {
	if def != nil && !def.Equal(p.actual.Definition) {
		p.run = newRunner(p, def)
		p.traits = p.run.Traits()
	}
	p.actual.Definition = def
}

// change changes the desired state, and wakes the worker.
func (p *plugin) change(change func(*part.Desired)) {
	p.mu.Lock()
	change(&p.desired)
	p.mu.Unlock()
	p.poke()
}

// poke wakes the worker, which then reads the desired state again.
func (p *plugin) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// changed is called after every change of state. People read about it in the events, which suppress
// repetitions.
func (p *plugin) changed(from part.State, now part.Status) {
	p.logger.Debug("plugin is "+string(now.State), "was", from, "reason", now.Reason, "restarts", now.Restarts)
	p.siblings.notify(p)
}

// must logs an event that the state machine refused, which is a bug of the agent.
func (p *plugin) must(err error) {
	if err != nil {
		p.logger.Error("impossible change of a plugin's state", "error", err)
	}
}

// next returns the next step, as far as it is known.
func (p *plugin) next(use part.Use) part.Step {
	p.mu.Lock()
	defer p.mu.Unlock()
	return part.Next(p.desired, p.actual, p.ends.Load() != nil, use)
}

// due reports whether the worker must interrupt its work: the host shuts down, or the part must
// switch. If due returns true because no volume is in use, no new call starts until the change is in
// force.
func (p *plugin) due() bool {
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

	// Asked again while new calls are blocked: a volume may have just started to use the plugin.
	if !p.shut() {
		p.siblings.notify(p) // a waiter may have seen the plugin blocked
		return false
	}

	return true
}

// shut blocks new calls if no volume is in use then, and reports whether it did. Only one part does
// this at a time, so that two controllers cannot rely on each other.
func (p *plugin) shut() bool {
	p.doors.Lock()
	defer p.doors.Unlock()

	p.setQuiet(true)
	if len(p.needed()) == 0 {
		return true
	}

	p.setQuiet(false)
	return false
}

func (p *plugin) setQuiet(quiet bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.quiet = quiet
}

// needed names the volumes that prevent a stop of the part. Mounts may live in the process of a part
// that serves the node. A controller holds no mounts: volumes need it only while no other
// controller is ready.
func (p *plugin) needed() []string {
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

// holds reports whether mounts may live in the part's process.
func (p *plugin) holds() bool {
	return p.look().Kind != part.Controller && len(p.inUse(p.id)) > 0
}

// look returns the state of the part at this moment.
func (p *plugin) look() part.Glance {
	p.mu.Lock()
	defer p.mu.Unlock()

	g := part.Glance{
		ID: p.id, Slot: p.slot, Client: p.client, Quiet: p.quiet, Desired: p.desired, Actual: p.actual,
		Status: p.m.Snapshot(), // with p.mu held, so that all values are of one moment
	}
	g.Info = p.record.get().Info
	g.Look(!p.quiet && p.asking == 0, !p.traits.Owned)
	return g
}

// onRequest returns the reason that the status shows for a plugin that was stopped on purpose.
func onRequest(id string) string {
	return "on request; to start it: " + suggest.Command("volctl plugin start %s", id)
}

// waits reports whether a changed definition has not been applied yet.
func (p *plugin) waits() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.desired.Change != nil
}

// take clears a flag and reports whether it was set.
func (p *plugin) take(flag *bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	was := *flag
	*flag = false
	return was
}

// runner returns the runner of the definition in use; nil if there is none.
func (p *plugin) runner() runner.Runner {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.run
}

// definition returns the definition in use and the fault of the plugin's file.
func (p *plugin) definition() (*volume.PluginDefinition, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.actual.Definition, p.desired.Fault
}

// runs publishes the instance that runs, nil for none. It reports whether inst differs from the
// last one.
func (p *plugin) runs(inst runner.Instance) (another bool) {
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
func (p *plugin) renew() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.actual.Incarnation = p.incarnations.Add(1)
}

// use publishes the client to callers, and returns the previous client.
func (p *plugin) use(client *csiclient.Client) *csiclient.Client {
	p.mu.Lock()
	defer p.mu.Unlock()

	before := p.client
	p.client = client
	return before
}
