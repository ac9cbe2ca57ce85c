package supervisor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/remedy"
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
		NoLog:       p.def == nil || p.def.Socket != "",
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
		return volume.Errorf(volume.ErrPluginUnavailable, "%s", msg).WithRemedy(v.Remedy(p.id))
	}
	if lines := p.tail(errorLines); len(lines) > 0 {
		msg += fmt.Sprintf("; its log ends in %q", strings.Join(lines, " | "))
	}

	return volume.Errorf(volume.ErrPluginUnavailable, "%s", msg).WithRemedy(v.LogRemedy(p.id))
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

// LogPath returns the file to which a plugin in one part writes. The error wraps volume.ErrNotFound
// if there is no such plugin, and volume.ErrRefused if the agent does not keep its log.
func (s *Supervisor) LogPath(id string) (string, error) {
	parts, err := s.logged(id, nil)
	if err != nil {
		return "", err
	}

	path, ok := parts[0].logPath()
	if !ok {
		return "", volume.Errorf(volume.ErrRefused, "the log of plugin %q is in systemd's journal", id).WithRemedy(remedy.Of(remedy.ShowPluginLog, id))
	}

	return path, nil
}

// logged returns those of the selected parts whose log this agent can read.
func (s *Supervisor) logged(id string, only []Only) ([]*plugin, error) {
	parts, err := s.selected(id, only)
	if err != nil {
		return nil, err
	}

	var logged []*plugin
	started := false
	for _, p := range parts {
		if _, ok := p.logPath(); ok || p.unit() != "" {
			logged = append(logged, p)
		}

		def, _ := p.definition()
		started = started || def != nil
	}

	switch {
	case len(logged) > 0:
		return logged, nil
	case !started:
		return nil, volume.Errorf(volume.ErrRefused, "plugin %q was never started, so it has no log", id).WithRemedy(remedy.Of(remedy.ShowPlugin, id))
	default:
		return nil, volume.Errorf(volume.ErrRefused, "plugin %q is run by somebody else, who keeps its log", id).WithRemedy(remedy.Of(remedy.ShowPlugin, id))
	}
}

// LogTail returns the last n lines that a plugin wrote, or that each of several parts wrote.
// Secrets that the plugin was given are removed.
func (s *Supervisor) LogTail(id string, n int, only ...Only) ([]string, error) {
	parts, err := s.logged(id, only)
	if err != nil {
		return nil, err
	}

	freshen(parts)
	return tails(parts, n)
}

// freshen brings the logs of parts up to date, if they are copied from a container.
func freshen(parts []*plugin) {
	for _, p := range parts {
		p.logs.freshen(logPatience)
	}
}

// tails returns the last n lines of each part.
func tails(parts []*plugin, n int) ([]string, error) {
	var all []string
	for _, p := range parts {
		lines, err := p.lastLines(n)
		if err != nil {
			return nil, err
		}
		all = append(all, p.label(lines)...)
	}

	return all, nil
}

// label puts the part's name before its lines, if the plugin has other parts.
func (p *plugin) label(lines []string) []string {
	if len(p.s.parts(p.id)) < 2 {
		return lines
	}

	name := p.name()
	for i, line := range lines {
		lines[i] = name + " | " + line
	}

	return lines
}

// hide returns the function that removes secrets from the plugin's output. It also covers secrets
// that an earlier agent gave the plugin, if they can still be read.
func (p *plugin) hide() func(string) string {
	if def, _ := p.definition(); def != nil {
		p.scrub.Unmask(def.UnmaskedSecrets...)
	}

	p.learn.Do(func() {
		if p.s.opts.Known != nil {
			for _, secrets := range p.s.opts.Known(p.id) {
				p.scrub.Add(secrets)
			}
		}

		def, _ := p.definition()
		if def == nil || p.s.opts.Secrets == nil {
			return
		}

		for name, v := range def.Env() {
			if v.Secret == nil {
				continue
			}
			if secret, err := p.s.opts.Secrets.ResolveSecret(context.Background(), *v.Secret); err == nil {
				p.scrub.Add(call.Secrets{name: secret})
			}
		}
	})

	return p.scrub.Scrub
}

// logPath returns the file to which the plugin writes, if this agent keeps the log.
func (p *plugin) logPath() (string, bool) {
	def, _ := p.definition()
	if def == nil || def.Socket != "" || def.Unit != "" {
		return "", false
	}
	return p.paths().log, true
}

// unit returns the unit whose journal is the plugin's log; empty if the log is elsewhere.
func (p *plugin) unit() string {
	if def, _ := p.definition(); def != nil && p.s.opts.Systemd != nil {
		return def.Unit
	}
	return ""
}

// lastLines returns the last n lines of the log; none if this agent cannot read it.
func (p *plugin) lastLines(n int) ([]string, error) {
	if unit := p.unit(); unit != "" {
		return p.journal.tail(unit, n, p.hide())
	}

	path, ok := p.logPath()
	if !ok {
		return nil, nil
	}

	return tail(path, n, p.hide())
}

// tail returns the last n lines of the log. A failure to read it is only logged.
func (p *plugin) tail(n int) []string {
	lines, err := p.lastLines(n)
	if err != nil {
		p.log.Debug("cannot read the plugin's log", "error", err)
		return nil
	}
	return lines
}
