package supervisor

import (
	"context"

	"github.com/volagent/volagent/agent/supervisor/command"
	"github.com/volagent/volagent/agent/supervisor/container"
	"github.com/volagent/volagent/agent/supervisor/runner"
	"github.com/volagent/volagent/agent/supervisor/socket"
	"github.com/volagent/volagent/agent/supervisor/unit"
	"github.com/volagent/volagent/volmgr/volume"
)

// runnerFor returns the runner that a definition asks for.
func (p *plugin) runnerFor(def *volume.PluginDefinition) runner.Runner {
	opts := &p.s.opts
	of := runner.Part{
		ID: p.id, Slot: p.slot, Definition: def, Paths: p.paths, Values: p.paths.Values(p.id, opts.NodeID), Boot: p.s.boot, Logger: p.logger,
		Record: host{p}, Progress: host{p}, Mask: p.scrub, Secrets: opts.Secrets,
	}

	switch {
	case def.Socket != "":
		return socket.New(def.Socket, of.Progress)
	case def.Container != nil:
		return container.New(of, container.Options{Via: p.s.services.Run, Output: p.output, Host: opts.Host, StopGrace: opts.StopGrace})
	case def.Unit != "":
		return unit.New(of, opts.Systemd)
	default:
		return command.New(of, opts.BuiltinArgv, p.s.services)
	}
}

// host is a part as its runner sees it.
type host struct{ p *plugin }

// Process implements runner.Record.
func (h host) Process() volume.PluginProcess { return h.p.record().Process }

// SaveProcess implements runner.Record.
func (h host) SaveProcess(ctx context.Context, it volume.PluginProcess) error {
	return h.p.save(ctx, func(r *volume.PluginRecord) { r.Process, r.Definition = it, h.p.def })
}

// ForgetProcess implements runner.Record. An intent without a process does no harm, so this is not
// stored.
func (h host) ForgetProcess() {
	h.p.mu.Lock()
	defer h.p.mu.Unlock()
	h.p.rec.Process = volume.PluginProcess{}
}

// Note implements runner.Progress.
func (h host) Note(reason string) { h.p.m.note(reason) }

// Unhealthy implements runner.Progress.
func (h host) Unhealthy(reason string) { h.p.must(h.p.m.unhealthy(reason)) }

// Wake implements runner.Progress.
func (h host) Wake() <-chan struct{} { return h.p.wake }

// Due implements runner.Progress.
func (h host) Due() bool { return h.p.due() }
