package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/volmgr/csiclient"
	"github.com/volagent/volagent/volmgr/volume"
)

// plugin is one supervised part of a plugin, which few have more than one of;
// see part.go. One goroutine, in worker.go, drives it; everybody else reads, or
// changes what is wanted and wakes that goroutine.
type plugin struct {
	s     *Supervisor
	id    string // the plugin's
	slot  string // the part's own: the id, unless it is a controller beside others
	m     *machine
	log   hclog.Logger
	scrub *csiclient.Scrubber
	learn sync.Once     // fills scrub with what the plugin was given before this agent
	wake  chan struct{} // holds one token: look again at what is wanted
	over  chan struct{} // closed when its goroutine has ended
	logs  logCopier     // of a container
	turn  chan struct{} // holds one token: of who stores the record

	journal journal // of the unit that runs it

	mu sync.Mutex
	// What is wanted.
	def     *volume.PluginDefinition // in use; nil if its file never was any good
	next    *change                  // waits to come into use
	fault   error                    // why the file cannot be read
	file    string                   // that is meant
	restart bool                     // somebody asked for it
	halt    bool                     // it is to be stopped, and to stay so
	paused  bool                     // until this agent ends
	kick    bool                     // try again now, whatever failed
	limits  bool                     // ask the node for its limits again
	force   bool                     // what waits to come into use does not wait for volumes
	// What is.
	rec         volume.PluginRecord
	stored      []byte // rec as it was last stored
	client      *csiclient.Client
	key         string // of the instance that incarnation counts
	incarnation uint64
	pid         int
	up          bool // something runs
	lastExit    string
	quiet       bool     // no new call may start: it is about to be stopped
	asking      int      // requests that decide whether it may be stopped; no new call starts meanwhile
	halted      bool     // it was stopped on purpose, and nothing of it runs
	swept       bool     // its container was just removed: there is none
	untidy      bool     // that its log cannot be trimmed was said
	warnings    []string // about what runs
	warned      []string // all that were told
}

// change is a definition that is not in use yet; nil stands for none, because
// the file was removed or the plugin deregistered.
type change struct{ def *volume.PluginDefinition }

// newPlugin makes a plugin from what its file asks for and what is remembered
// of it. A plugin that was in use goes on as it was until a change may be
// applied.
func (s *Supervisor) newPlugin(slot string, w want, rec volume.PluginRecord) *plugin {
	p := &plugin{
		s: s, id: w.id, slot: slot, log: s.log.With("plugin", slot), scrub: &csiclient.Scrubber{},
		wake: make(chan struct{}, 1), over: make(chan struct{}), turn: make(chan struct{}, 1), rec: rec,
	}
	p.logs.init(p.paths())
	p.m = newMachine(p.changed)
	p.def, p.halt = rec.Definition, rec.Stopped
	if rec.ID != "" {
		p.stored, _ = json.Marshal(rec) // without it the record is stored once too often
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

// propose takes in what the files ask for now. The zero want is a file that
// was removed.
func (p *plugin) propose(w want) {
	p.mu.Lock()
	p.fault, p.file, p.next = w.err, w.file, nil
	switch {
	case w.err != nil && p.def != nil: // what is in use stays in use
		p.log.Warn("cannot use the plugin's file", "error", w.err)
	case w.err != nil: // the state will say so
	case w.def != nil && (p.def == nil || w.def.Equal(p.def)):
		p.def = w.def
	default:
		p.next = &change{def: w.def}
	}
	p.force = p.force && p.next != nil
	p.kick = true
	p.mu.Unlock()
	p.poke()
}

// onRequest is the reason of a plugin that was stopped on purpose.
func (p *plugin) onRequest() string {
	return "on request; to start it: " + volume.Command("volctl plugin start %s", p.id)
}

// poke makes the worker look again.
func (p *plugin) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// changed is told of every change of state. People read of it in the events, of
// which those that repeat are held back.
func (p *plugin) changed(from State, now status) {
	p.log.Debug("plugin is "+string(now.state), "was", from, "reason", now.reason, "restarts", now.restarts)
	p.s.notify(p)
}

// must reports an event that could not be, which is a mistake of ours.
func (p *plugin) must(err error) {
	if err != nil {
		p.log.Error("impossible change of a plugin's state", "error", err)
	}
}

// due says whether the worker has to leave what it is doing: a restart, a stop
// or its end was asked for, the host goes down, or a change may be applied. When it says yes because nothing is
// staged, no new call starts until the change is in force.
func (p *plugin) due() bool {
	p.mu.Lock()
	asked, next, nothing := p.restart || p.halt != p.halted, p.next, p.def == nil || p.force
	p.mu.Unlock()
	switch {
	case asked, p.s.ends.Load() != nil:
		return true
	case next == nil:
		return false
	case nothing: // to be careful of, or nobody is to be
		return true
	case next.def != nil && next.def.OnChange == volume.OnChangeRestart:
		return true
	case len(p.inUse()) > 0:
		return false
	}
	// Asked again with the door closed: a volume may just have come in.
	if !p.shut() {
		p.s.notify(p) // somebody may have seen the door closed, and wait
		return false
	}
	return true
}

// waits reports whether a change of its file waits to come into force.
func (p *plugin) waits() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.next != nil
}

// running reports whether an incarnation still runs.
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

// take clears a flag and tells whether it was set.
func (p *plugin) take(flag *bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := *flag
	*flag = false
	return was
}

// definition returns the definition in use, and the fault if there is none.
func (p *plugin) definition() (*volume.PluginDefinition, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.def, p.fault
}

// record returns what is remembered.
func (p *plugin) record() volume.PluginRecord {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rec
}

// saveProcess stores which process serves the plugin and under which
// definition.
func (p *plugin) saveProcess(ctx context.Context, it volume.PluginProcess, def *volume.PluginDefinition) error {
	return p.save(ctx, func(r *volume.PluginRecord) { r.Process, r.Definition = it, def })
}

// forgetProcess notes that there is no process after all. It is not stored:
// an intent without a process does no harm.
func (p *plugin) forgetProcess() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rec.Process = volume.PluginProcess{}
}

// save changes the record and stores it if that made a difference.
func (p *plugin) save(ctx context.Context, edit func(*volume.PluginRecord)) error {
	p.turn <- struct{}{} // a later record must not be stored before an earlier one
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

// errDue ends a wait because due said so.
var errDue = errors.New("the plugin's definition changes")

// sleep waits for a while. It ends early with ctx.Err(), or with errDue.
func (p *plugin) sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-p.wake:
			if p.due() {
				return errDue
			}
		}
	}
}

// runs publishes which instance runs, nil for none. It reports whether that is
// another one than the last.
func (p *plugin) runs(inst instance) (another bool) {
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

// renew makes another incarnation of the instance that runs.
func (p *plugin) renew() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.incarnation = p.s.incarnations.Add(1)
}

// use publishes the client to those who ask and returns the one before it.
func (p *plugin) use(client *csiclient.Client) *csiclient.Client {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.client
	p.client = client
	return before
}
