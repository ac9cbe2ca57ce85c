// Package supervisor runs CSI plugins and keeps them running. It starts their processes, or watches
// processes that others run. It waits until they are ready, probes them, restarts those that end or
// hang, and gives gRPC clients to the rest of the agent.
//
// A plugin outlives the agent. It has its own session and log file. The supervisor stores, before
// and after the fork, data that identifies the process without doubt. The next agent therefore
// finds the process and does not start a second one. When the agent stops, its plugins keep
// running.
//
//	files.go, registered.go             <plugin-dir>/*.yaml and run-time registrations → the wanted parts
//	notice.go                           notices changes of these files
//	part.go                             a plugin in several parts
//	machine.go                          the states, drawn
//	worker.go, ready.go                 one goroutine per part: start, settle, watch, end
//	canary.go                           does a plugin share the host's mounts, and network?
//	runner.go, exec.go, socket.go       ways to run a plugin
//	container.go, container_*.go        a container, its end and its log
//	unit.go                             a systemd unit, another way to run a plugin
//	transient.go, launch.go, cgroup.go  where a command runs, so that it survives the agent's end
//	process.go, procfs.go               a process that need not be a child of the agent
//	view.go, lookup.go, status.go       queries: views, clients, status, logs
//	control.go                          requests by the operator: restart, stop, start
//	ending.go                           the shutdown of the host
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

	"github.com/volagent/volagent/agent/supervisor/command"
	"github.com/volagent/volagent/agent/supervisor/part"
	"github.com/volagent/volagent/agent/supervisor/transient"
	"github.com/volagent/volagent/agent/systemd"
	"github.com/volagent/volagent/volmgr/csiclient"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/proc"
	"github.com/volagent/volagent/volmgr/volume"
)

// Store keeps the plugins' records across restarts of the agent.
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

// Options configures a Supervisor.
type Options struct {
	PluginDir  string // holds *.yaml; it need not exist
	DataDir    string // plugins' states and logs, mount roots
	RuntimeDir string // plugins' sockets
	NodeID     string // ${NODE_ID}

	// BuiltinArgv is the command line of the bundled driver. The supervisor appends --endpoint,
	// --node-id and --state-dir. Empty: there is no bundled driver.
	BuiltinArgv []string

	// Systemd is the connection to the host's service manager. Nil: there is none.
	Systemd *systemd.Bus
	// ServiceArgv is the command line that runs Launch. If it is set, commands run as services of
	// systemd. Otherwise the agent forks them.
	ServiceArgv []string

	Store    Store
	Registry Registry       // nil: plugins cannot be registered at run time
	Secrets  SecretResolver // nil: plugin files may not refer to secrets
	Logger   hclog.Logger   // nil: no log

	// InUse names the volumes that are staged through a plugin, or are about to be. The supervisor
	// asks before it stops a part of the plugin. InUse must not call the Supervisor. Nil: no volume
	// is ever in use.
	InUse func(pluginID string) []string
	// HasVolumes reports whether the agent has volumes of a plugin. It must not call the
	// Supervisor. Nil: the agent has none.
	HasVolumes func(pluginID string) bool
	// FUSE returns how many claims have a FUSE mount through a plugin. Refusals state this number.
	// It must not call the Supervisor. Nil: the number is unknown.
	FUSE func(pluginID string) int
	// Known returns the secrets that a plugin may have received from this agent or an earlier one.
	// The supervisor asks once for each plugin, before it shows any of the plugin's log. Known must
	// not call the Supervisor. Nil: there are none.
	Known func(pluginID string) []volume.Secrets
	// OnChange is called after each change of a part's state, from that part's goroutine. It must
	// not block. It may be nil.
	OnChange func(Change)

	// OnWarning is called, like OnChange, with a warning about the namespaces in which a part runs
	// or about its driver's name. Each warning is passed once. The argument part is as in Change.
	// It may be nil.
	OnWarning func(pluginID, part, warning string)
	// Host tests whether plugins share its mounts. Nil: the supervisor does not test it.
	Host *mount.Host

	// Client is the template of the plugins' clients. Their timeouts, limit and scrubber come from
	// the plugin files.
	Client csiclient.Options
	// Observe returns the observer of the calls of a new client to a plugin. Nil: calls are not
	// observed.
	Observe func(pluginID string) csiclient.Observer
	// Backoff sets the pauses before restarts. Its zero value is the default.
	Backoff Backoff
	// StopGrace is the time between SIGTERM and SIGKILL. 0 means 10 s.
	StopGrace time.Duration
}

