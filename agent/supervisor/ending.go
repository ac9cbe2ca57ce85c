package supervisor

import "context"

// hostEnd is how plugins end because the host goes down.
type hostEnd struct {
	ctx  context.Context
	keep func(pluginID string) bool
}

// End ends the commands and containers that run here, because the host goes down: all
// at once, each with the time that a stop gives it. Those of a plugin that keep names
// run on, and end with the host; it must not call the Supervisor. So do units: systemd
// stops them, in an order of its own, and would wait with that for whoever asks here.
// Nothing is started any more, and no record changes, so that the next boot starts what
// ran. It returns when all have ended, or ctx has.
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

// finish ends the instance, if that is what the end of the host asks for.
func (w *worker) finish(e *hostEnd) {
	def, _ := w.definition()
	if w.inst == nil || def == nil || def.Unit != "" || def.Socket != "" || e.keep(w.id) {
		return
	}
	w.must(w.m.stop("this host is going down"))
	w.drop()
	if err := w.inst.Stop(e.ctx, w.s.opts.StopGrace); err != nil {
		w.log.Warn("the plugin has not ended in time; it ends with the host", "error", err)
		return
	}
	w.gone()
}
