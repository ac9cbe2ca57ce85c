package supervisor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/pluginfile"
	"github.com/volagent/volagent/volmgr/volume"
)

// Status describes a plugin, or one part of it, for people.
type Status struct {
	ID       string
	Type     string // node, controller, monolith, or node+controller; empty until the plugin reports it
	Instance string // of a controller
	Runner   string // exec, container, unit, socket, builtin; empty if the plugin's file is bad
	File     string // empty for the bundled driver without a file, and for a registered plugin
	State    State
	Reason   string
	Since    time.Time
	Next     time.Time // when a plugin in the state backing-off is started again
	Restarts int
	PID      int
	// Registered is set if the definition was registered at run time.
	Registered bool
	// Info is the plugin's last report about itself. It stays while the plugin is down.
	Info     volume.PluginInfo
	Socket   string
	LogFile  string // empty if the agent does not keep the log
	LastExit string
	LastLog  []string
	Pending  string   // why a changed, removed or bad plugin file is not in force
	Warnings []string // about the instance that runs
	// Running is the definition in use, and Wanted the different values in the file. Both use the
	// keys of plugin files; see pluginfile.Settings.
	Running map[string]string
	Wanted  map[string]string

	Nodes, Controllers Count
	// Parts lists the parts of the plugin, mostly one. If there are several, the values of a single
	// part (process, socket, file, log, exit) are here and not above.
	Parts []Status
}

// Count counts the parts that provide a service. A part that is both node and controller counts as
// each. A part whose type is not known yet counts as a node.
type Count struct{ Healthy, Expected int }

// Status returns the status of one plugin.
func (s *Supervisor) Status(id string) (Status, error) {
	parts := s.parts(id)
	if len(parts) == 0 {
		return Status{}, unknown(id)
	}

	freshen(parts)
	return s.whole(id, parts), nil
}

// Statuses returns the status of each plugin, in the order of their ids.
func (s *Supervisor) Statuses() []Status {
	s.mu.Lock()
	ids := sortedIDs(s.byID)
	s.mu.Unlock()

	all := make([]Status, 0, len(ids))
	for _, id := range ids {
		if parts := s.parts(id); len(parts) > 0 {
			all = append(all, s.whole(id, parts))
		}
	}

	return all
}

// Parts returns all parts of all plugins, without the last lines of their logs. It therefore reads
// no files.
func (s *Supervisor) Parts() []Status {
	s.mu.Lock()
	all := make([]*plugin, 0, len(s.plugins))
	for _, slot := range sortedIDs(s.plugins) {
		all = append(all, s.plugins[slot])
	}

	s.mu.Unlock()

	out := make([]Status, 0, len(all))
	for _, p := range all {
		out = append(out, p.brief())
	}

	return out
}

// whole returns the status of a plugin with its parts.
func (s *Supervisor) whole(id string, parts []*plugin) Status {
	var own []Status
	all := glances(parts)
	var nodes, controllers Count
	for _, p := range parts {
		st := p.state()
		own = append(own, st)
		ready := 0
		if st.State == Ready {
			ready = 1
		}

		if st.Type != typeController {
			nodes.Expected, nodes.Healthy = nodes.Expected+1, nodes.Healthy+ready
		}

		if st.Type == typeController || st.Type == typeMonolith {
			controllers.Expected, controllers.Healthy = controllers.Expected+1, controllers.Healthy+ready
		}
	}

	st := own[0]
	if len(own) > 1 {
		st = s.sum(id, own, all)
	}

	st.Nodes, st.Controllers, st.Parts = nodes, controllers, own
	return st
}

// sum returns the status of a plugin with several parts.
func (s *Supervisor) sum(id string, own []Status, all []*glance) Status {
	g := worst(all)
	st := Status{
		ID: id, State: g.status.state, Reason: g.reason(all), Since: g.status.since, Next: g.status.next, Info: s.merged(id, all),
	}
	var types, runners, pending []string
	for i, p := range own {
		st.Restarts += p.Restarts
		types, runners = append(types, p.Type), append(runners, p.Runner)
		if p.Pending != "" {
			pending = append(pending, all[i].p.name()+": "+p.Pending)
		}

		for _, warning := range p.Warnings {
			st.Warnings = append(st.Warnings, all[i].p.name()+": "+warning)
		}
	}

	st.Type, st.Runner, st.Pending = each(types), each(runners), strings.Join(pending, "; ")
	return st
}

// each joins words with "+", each word once, in descending order.
func each(words []string) string {
	slices.SortFunc(words, func(a, b string) int { return cmp.Compare(b, a) })
	return strings.Trim(strings.Join(slices.Compact(words), "+"), "+")
}

// state returns the status of one part.
func (p *plugin) state() Status {
	st := p.brief()
	st.LastLog = p.tail(shownLines)
	return st
}

// brief returns state without the last lines of the log. It reads no file.
func (p *plugin) brief() Status {
	p.mu.Lock()
	now := p.m.snapshot() // with p.mu held, so that all values are of one moment
	st := Status{
		ID: p.id, Type: p.kind(), Instance: p.instance(), File: p.file,
		State: now.state, Reason: now.reason, Since: now.since, Next: now.next, Restarts: now.restarts,
		PID: p.pid, Info: p.rec.Info, LastExit: p.lastExit, Pending: p.pending(), Warnings: p.warnings,
	}

	if st.File == registeredFile {
		st.File, st.Registered = "", true
	}

	def, next, traits := p.def, p.next, p.traits
	p.mu.Unlock()
	if def != nil {
		st.Runner, st.Running = def.Runner(), pluginfile.Settings(def)
		st.Socket = traits.Socket
	}

	if next != nil && next.def != nil {
		st.Wanted = pluginfile.Differing(def, next.def)
	}

	if traits.Log != nil {
		st.LogFile = traits.Log.Path()
	}

	return st
}

// pending says which change of the plugin's file is not in force. The caller holds p.mu.
func (p *plugin) pending() string {
	when := "nothing is staged through the plugin any more"
	if p.kind() == typeController {
		when = "another controller is ready, or no volume of the plugin is on this host any more"
	}

	what := "file"
	if p.def != nil && p.def.Registered {
		what = "registration"
	}

	switch {
	case p.def == nil:
		return "" // the state is failed, and its reason says why
	case p.fault != nil:
		return fmt.Sprintf("its file cannot be used, the definition before it stays in force: %s", p.fault)
	case p.next == nil:
		return ""
	case p.next.def == nil && what == "registration":
		return "it was deregistered; the plugin is stopped when " + when
	case p.next.def == nil:
		return "its file was removed; the plugin is stopped when " + when
	default:
		return fmt.Sprintf("its %s changed; the change comes into force when %s; with on_change: restart it does so at once", what, when)
	}
}

// kindOf returns the plugin's type from its file or, if the file states none, from the plugin's
// report.
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
