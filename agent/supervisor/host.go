package supervisor

import (
	"context"

	"github.com/volagent/volagent/agent/supervisor/command"
	"github.com/volagent/volagent/agent/supervisor/container"
	"github.com/volagent/volagent/agent/supervisor/runner"
	"github.com/volagent/volagent/agent/supervisor/socket"
	"github.com/volagent/volagent/agent/supervisor/unit"
	"github.com/volagent/volagent/volmgr/plugin"
)

// newRunner returns the runner that a definition requires: container, unit, socket or command.
func newRunner(p *supervised, def *plugin.Definition) runner.Runner {
	opts := &p.opts
	of := runner.Part{
		ID: p.id, Slot: p.slot, Definition: def, Paths: p.paths, Values: p.paths.Values(p.id, opts.NodeID), Boot: p.boot, Logger: p.logger,
		Record: host{p}, Progress: host{p}, Mask: p.mask, Secrets: opts.Secrets,
	}

	switch {
	case def.Socket != "":
		return socket.New(def.Socket, of.Progress)
	case def.Container != nil:
		return container.New(of, container.Options{Via: p.services.Run, Output: p.output, Host: opts.Host, StopGrace: opts.StopGrace})
	case def.Unit != "":
		return unit.New(of, opts.Systemd)
	default:
		return command.New(of, opts.BuiltinArgv, p.services)
	}
}

// host gives a runner access to the part that it runs. It implements runner.Record and
// runner.Progress.
type host struct{ p *supervised }

// Process implements runner.Record.
func (h host) Process() plugin.Process { return h.p.record.get().Process }

// SaveProcess implements runner.Record.
func (h host) SaveProcess(ctx context.Context, it plugin.Process) error {
	def, _ := h.p.definition()
	return h.p.record.save(ctx, func(r *plugin.Record) { r.Process, r.Definition = it, def })
}

// ForgetProcess implements runner.Record. It changes the record only in memory. It does no harm if
// the stored record still contains the intent, because the next agent will find no process for it.
func (h host) ForgetProcess() {
	h.p.record.edit(func(r *plugin.Record) { r.Process = plugin.Process{} })
}

// Note implements runner.Progress.
func (h host) Note(reason string) { h.p.m.Note(reason) }

// Unhealthy implements runner.Progress.
func (h host) Unhealthy(reason string) { h.p.must(h.p.m.Unhealthy(reason)) }

// Wake implements runner.Progress.
func (h host) Wake() <-chan struct{} { return h.p.wake }

// Due implements runner.Progress.
func (h host) Due() bool { return h.p.due() }
