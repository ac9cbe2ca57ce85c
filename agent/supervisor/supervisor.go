// Package supervisor runs CSI plugins and keeps them running: it starts their
// processes, or watches what others run, sees them become ready, probes them,
// restarts what ends or hangs, and hands out clients.
//
// A plugin outlives the agent. It has a session and a log file of its own, and
// what names its process beyond doubt is stored before and after the fork, so
// that the next agent finds it and starts no second one. Stopping the agent
// stops no plugin.
//
//	files.go, registered.go             <plugin-dir>/*.yaml, and what was registered at run time → what is wanted
//	notice.go                           sees that these files change
//	part.go                             a plugin in several parts
//	machine.go                          the states, drawn
//	worker.go, ready.go                 one goroutine per part: start, settle, watch, end
//	canary.go                           does a plugin share the host's mounts, and network?
//	runner.go, exec.go, socket.go       ways to run a plugin
//	container.go, container_*.go        a container, its end and its log
//	unit.go                             another: a unit of systemd's
//	transient.go, launch.go, cgroup.go  where a command is put, so that the agent's end spares it
//	process.go, procfs.go               a process that need not be our child
//	view.go, lookup.go, status.go       what others ask: views, clients, status, logs
//	control.go                          what people ask for: restart, stop, start
//	ending.go                           the end of the host
package supervisor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/systemd"
	"github.com/volagent/volagent/volmgr/csiclient"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/proc"
	"github.com/volagent/volagent/volmgr/volume"
)

// Store keeps plugins' records over a restart of the agent.
type Store interface {
	// LoadPlugins returns all records.
	LoadPlugins() ([]volume.PluginRecord, error)
	// SavePlugin stores a record durably before it returns.
	SavePlugin(ctx context.Context, rec volume.PluginRecord) error
}

// SecretResolver reads the secrets that plugin files refer to.
type SecretResolver interface {
	ResolveSecret(ctx context.Context, ref volume.SecretRef) (volume.Secret, error)
}

// Options of a Supervisor.
type Options struct {
	PluginDir  string // holds *.yaml; it need not exist
	DataDir    string // plugins' states and logs, mount roots
	RuntimeDir string // plugins' sockets
	NodeID     string // ${NODE_ID}

	// BuiltinArgv runs the bundled driver; --endpoint, --node-id and
	// --state-dir are appended. Empty: there is none.
	BuiltinArgv []string

	// Systemd is the way to the host's service manager. Nil: there is none.
	Systemd *systemd.Bus
	// ServiceArgv runs Launch. With it commands are run as services of systemd's,
	// else they are forked.
	ServiceArgv []string

	Store    Store
	Registry Registry       // nil: nothing can be registered
	Secrets  SecretResolver // nil: no file may refer to a secret
	Logger   hclog.Logger   // nil: no log

	// InUse names the volumes that are staged, or about to be, through a
	// plugin. It is asked before a part of it is stopped, and must not call the
	// Supervisor. Nil: there are none, ever.
	InUse func(pluginID string) []string
	// HasVolumes reports whether there are volumes of a plugin. It must not call the
	// Supervisor. Nil: there are none.
	HasVolumes func(pluginID string) bool
	// FUSE is how many claims have a FUSE mount through a plugin, for refusals to
	// tell. It must not call the Supervisor. Nil: that is not known.
	FUSE func(pluginID string) int
	// Known returns the secrets that a plugin may have been given, by this agent or
	// one before it. It is asked once for each plugin, before any of its log is
	// shown, and must not call the Supervisor. Nil: none.
	Known func(pluginID string) []volume.Secrets
	// OnChange is called after each change of the state of a plugin's part, from
	// that part's goroutine: it must not block. Nil is fine.
	OnChange func(Change)

	// OnWarning is called, as OnChange is, with what is odd about where a plugin's
	// part lives, once for each such thing. Part is as in Change. Nil is fine.
	OnWarning func(pluginID, part, warning string)
	// Host is asked whether plugins share its mounts. Nil: that is not found out.
	Host *mount.Host

	// Client is the template of the plugins' clients; its timeouts, limit and
	// scrubber come from the plugin files.
	Client csiclient.Options
	// Observe returns what is told of the calls of a new client to a plugin; nil:
	// nobody is.
	Observe func(pluginID string) csiclient.Observer
	// Backoff is about restarts; its zero value is the default.
	Backoff Backoff
	// StopGrace is between SIGTERM and SIGKILL; 0 is 10 s.
	StopGrace time.Duration
}

