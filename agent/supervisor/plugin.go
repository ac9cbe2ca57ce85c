package supervisor

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/supervisor/part"
	"github.com/volagent/volagent/agent/supervisor/pluginlog"
	"github.com/volagent/volagent/agent/supervisor/runner"
	"github.com/volagent/volagent/volmgr/csiclient"
	"github.com/volagent/volagent/volmgr/volume"
)

// plugin is one supervised part of a plugin; see part.go. Few plugins have more than one part. One
// goroutine, in worker.go, drives it. Other goroutines only read the part, or change its wanted
// state and wake that goroutine.
type plugin struct {
	s      *Supervisor
	id     string // the plugin's id
	slot   string // the part's key: the plugin's id, or a key of its own for a controller beside others
	m      *machine
	logger hclog.Logger
	scrub  *csiclient.Scrubber
	learn  sync.Once     // fills scrub with the secrets that earlier agents gave the plugin
	wake   chan struct{} // holds one token: the wanted state may have changed
	over   chan struct{} // closed when its goroutine has ended
	turn   chan struct{} // holds one token, held while the record is stored

	output *pluginlog.Copy // the log of its containers
	paths  part.Paths

	mu sync.Mutex
	// The wanted state.
	def     *volume.PluginDefinition // in use; nil if the plugin never had a valid file
	run     runner.Runner            // of def
	traits  runner.Traits            // of run; the zero value if there is none
	next    *change                  // a change that has not been applied yet
	fault   error                    // why the file cannot be read
	file    string                   // the file's name, for messages
	restart bool                     // a restart was requested
	halt    bool                     // the plugin must stop, and stay stopped
	paused  bool                     // halt ends with this agent
	kick    bool                     // try again now, even after a failure
	limits  bool                     // ask the node for its limits again
	force   bool                     // apply next without waiting for volumes
	// The actual state.
	rec         volume.PluginRecord
	stored      []byte // rec as it was last stored
	client      *csiclient.Client
	key         string // key of the instance that incarnation numbers
	incarnation uint64
	pid         int
	up          bool // an instance runs
	lastExit    string
	quiet       bool     // no new call may start: the plugin is about to be stopped
	asking      int      // requests that are checking whether the plugin may be stopped; each blocks new calls
	halted      bool     // the plugin was stopped on purpose, and no instance runs
	untidy      bool     // the warning that its log cannot be trimmed was logged
	warnings    []string // about the instance that runs
	warned      []string // all warnings that were passed on
}

// change is a definition that is not in use yet. A nil def means that the file was removed or the
// plugin deregistered.
type change struct{ def *volume.PluginDefinition }

// newPlugin makes a plugin from the definition in its file and from its record. A plugin that was
// in use keeps its stored definition until a change may be applied.
func (s *Supervisor) newPlugin(slot string, w want, rec volume.PluginRecord) *plugin {
	p := &plugin{
		s: s, id: w.id, slot: slot, logger: s.log.With("plugin", slot), scrub: &csiclient.Scrubber{},
		wake: make(chan struct{}, 1), over: make(chan struct{}), turn: make(chan struct{}, 1), rec: rec,
	}

	p.paths = s.opts.dirs().Paths(p.id, slot)
	p.output = pluginlog.NewCopy(p.paths.Log)
	p.m = newMachine(p.changed)
	p.define(rec.Definition)
	p.halt = rec.Stopped
	if rec.ID != "" {
		p.stored, _ = json.Marshal(rec) // if this fails, the record is stored once more than necessary
	}

	if p.rec.ID = slot; slot != p.id {
		p.rec.Plugin = p.id
	}

	if p.halt {
		p.m.note(p.onRequest())
	}

	p.propose(w)
	return p
}

// propose takes over the definition that the files now contain. The zero want means that the file
// was removed.
func (p *plugin) propose(w want) {
	p.mu.Lock()
	p.fault, p.file, p.next = w.err, w.file, nil
	switch {
	case w.err != nil && p.def != nil: // the definition in use stays in use
		p.logger.Warn("cannot use the plugin's file", "error", w.err)
	case w.err != nil: // the state reports the fault
	case w.def != nil && (p.def == nil || w.def.Equal(p.def)):
		p.define(w.def)
	default:
		p.next = &change{def: w.def}
	}

	p.force = p.force && p.next != nil
	p.kick = true
	p.mu.Unlock()

	p.poke()
}