// Supervisor runs the plugins of one agent.
type Supervisor struct {
	opts         Options
	log          hclog.Logger
	services     *transient.Services
	incarnations atomic.Uint64

	reload sync.Mutex // one Load or Reload at a time
	taken  []found    // the plugin files as they were last read; guarded by reload
	// registered are the definitions that were registered at run time; guarded by reload.
	registered []*volume.PluginDefinition
	look       chan struct{} // holds one token: resolve the path of the plugin files again and watch it

	mu      sync.Mutex
	loaded  bool
	boot    string
	run     context.Context // the context of Run; nil before and after
	workers sync.WaitGroup
	plugins map[string]*plugin             // by slot
	byID    map[string][]*plugin           // the same, by plugin
	saved   map[string]volume.PluginRecord // by slot: records as loaded, and those of parts that were removed
	waiters map[string]chan struct{}       // by plugin
	leaving map[string]chan struct{}       // by slot, closed when the goroutine of the removed part has ended
	turn    map[string]uint64              // by plugin: controller calls so far
	given   map[subjectKey]given           // controllers in which a call was given up

	ends atomic.Pointer[hostEnd] // set once the host shuts down

	doors sync.Mutex // one part at a time decides whether it may end
}

// Change describes a part of a plugin after a change.
type Change struct {
	Plugin string
	Part   string            // "node", "controller a"; empty if the plugin has one part
	View   volume.PluginView // of this part alone
}

// dirs returns the directories of the agent below which each part has its own.
func (o Options) dirs() part.Dirs { return part.Dirs{Data: o.DataDir, Runtime: o.RuntimeDir} }

// New makes a supervisor and starts nothing.
func New(opts Options) *Supervisor {
	if opts.Logger == nil {
		opts.Logger = hclog.NewNullLogger()
	}

	if opts.StopGrace <= 0 {
		opts.StopGrace = 10 * time.Second
	}

	opts.Backoff = opts.Backoff.withDefaults()
	log := opts.Logger.Named("supervisor")
	return &Supervisor{
		opts:     opts,
		log:      log,
		services: transient.New(opts.Systemd, opts.ServiceArgv, log),
		plugins:  map[string]*plugin{},
		byID:     map[string][]*plugin{},
		turn:     map[string]uint64{},
		given:    map[subjectKey]given{},
		saved:    map[string]volume.PluginRecord{},
		waiters:  map[string]chan struct{}{},
		leaving:  map[string]chan struct{}{},
		look:     make(chan struct{}, 1),
	}
}

// Load reads the stored records and the plugin files, so that views are right before Run begins. It
// starts nothing. Further calls do nothing.
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

// Run supervises the plugins until ctx ends, and applies changes of their files. When it returns,
// all plugins keep running. A bad plugin file is not an error: it shows in the status of its
// plugin.
func (s *Supervisor) Run(ctx context.Context) error {
	if err := s.Load(); err != nil {
		if !s.isLoaded() {
			return err
		}

		// Other plugins can still be supervised. The next Reload tries again.
		s.log.Error("cannot read the plugin files", "error", err)
	}

	command.SweepGroups()
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

// drive starts a plugin's worker. The caller holds s.mu.
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
			<-before // the removed part still cleans up in the same directories
		}

		p.drive(ctx)
	}()
}

// Reload reads the plugin files again. It starts new plugins. Changed and removed plugins follow as
// soon as nothing is staged through them. Plugins that failed or wait for a restart are tried at
// once.
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

// read applies the plugin files.
func (s *Supervisor) read() error {
	files, err := readFiles(s.opts.PluginDir)
	if err != nil {
		return err
	}

	s.take(files)
	return nil
}

// stale reports whether the plugin files differ from those that were last read.
func (s *Supervisor) stale() bool {
	s.reload.Lock()
	defer s.reload.Unlock()

	files, err := readFiles(s.opts.PluginDir)
	return err == nil && !slices.EqualFunc(files, s.taken, found.equal)
}

// add adds a part and starts its worker. The caller holds s.mu.
func (s *Supervisor) add(slot string, w want) {
	p := s.newPlugin(slot, w, s.saved[slot])
	s.plugins[slot] = p
	s.index(p.id)
	s.wakeWaiters(p.id)
	s.drive(p)
}

// remove forgets a part whose file was removed. It returns false if the file is back. The plugin's
// driver, version and capabilities stay in the record of the plugin's own slot. They are removed
// from the record of a controller beside others.
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

// forgotten returns the record that is kept after a part was removed.
func forgotten(rec volume.PluginRecord) volume.PluginRecord {
	rec.Process, rec.Definition, rec.Stopped = volume.PluginProcess{}, nil, false
	if rec.Plugin != "" {
		rec.Info = volume.PluginInfo{}
	}
	return rec
}

// held returns, by slot, the definitions that are in use or were in use when the agent started.
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

// inUse names the volumes that prevent a stop of a plugin.
func (s *Supervisor) inUse(id string) []string {
	if s.opts.InUse == nil {
		return nil
	}
	return s.opts.InUse(id)
}

// notify reports a change of a part's state. It also wakes other parts of the same plugin: a change
// of their files may have waited for this one.
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

// wakeWaiters closes the channel that Changed returned. The caller holds s.mu.
func (s *Supervisor) wakeWaiters(id string) {
	if ch, ok := s.waiters[id]; ok {
		close(ch)
		delete(s.waiters, id)
	}
}
