package supervisor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/csiclient"
	"github.com/volagent/volagent/volmgr/volume"
)

// shownLines is how many of a plugin's last log lines its status shows, and
// errorLines how many the refusal of a client quotes.
const (
	shownLines = 5
	errorLines = 3
)

// Status is a plugin for people to look at.
type Status struct {
	ID       string
	Type     string // node, controller, monolith; empty until the plugin has said
	Runner   string // exec, socket, builtin; empty if the plugin's file is bad
	File     string // empty for the plugin that exists without one
	State    State
	Reason   string
	Since    time.Time
	Next     time.Time // when a plugin that is backing off is started again
	Restarts int
	PID      int
	// Info is the plugin's last answer, also while it is down.
	Info     volume.PluginInfo
	Socket   string
	LogFile  string // empty where somebody else keeps the log
	LastExit string
	LastLog  []string
	Pending  string // why a changed, removed or bad plugin file is not in force
}

// find returns a plugin; nil where none is configured.
func (s *Supervisor) find(id string) *plugin {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.plugins[id]
}

// remembered is what a plugin said of itself that is not configured any more.
func (s *Supervisor) remembered(id string) volume.PluginInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.saved[id].Info
}

// View returns a plugin as decisions see it. The maps and slices in it are
// shared and must not be changed.
func (s *Supervisor) View(id string) volume.PluginView {
	p := s.find(id)
	if p == nil {
		return volume.PluginView{State: string(Stopped), Reason: "no such plugin is configured", Info: s.remembered(id)}
	}
	v, _ := p.view()
	return v
}

// view is View, and the client that goes with it.
func (p *plugin) view() (volume.PluginView, *csiclient.Client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.m.snapshot() // with p.mu held, so that all of it is of one moment
	v := volume.PluginView{
		Known:       true,
		Ready:       now.state == Ready && p.client != nil && !p.quiet && !p.restart && !p.halt && p.asking == 0,
		State:       string(now.state),
		Reason:      now.reason,
		Stopped:     p.halt,
		Incarnation: p.incarnation,
		Info:        p.rec.Info,
	}
	if p.def != nil {
		v.CallTimeout = p.def.NodeTimeout
	}
	if now.state == Ready && !v.Ready {
		v.Reason = "is about to be stopped"
	}
	return v, p.client
}

// Client returns the client of a plugin that is ready. The error wraps
// volume.ErrPluginUnavailable, or volume.ErrNotFound if there is no such
// plugin. A client serves one incarnation: ask again for each call.
func (s *Supervisor) Client(id string) (*csiclient.Client, error) {
	p := s.find(id)
	if p == nil {
		return nil, unknown(id)
	}
	v, client := p.view()
	if v.Ready {
		return client, nil
	}
	return nil, p.unavailable(v)
}

func unknown(id string) error {
	return volume.Errorf(volume.ErrNotFound, "no plugin %q is configured", id).WithHint("volctl plugin list")
}

// unavailable says why a plugin gives no client.
func (p *plugin) unavailable(v volume.PluginView) error {
	msg := fmt.Sprintf("plugin %q is %s", p.id, v.State)
	if v.Reason != "" {
		msg += ": " + v.Reason
	}
	if next := p.m.snapshot().next; !next.IsZero() {
		msg += fmt.Sprintf("; next start in %s", max(0, time.Until(next)).Round(100*time.Millisecond))
	}
	if v.Stopped {
		return volume.Errorf(volume.ErrPluginUnavailable, "%s", msg).WithHint("%s", v.Remedy(p.id))
	}
	if lines := p.tail(errorLines); len(lines) > 0 {
		msg += fmt.Sprintf("; its log ends in %q", strings.Join(lines, " | "))
	}
	return volume.Errorf(volume.ErrPluginUnavailable, "%s", msg).WithHint("volctl plugin logs %s", p.id)
}

// Changed returns a channel that is closed at the next change of a plugin's
// state. Take it, look at the state, and then wait.
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

// Released tells that something staged through a plugin is no more: a change
// that waits for the last of it may come into force.
func (s *Supervisor) Released(id string) {
	p := s.find(id)
	if p == nil {
		return
	}
	p.mu.Lock()
	waits := p.next != nil
	p.mu.Unlock()
	if waits {
		p.poke()
	}
}

// Status returns one plugin.
func (s *Supervisor) Status(id string) (Status, error) {
	p := s.find(id)
	if p == nil {
		return Status{}, unknown(id)
	}
	return p.status(), nil
}