// define puts a definition into force. The caller holds p.mu.
func (p *plugin) define(def *volume.PluginDefinition) {
	if def != nil && !def.Equal(p.def) {
		p.run = p.runnerFor(def)
		p.traits = p.run.Traits()
	}
	p.def = def
}

// runner returns the runner of the definition in use; nil if there is none.
func (p *plugin) runner() runner.Runner {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.run
}

// onRequest returns the reason that the status shows for a plugin that was stopped on purpose.
func (p *plugin) onRequest() string {
	return "on request; to start it: " + volume.Command("volctl plugin start %s", p.id)
}

// poke wakes the worker, which then reads the wanted state again.
func (p *plugin) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// changed is called after every change of state. People read about it in the events, which suppress
// repetitions.
func (p *plugin) changed(from State, now status) {
	p.logger.Debug("plugin is "+string(now.state), "was", from, "reason", now.reason, "restarts", now.restarts)
	p.s.notify(p)
}

// must logs an event that the state machine refused, which is a bug of the agent.
func (p *plugin) must(err error) {
	if err != nil {
		p.logger.Error("impossible change of a plugin's state", "error", err)
	}
}

// due reports whether the worker must interrupt its work: a restart, a stop or a removal was
// requested, the host shuts down, or a changed definition may be applied. If due returns true
// because no volume is in use, no new call starts until the change is in force.
func (p *plugin) due() bool {
	p.mu.Lock()
	asked, next, nothing := p.restart || p.halt != p.halted, p.next, p.def == nil || p.force
	p.mu.Unlock()

	switch {
	case asked, p.s.ends.Load() != nil:
		return true
	case next == nil:
		return false
	case nothing: // there is no definition in use, or the request is forced
		return true
	case next.def != nil && next.def.OnChange == volume.OnChangeRestart:
		return true
	case len(p.inUse()) > 0:
		return false
	}

	// Asked again while new calls are blocked: a volume may have just started to use the plugin.
	if !p.shut() {
		p.s.notify(p) // a waiter may have seen the plugin blocked
		return false
	}

	return true
}

// waits reports whether a changed definition has not been applied yet.
func (p *plugin) waits() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.next != nil
}

// running reports whether the instance with this incarnation number still runs.
func (p *plugin) running(incarnation uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.up && p.incarnation == incarnation
}

func (p *plugin) setQuiet(quiet bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.quiet = quiet
}

// take clears a flag and reports whether it was set.
func (p *plugin) take(flag *bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	was := *flag
	*flag = false
	return was
}

// definition returns the definition in use and the fault of the plugin's file.
func (p *plugin) definition() (*volume.PluginDefinition, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.def, p.fault
}

// record returns a copy of the part's record.
func (p *plugin) record() volume.PluginRecord {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rec
}

// save changes the record, and stores it if it differs from the stored one.
func (p *plugin) save(ctx context.Context, edit func(*volume.PluginRecord)) error {
	p.turn <- struct{}{} // so that an earlier record is never stored after a later one
	defer func() { <-p.turn }()

	p.mu.Lock()
	edit(&p.rec)
	rec, stored := p.rec, p.stored
	p.mu.Unlock()

	data, err := json.Marshal(rec)
	if err != nil {
		return fmt.Errorf("cannot encode the plugin's record: %w", err)
	}
	if string(data) == string(stored) {
		return nil
	}
	if err := p.s.opts.Store.SavePlugin(ctx, rec); err != nil {
		return err
	}

	p.mu.Lock()
	p.stored = data
	p.mu.Unlock()

	return nil
}

// runs publishes the instance that runs, nil for none. It reports whether inst differs from the
// last one.
func (p *plugin) runs(inst runner.Instance) (another bool) {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.pid, p.up = 0, inst != nil
	if inst == nil {
		p.warnings = nil
		return false
	}

	p.pid = inst.PID()
	key := inst.Key()
	if key == p.key {
		return false
	}

	another = p.key != ""
	p.key = key
	p.incarnation = p.s.incarnations.Add(1)
	return another
}

// renew gives the running instance a new incarnation number.
func (p *plugin) renew() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.incarnation = p.s.incarnations.Add(1)
}

// use publishes the client to callers, and returns the previous client.
func (p *plugin) use(client *csiclient.Client) *csiclient.Client {
	p.mu.Lock()
	defer p.mu.Unlock()

	before := p.client
	p.client = client
	return before
}
