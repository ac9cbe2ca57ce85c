package supervisor

import "context"

// hostEnd describes how plugins end because the host shuts down.
type hostEnd struct {
	ctx  context.Context
	keep func(pluginID string) bool
}

// End ends the commands and containers that run plugins, because the host shuts down. It ends them
// all at once, each with the grace time of a normal stop. Plugins for which keep returns true keep
// running, and end with the host. keep must not call the Supervisor. Units keep running, too:
// systemd stops them in its own order, and would delay a stop requested here until the requester
// has ended.
//
// End starts no more plugins and changes no record, so that the next boot starts the plugins that
// ran. It returns when all have ended, or when ctx ends.
func (s *Supervisor) End(ctx context.Context, keep func(pluginID string) bool) {
	s.ends.Store(&hostEnd{ctx, keep})
	s.mu.Lock()
	var driven []*plugin
	if s.run != nil {
		for _, slot := range sortedIDs(s.plugins) {
			driven = append(driven, s.plugins[slot])
		}
	}

	s.mu.Unlock()

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

// finish ends the instance, unless End lets it keep running.
func (w *worker) finish(e *hostEnd) {
	if run := w.runner(); w.inst == nil || run == nil || !run.Traits().Ends || e.keep(w.id) {
		return
	}

	w.must(w.m.stop("this host is going down"))
	w.drop()
	if err := w.inst.Stop(e.ctx, w.s.opts.StopGrace); err != nil {
		w.logger.Warn("the plugin has not ended in time; it ends with the host", "error", err)
		return
	}

	w.gone()
}