// Statuses returns all plugins in the order of their ids.
func (s *Supervisor) Statuses() []Status {
	s.mu.Lock()
	plugins := make([]*plugin, 0, len(s.plugins))
	for _, id := range sortedIDs(s.plugins) {
		plugins = append(plugins, s.plugins[id])
	}
	s.mu.Unlock()
	all := make([]Status, 0, len(plugins))
	for _, p := range plugins {
		all = append(all, p.status())
	}
	return all
}

func (p *plugin) status() Status {
	p.mu.Lock()
	now := p.m.snapshot() // with p.mu held, so that all of it is of one moment
	st := Status{
		ID: p.id, File: p.file, State: now.state, Reason: now.reason, Since: now.since, Next: now.next, Restarts: now.restarts,
		PID: p.pid, Info: p.rec.Info, LastExit: p.lastExit, Pending: p.pending(),
	}
	def := p.def
	p.mu.Unlock()
	st.Type = kindOf(def, st.Info)
	if def != nil {
		st.Runner = def.Runner()
		st.Socket = p.runnerFor(def).Socket()
	}
	if log, ok := p.logPath(); ok {
		st.LogFile, st.LastLog = log, p.tail(shownLines)
	}
	return st
}

// pending says what about the plugin's file is not in force; p.mu is held.
func (p *plugin) pending() string {
	const when = "nothing is staged through the plugin any more"
	switch {
	case p.def == nil:
		return "" // the state is failed, and says why
	case p.fault != nil:
		return fmt.Sprintf("its file cannot be used, the definition before it stays in force: %s", p.fault)
	case p.next == nil:
		return ""
	case p.next.def == nil:
		return "its file was removed; the plugin is stopped when " + when
	default:
		return fmt.Sprintf("its file changed; the change comes into force when %s; with on_change: restart it does so at once", when)
	}
}

// kindOf is the plugin's type as its file says or, failing that, the plugin.
func kindOf(def *volume.PluginDefinition, info volume.PluginInfo) string {
	switch {
	case def != nil && def.Type != "":
		return def.Type
	case info.HasController && info.HasNode:
		return typeMonolith
	case info.HasController:
		return typeController
	case info.HasNode:
		return typeNode
	default:
		return ""
	}
}

// LogPath returns the file that a plugin writes to. The error wraps
// volume.ErrNotFound if there is no such plugin, and volume.ErrRefused if
// somebody else keeps its log.
func (s *Supervisor) LogPath(id string) (string, error) {
	p := s.find(id)
	if p == nil {
		return "", unknown(id)
	}
	path, ok := p.logPath()
	if ok {
		return path, nil
	}
	if def, _ := p.definition(); def == nil {
		return "", volume.Errorf(volume.ErrRefused, "plugin %q was never started, so it has no log", id).WithHint("volctl plugin status %s", id)
	}
	return "", volume.Errorf(volume.ErrRefused, "plugin %q is run by somebody else, who keeps its log", id).WithHint("volctl plugin status %s", id)
}

// LogTail returns the last n lines that a plugin wrote, without the secrets
// that this agent has given it.
func (s *Supervisor) LogTail(id string, n int) ([]string, error) {
	path, err := s.LogPath(id)
	if err != nil {
		return nil, err
	}
	p := s.find(id)
	if p == nil {
		return nil, unknown(id)
	}
	return tail(path, n, p.hide())
}

// hide returns what takes secrets out of the plugin's words, those included that
// an earlier agent gave it and that are still to be read.
func (p *plugin) hide() func(string) string {
	p.learn.Do(func() {
		if p.s.opts.Known != nil {
			for _, secrets := range p.s.opts.Known(p.id) {
				p.scrub.Add(secrets)
			}
		}
		def, _ := p.definition()
		if def == nil || def.Exec == nil || p.s.opts.Secrets == nil {
			return
		}
		for name, v := range def.Exec.Env {
			if v.Secret == nil {
				continue
			}
			if secret, err := p.s.opts.Secrets.ResolveSecret(context.Background(), *v.Secret); err == nil {
				p.scrub.Add(volume.Secrets{name: secret})
			}
		}
	})
	return p.scrub.Scrub
}

// logPath returns the plugin's log, if it is ours.
func (p *plugin) logPath() (string, bool) {
	def, _ := p.definition()
	if def == nil || def.Socket != "" {
		return "", false
	}
	return p.s.opts.paths(p.id).log, true
}

// tail returns the last lines of the log as far as they can be read.
func (p *plugin) tail(n int) []string {
	path, ok := p.logPath()
	if !ok {
		return nil
	}
	lines, err := tail(path, n, p.hide())
	if err != nil {
		return nil
	}
	return lines
}
