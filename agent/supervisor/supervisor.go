// Package supervisor runs CSI plugins and keeps them running: it starts their
// processes, or watches what others run, sees them become ready, probes them,
// restarts what ends or hangs, and hands out clients.
//
// A plugin outlives the agent. It has a session and a log file of its own, and
// what names its process beyond doubt is stored before and after the fork, so
// that the next agent finds it and starts no second one. Stopping the agent
// stops no plugin.
//
//	files.go, definition.go, parse.go   <plugin-dir>/*.yaml → what is wanted
//	notice.go                           sees that these files change
//	machine.go                          the states, drawn
//	worker.go, ready.go                 one goroutine per plugin: start, settle, watch, end
//	runner.go, exec.go, socket.go       ways to run a plugin
//	process.go, procfs.go               a process that need not be our child
//	lookup.go                           what others ask: views, clients, status, logs
//	control.go                          what people ask for: restart, stop, start
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

	"github.com/volagent/volagent/volmgr/csiclient"
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

	Store   Store
	Secrets SecretResolver // nil: no file may refer to a secret
	Logger  hclog.Logger   // nil: no log

	// InUse names the volumes that are staged, or about to be, through a
	// plugin. It is asked before a plugin is stopped, and must not call the
	// Supervisor. Nil: there are none, ever.
	InUse func(pluginID string) []string
	// Known returns the secrets that a plugin may have been given, by this agent or
	// one before it. It is asked once for each plugin, before any of its log is
	// shown, and must not call the Supervisor. Nil: none.
	Known func(pluginID string) []volume.Secrets
	// OnChange is called after each change of a plugin's state, from that
	// plugin's goroutine: it must not block. Nil is fine.
	OnChange func(pluginID string)

	// Client is the template of the plugins' clients; its timeouts, limit and
	// scrubber come from the plugin files.
	Client csiclient.Options
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

	reload sync.Mutex    // one Load or Reload at a time
	taken  []found       // the plugin files as they were last read; of who holds reload
	look   chan struct{} // holds one token: watch what the path of the plugin files leads to now

	mu      sync.Mutex
	loaded  bool
	boot    string
	run     context.Context // of Run; nil before and after
	workers sync.WaitGroup
	plugins map[string]*plugin
	saved   map[string]volume.PluginRecord // of what has no plugin, or had when it was loaded
	waiters map[string]chan struct{}
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
		saved:   map[string]volume.PluginRecord{},
		waiters: map[string]chan struct{}{},
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
	boot, err := bootID()
	if err != nil {
		return err
	}
	records, err := s.opts.Store.LoadPlugins()
	if err != nil {
		return fmt.Errorf("cannot load the plugins' records: %w", err)
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
	s.mu.Lock()
	if s.run != nil {
		s.mu.Unlock()
		return errors.New("the supervisor runs already")
	}
	s.run = ctx
	for _, id := range sortedIDs(s.plugins) {
		s.drive(s.plugins[id])
	}
	s.mu.Unlock()
	if s.opts.PluginDir != "" {
		s.workers.Go(func() { s.notice(ctx) })
	}

	<-ctx.Done()
	s.workers.Wait()
	return nil
}

// drive starts a plugin's worker; s.mu is held.
func (s *Supervisor) drive(p *plugin) {
	if s.run == nil || s.run.Err() != nil {
		return
	}
	ctx := s.run
	s.workers.Add(1)
	go func() {
		defer s.workers.Done()
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
	s.taken = files
	wants := s.wants(files, s.ownerOf)
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, p := range s.plugins {
		if _, still := wants[id]; !still {
			p.propose(want{})
		}
	}
	for _, id := range sortedIDs(wants) {
		w := wants[id]
		if p, known := s.plugins[id]; known {
			p.propose(w)
		} else {
			s.add(id, w)
		}
	}
	// What was in use and has no file any more: it may still run, and hold
	// volumes.
	for _, id := range sortedIDs(s.saved) {
		if _, known := s.plugins[id]; !known && s.saved[id].Definition != nil {
			s.add(id, want{})
		}
	}
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

// add takes in a plugin; s.mu is held.
func (s *Supervisor) add(id string, w want) {
	p := s.newPlugin(id, w, s.saved[id])
	s.plugins[id] = p
	s.wakeWaiters(id)
	s.drive(p)
}

// remove forgets a plugin whose file was removed. It returns false if the file
// is back.
func (s *Supervisor) remove(p *plugin) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next == nil || p.next.def != nil {
		return false
	}
	delete(s.plugins, p.id)
	rec := p.rec
	rec.Process, rec.Definition, rec.Stopped = volume.PluginProcess{}, nil, false
	s.saved[p.id] = rec
	s.wakeWaiters(p.id)
	return true
}

// ownerOf finds the plugin whose definition stands in a file, for a file that
// can no longer be read.
func (s *Supervisor) ownerOf(file string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, p := range s.plugins {
		if def, _ := p.definition(); def != nil && def.File == file {
			return id
		}
	}
	for id, rec := range s.saved {
		if rec.Definition != nil && rec.Definition.File == file {
			return id
		}
	}
	return ""
}

// inUse names the volumes for which a plugin must not be stopped.
func (s *Supervisor) inUse(id string) []string {
	if s.opts.InUse == nil {
		return nil
	}
	return s.opts.InUse(id)
}

// notify tells of a change of a plugin's state.
func (s *Supervisor) notify(id string) {
	s.mu.Lock()
	s.wakeWaiters(id)
	s.mu.Unlock()
	if s.opts.OnChange != nil {
		s.opts.OnChange(id)
	}
}

// wakeWaiters closes what Changed gave out; s.mu is held.
func (s *Supervisor) wakeWaiters(id string) {
	if ch, ok := s.waiters[id]; ok {
		close(ch)
		delete(s.waiters, id)
	}
}
