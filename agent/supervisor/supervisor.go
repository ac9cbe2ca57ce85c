// Package supervisor runs CSI plugins and keeps them running. It starts the processes of plugins, or
// monitors processes that another program runs. It waits until a plugin is ready, probes it, and
// restarts it if it ends or hangs. The other packages of the agent get gRPC clients for the plugins.
//
// When the agent stops, its plugins keep running. Each plugin has its own session and log file.
// Before and after the fork, the supervisor stores data that identifies the plugin's process
// uniquely. The next agent therefore finds the process and does not start a second one.
//
//	supervisor.go                         all requests of the agent, by embedding the types below
//	registered.go, control.go, tested.go  requests: register, restart, stop, start, test
//	view.go, status.go, logs.go           queries: views and clients, status, logs
//	parts.go                              the parts of all plugins
//	worker.go, outcome.go                 the goroutine of each part, which follows part.Next
//	session.go                            one instance from its start to its end
//	identity.go, canary.go                the checks of the identity and the namespaces of a plugin
//	plugin.go, host.go, output.go         one part, its interface for runners, its output
//	record.go, mask.go, backoff.go        a part's stored record, its secrets, its restart pauses
//	options.go, elsewhere.go              the options; listeners that another agent may have started
//
// The packages in this directory have these jobs: part decides the next step of a part, definitions
// reads and watches the plugin files, and pluginlog reads logs. The packages command, container,
// unit and socket run the plugins.
package supervisor

import (
	"context"
	"os/exec"

	"github.com/volagent/volagent/agent/supervisor/command"
	"github.com/volagent/volagent/agent/supervisor/definitions"
	"github.com/volagent/volagent/volmgr/plugin"
)

// Supervisor runs all plugins of one agent.
type Supervisor struct {
	*clients
	*statuses
	*logs
	*requests
	*tests
	*registrations

	parts *parts
}

// New returns a supervisor. It starts nothing yet.
func New(opts Options) *Supervisor {
	e := newEnv(opts)
	all := newParts(e)
	requests := &requests{all}
	defs := definitions.New(definitions.Options{
		Dir:      opts.PluginDir,
		Rules:    definitions.Rules{Builtin: len(opts.BuiltinArgv) > 0, Dirs: e.dirs},
		Registry: opts.Registry, Parts: followers{all}, Logger: e.log,
	})

	return &Supervisor{
		clients: newClients(all), statuses: &statuses{all}, logs: &logs{all},
		requests: requests, tests: &tests{requests}, registrations: &registrations{defs, requests},
		parts: all,
	}
}

// followers makes parts implement the interface definitions.Parts.
type followers struct{ parts *parts }

// Load implements definitions.Parts.
func (f followers) Load() error { return f.parts.load() }

// Held implements definitions.Parts.
func (f followers) Held() map[string]*plugin.Definition { return f.parts.held() }

// Follow implements definitions.Parts.
func (f followers) Follow(wants map[string]definitions.Want) { f.parts.follow(wants) }

// Run supervises the plugins until ctx ends, and applies changes of their files. All plugins keep
// running after Run returns. A bad plugin file does not make Run return an error; the status of its
// plugin shows the error.
func (s *Supervisor) Run(ctx context.Context) error {
	if err := s.Load(); err != nil {
		if !s.Loaded() {
			return err
		}

		// Continue, because the other plugins can still be supervised. The next Reload reads the
		// files again.
		s.parts.log.Error("cannot read the plugin files", "error", err)
	}

	command.SweepGroups()
	if err := s.parts.start(ctx); err != nil {
		return err
	}

	s.parts.workers.Go(func() { s.parts.clearCanaries(ctx) })
	if s.parts.opts.PluginDir != "" {
		s.parts.workers.Go(func() { s.Watch(ctx) })
	}

	<-ctx.Done()
	s.parts.workers.Wait()
	return nil
}

// End ends the commands and containers that run plugins, because the host is shutting down. It ends
// all of them at the same time, and gives each the grace time of a normal stop. If keep returns
// true for a plugin, the plugin keeps running until the host is down. The function keep must not
// call the Supervisor.
//
// End does not stop units. systemd stops units in its own order, and would delay a stop that the
// agent requests until the agent itself has ended.
//
// End starts no plugin and changes no record, so the next boot starts the same plugins. It returns
// when all instances have ended, or when ctx ends.
func (s *Supervisor) End(ctx context.Context, keep func(pluginID string) bool) {
	s.parts.ends.Store(&hostEnd{ctx, keep})
	driven := s.parts.driven()
	for _, p := range driven {
		p.poke()
	}

	for _, p := range driven {
		select {
		case <-p.over:
		case <-ctx.Done():
			return
		}
	}
}

// Outside runs a command without the restrictions of the agent's service; see
// transient.Services.Run.
func (s *Supervisor) Outside(ctx context.Context, cmd *exec.Cmd) error {
	return s.parts.services.Run(ctx, cmd)
}
