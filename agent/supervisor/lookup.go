package supervisor

import (
	"fmt"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// shownLines is how many of a plugin's last log lines its status shows. errorLines is how many the
// refusal of a client quotes.
const (
	shownLines = 5
	errorLines = 3
)

// look returns the state of a part at this moment.
func (p *plugin) look() glance {
	p.mu.Lock()
	defer p.mu.Unlock()

	now := p.m.snapshot() // with p.mu held, so that all values are of one moment
	v := volume.PluginView{
		Known:       true,
		Ready:       now.state == Ready && p.client != nil && !p.quiet && !p.restart && !p.halt && p.asking == 0,
		State:       string(now.state),
		Reason:      now.reason,
		NoLog:       !p.traits.Owned,
		Stopped:     p.halt,
		Final:       p.halt || now.state == Failed && !p.kick && !p.restart,
		Incarnation: p.incarnation,
		Restarts:    now.restarts,
		Info:        p.rec.Info,
	}

	if p.def != nil {
		v.CallTimeout, v.ControllerTimeout = p.def.NodeTimeout, p.def.ControllerTimeout
		v.StatsInterval = p.def.StatsInterval
	}

	if now.state == Ready && !v.Ready {
		v.Reason = "is about to be stopped"
	}

	return glance{p: p, kind: p.kind(), typed: p.def != nil && p.def.Type != "", view: v, status: now, client: p.client}
}

func unknown(id string) error {
	return volume.Errorf(volume.ErrNotFound, "no plugin %q is configured", id).WithHint("volctl plugin list")
}

// unavailable returns the error for a plugin that has no client.
func (p *plugin) unavailable(v volume.PluginView) error {
	msg := fmt.Sprintf("plugin %q is %s", p.id, v.State)
	if v.Reason != "" {
		msg += ": " + v.Reason
	}

	if next := p.m.snapshot().next; !next.IsZero() {
		msg += fmt.Sprintf("; next start in %s", max(0, time.Until(next)).Round(100*time.Millisecond))
	}

	if v.Final {
		return volume.Errorf(volume.ErrPluginUnavailable, "%s", msg).WithHint("%s", v.Remedy(p.id))
	}
	if lines := p.tail(errorLines); len(lines) > 0 {
		msg += fmt.Sprintf("; its log ends in %q", strings.Join(lines, " | "))
	}

	return volume.Errorf(volume.ErrPluginUnavailable, "%s", msg).WithHint("%s", v.LogCommand(p.id))
}

// Changed returns a channel that is closed at the next change of a plugin's state. Callers first
// get the channel, then check the state, and then wait.
func (s *Supervisor) Changed(id string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()

	ch, ok := s.waiters[id]
	if !ok {
		ch = make(chan struct{})
		s.waiters[id] = ch
	}

	return ch
}

// Released reports that a volume is no longer staged through a plugin. A change that waits for the
// last such volume may then come into force.
func (s *Supervisor) Released(id string) {
	for _, p := range s.parts(id) {
		if p.waits() {
			p.poke()
		}
	}
}
