package supervisor

import (
	"context"

	"github.com/volagent/volagent/agent/supervisor/runner"
	"github.com/volagent/volagent/volmgr/volume"
)

// refused handles an instance that must not be used. If this agent runs the instance and the
// instance holds no volume, the agent stops it. The plugin then stays failed until a person changes
// something. Any other instance keeps running. Once it has ended or was replaced, the plugin is
// checked again.
func (w *worker) refused(ctx context.Context, run runner.Runner, def *volume.PluginDefinition, why error) {
	w.drop()
	w.must(w.m.refuse(why.Error()))
	if run.Traits().Owned && !w.holds() && !w.stop(ctx) {
		return
	}

	switch {
	case w.inst == nil:
		w.rest(ctx, 0, true)
	case run.Traits().Owned:
		w.outlast(ctx, w.inst.Done())
	default:
		w.outlastForeign(ctx, def)
	}
}

// outlast waits for the end of a refused instance that this agent runs.
func (w *worker) outlast(ctx context.Context, ended <-chan struct{}) {
	if !w.restUntil(ctx, 0, true, ended) {
		return
	}
	if isClosed(ended) {
		w.gone()
		w.rest(ctx, w.falls.fell(0), true) // the next instance may be refused, too
	}
}

// outlastForeign waits until a refused instance that this agent does not run has ended, or until
// another instance serves its socket. If systemd opened the socket for the plugin, the socket stays
// the same. Then only the connection shows the end.
func (w *worker) outlastForeign(ctx context.Context, def *volume.PluginDefinition) {
	ended := w.inst.Done()
	if w.refusedClient != nil {
		lost, stop := watchConnection(ctx, w.refusedClient)
		defer stop()
		ended = lost
	}

	for w.restUntil(ctx, def.ProbeInterval, true, ended) {
		if isClosed(ended) || w.inst.Stale() || w.due() {
			break
		}
	}

	w.inst = nil
}

// closeRefused closes the connection to a refused instance, if there is one.
func (w *worker) closeRefused() {
	if w.refusedClient == nil {
		return
	}
	if err := w.refusedClient.Close(); err != nil {
		w.logger.Warn("cannot close the connection to a refused plugin", "error", err)
	}

	w.refusedClient = nil
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