// Supervisor runs the plugins of one agent.
type Supervisor struct {
	opts         Options
	log          hclog.Logger
	incarnations atomic.Uint64

	reload sync.Mutex // one Load or Reload at a time
	taken  []found    // the plugin files as they were last read; of who holds reload
	// registered are the definitions that came at run time; of who holds reload.
	registered []*volume.PluginDefinition
	look       chan struct{} // holds one token: watch what the path of the plugin files leads to now

	mu      sync.Mutex
	loaded  bool
	boot    string
	run     context.Context // of Run; nil before and after
	workers sync.WaitGroup
	plugins map[string]*plugin             // by slot
	byID    map[string][]*plugin           // the same, by plugin
	saved   map[string]volume.PluginRecord // by slot, of what has no plugin, or had when it was loaded
	waiters map[string]chan struct{}       // by plugin
	leaving map[string]chan struct{}       // by slot, closed when the last one that was removed is done
	turn    map[string]uint64              // controller calls of a plugin so far
	given   map[subjectKey]given           // that were given up

	ends atomic.Pointer[hostEnd] // set once the host goes down

	doors sync.Mutex // one part at a time decides whether it may end
}

// Change is how a part of a plugin is now.
type Change struct {
	Plugin string
	Part   string            // "node", "controller a"; empty for a plugin in one part
	View   volume.PluginView // of the part alone
}

// New makes a supervisor and starts nothing.
func New(opts Options) *Supervisor {
	if opts.Logger == nil {
		opts.Logger = hclog.NewNullLogger()
	}
	if opts.StopGrace <= 0 {
		opts.StopGrace = 10 * time.Second
	}
	opts.Backoff = opts.Backoff.withDefaults()
	return &Supervisor{
		opts:    opts,
		log:     opts.Logger.Named("supervisor"),
		plugins: map[string]*plugin{},
		byID:    map[string][]*plugin{},
		turn:    map[string]uint64{},
		given:   map[subjectKey]given{},
		saved:   map[string]volume.PluginRecord{},
		waiters: map[string]chan struct{}{},
		leaving: map[string]chan struct{}{},
		look:    make(chan struct{}, 1),
	}
}

// Load reads what is stored and the plugin files, so that views are right
// before Run has begun. It starts nothing and does its work once.
func (s *Supervisor) Load() error {
	s.reload.Lock()
	defer s.reload.Unlock()
	return s.load()
}

func (s *Supervisor) load() error {
	if s.isLoaded() {
		return nil
	}
	boot, err := proc.BootID()
	if err != nil {
		return err
	}
	records, err := s.opts.Store.LoadPlugins()
	if err != nil {
		return fmt.Errorf("cannot load the plugins' records: %w", err)
	}
	if err := s.loadRegistered(); err != nil {
		return err
	}
	s.mu.Lock()
	s.boot = boot
	for _, rec := range records {
		s.saved[rec.ID] = rec
	}
	s.loaded = true
	s.mu.Unlock()
	return s.read()
}

func (s *Supervisor) isLoaded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loaded
}

// Run supervises the plugins until ctx ends, and takes in their files when they
// change. It returns then with all plugins running as they were. A bad plugin
// file is no error: it shows in the status of its plugin.
func (s *Supervisor) Run(ctx context.Context) error {
	if err := s.Load(); err != nil {
		if !s.isLoaded() {
			return err
		}
		// Others may still be supervised: the next Reload tries again.
		s.log.Error("cannot read the plugin files", "error", err)
	}
	sweepGroups(groupPrefix + "*")
	s.mu.Lock()
	if s.run != nil {
		s.mu.Unlock()
		return errors.New("the supervisor runs already")
	}
	s.run = ctx
	for _, slot := range sortedIDs(s.plugins) {
		s.drive(s.plugins[slot])
	}
	s.mu.Unlock()
	s.workers.Go(func() { s.clearCanaries(ctx) })
	if s.opts.PluginDir != "" {
		s.workers.Go(func() { s.notice(ctx) })
	}

	<-ctx.Done()
	s.workers.Wait()
	return nil
}

// drive starts a plugin's worker; s.mu is held.
func (s *Supervisor) drive(p *plugin) {
	if s.run == nil || s.run.Err() != nil || s.ends.Load() != nil {
		return
	}
	ctx, before := s.run, s.leaving[p.slot]
	s.workers.Add(1)
	go func() {
		defer s.workers.Done()
		defer close(p.over)
		if before != nil {
			<-before // it still tidies up in the same place
		}
		p.run(ctx)
	}()
}

// Reload reads the plugin files again. New plugins are started; changed and
// removed ones follow as soon as nothing is staged through them; what failed
// or waits to be started again is tried at once.
func (s *Supervisor) Reload() error {
	err := s.readAgain()
	select {
	case s.look <- struct{}{}:
	default:
	}
	return err
}

func (s *Supervisor) readAgain() error {
	s.reload.Lock()
	defer s.reload.Unlock()
	if !s.isLoaded() {
		return s.load()
	}
	return s.read()
}

// read takes in the plugin files.
func (s *Supervisor) read() error {
	files, err := readFiles(s.opts.PluginDir)
	if err != nil {
		return err
	}
	s.take(files)
	return nil
}

// stale reports whether the plugin files say something else than when they were
// last read.
func (s *Supervisor) stale() bool {
	s.reload.Lock()
	defer s.reload.Unlock()
	files, err := readFiles(s.opts.PluginDir)
	return err == nil && !slices.EqualFunc(files, s.taken, found.equal)
}

// add takes in a part; s.mu is held.
func (s *Supervisor) add(slot string, w want) {
	p := s.newPlugin(slot, w, s.saved[slot])
	s.plugins[slot] = p
	s.index(p.id)
	s.wakeWaiters(p.id)
	s.drive(p)
}

// remove forgets a part whose file was removed. It returns false if the file is
// back. What a plugin is stays known by its own slot; a controller that was beside
// others leaves nothing.
func (s *Supervisor) remove(p *plugin) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next == nil || p.next.def != nil {
		return false
	}
	delete(s.plugins, p.slot)
	s.leaving[p.slot] = p.over
	s.index(p.id)
	s.saved[p.slot] = forgotten(p.rec)
	s.wakeWaiters(p.id)
	return true
}

// forgotten is what is kept of a part that is no more.
func forgotten(rec volume.PluginRecord) volume.PluginRecord {
	rec.Process, rec.Definition, rec.Stopped = volume.PluginProcess{}, nil, false
	if rec.Plugin != "" {
		rec.Info = volume.PluginInfo{}
	}
	return rec
}

// held are the definitions in use, or that were when the agent was started, by
// slot.
func (s *Supervisor) held() map[string]*volume.PluginDefinition {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]*volume.PluginDefinition{}
	for slot, rec := range s.saved {
		if rec.Definition != nil {
			all[slot] = rec.Definition
		}
	}
	for slot, p := range s.plugins {
		if def, _ := p.definition(); def != nil {
			all[slot] = def
		} else {
			delete(all, slot)
		}
	}
	return all
}

// inUse names the volumes for which a plugin must not be stopped.
func (s *Supervisor) inUse(id string) []string {
	if s.opts.InUse == nil {
		return nil
	}
	return s.opts.InUse(id)
}

// notify tells of a change of a part's state. A change of another part's file
// may have waited for it.
func (s *Supervisor) notify(p *plugin) {
	s.mu.Lock()
	s.wakeWaiters(p.id)
	for _, other := range s.byID[p.id] {
		if other != p && other.waits() {
			other.poke()
		}
	}
	several := len(s.byID[p.id]) > 1
	s.mu.Unlock()
	if s.opts.OnChange == nil {
		return
	}
	c := Change{Plugin: p.id, View: p.look().view}
	if several {
		c.Part = p.name()
	}
	s.opts.OnChange(c)
}

// wakeWaiters closes what Changed gave out; s.mu is held.
func (s *Supervisor) wakeWaiters(id string) {
	if ch, ok := s.waiters[id]; ok {
		close(ch)
		delete(s.waiters, id)
	}
}
