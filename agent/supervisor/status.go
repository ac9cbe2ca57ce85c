package supervisor

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/pluginfile"
	"github.com/volagent/volagent/agent/supervisor/definitions"
	"github.com/volagent/volagent/agent/supervisor/part"
	"github.com/volagent/volagent/volmgr/plugin"
)

// Status describes a plugin, or one part of it, for users.
type Status struct {
	ID       string
	Type     string // node, controller, monolith, or node+controller; empty until the plugin reports it
	Instance string // name of the instance; only a controller has one
	Runner   string // exec, container, unit, socket or builtin; empty if the plugin's file is bad
	File     string // empty for a registered plugin, and for the bundled driver without a file
	State    part.State
	Reason   string
	Since    time.Time
	Next     time.Time // when a plugin in the state backing-off starts again
	Restarts int
	PID      int
	// Registered is set if the definition was registered at run time.
	Registered bool
	// Info is the plugin's last report about itself. It is kept while the plugin is down.
	Info     plugin.Info
	Socket   string
	LogFile  string // empty if the agent does not keep the log
	LastExit string
	LastLog  []string
	Pending  string   // why a changed, removed or bad plugin file is not in force
	Warnings []string // warnings about the running instance
	// Running has the settings of the definition in use. Wanted has those settings of the file that
	// differ. Both use the keys of plugin files; see pluginfile.Settings.
	Running map[string]string
	Wanted  map[string]string

	Nodes, Controllers Count
	// Parts lists the parts of the plugin, usually one. If there are several parts, each element
	// has the values that differ between parts (process, socket, file, log, exit), and the fields
	// above are empty.
	Parts []Status
}

// Count counts the parts that provide a service. A monolith counts once as node and once as
// controller. A part whose type is not known yet counts as a node.
type Count struct{ Healthy, Expected int }

// statuses describes plugins for users.
type statuses struct{ *parts }

// Status returns the status of one plugin.
func (s *statuses) Status(id string) (Status, error) {
	parts := s.of(id)
	if len(parts) == 0 {
		return Status{}, unknown(id)
	}

	freshen(parts)
	return s.whole(id, parts), nil
}

// Statuses returns the status of each plugin, in the order of their ids.
func (s *statuses) Statuses() []Status {
	all := []Status{}
	for _, id := range s.ids() {
		if parts := s.of(id); len(parts) > 0 {
			all = append(all, s.whole(id, parts))
		}
	}

	return all
}

// Parts returns the status of every part of every plugin. It omits the last log lines, so it reads
// no file.
func (s *statuses) Parts() []Status {
	out := []Status{}
	for _, p := range s.all() {
		g := p.look()
		out = append(out, brief(p, &g))
	}

	return out
}

// whole returns the status of a plugin with the status of each part.
func (s *statuses) whole(id string, parts []*supervised) Status {
	var own []Status
	all := glances(parts)
	var nodes, controllers Count
	for i, p := range parts {
		st := brief(p, all[i])
		st.LastLog = p.lastLog(shownLines)
		own = append(own, st)
		ready := 0
		if st.State == part.Ready {
			ready = 1
		}

		if st.Type != part.Controller {
			nodes.Expected, nodes.Healthy = nodes.Expected+1, nodes.Healthy+ready
		}

		if st.Type == part.Controller || st.Type == part.Monolith {
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

// sum combines the statuses of several parts to the status of their plugin.
func (s *statuses) sum(id string, own []Status, all part.Whole) Status {
	now := all.Worst().Status
	st := Status{
		ID: id, State: now.State, Reason: all.Reason(), Since: now.Since, Next: now.Next, Info: all.Merged(id, s.remembered(id).Driver),
	}
	var types, runners, pending []string
	for i, p := range own {
		st.Restarts += p.Restarts
		types, runners = append(types, p.Type), append(runners, p.Runner)
		if p.Pending != "" {
			pending = append(pending, all[i].Name()+": "+p.Pending)
		}

		for _, warning := range p.Warnings {
			st.Warnings = append(st.Warnings, all[i].Name()+": "+warning)
		}
	}

	st.Type, st.Runner, st.Pending = each(types), each(runners), strings.Join(pending, "; ")
	return st
}

// each joins the distinct words with "+", in descending order.
func each(words []string) string {
	slices.SortFunc(words, func(a, b string) int { return cmp.Compare(b, a) })
	return strings.Trim(strings.Join(slices.Compact(words), "+"), "+")
}

// brief returns the status of one part. It omits the last log lines, so it reads no file.
func brief(p *supervised, g *part.Glance) Status {
	st := Status{
		ID: g.ID, Type: g.Kind, Instance: g.Instance(), File: g.File,
		State: g.Status.State, Reason: g.Status.Reason, Since: g.Status.Since, Next: g.Status.Next, Restarts: g.Status.Restarts,
		PID: g.PID, Info: g.Info, LastExit: g.LastExit, Pending: g.Pending(), Warnings: g.Warnings,
	}

	if st.File == definitions.RunTime {
		st.File, st.Registered = "", true
	}

	if def := g.Definition; def != nil {
		st.Runner, st.Running = def.Runner(), pluginfile.Settings(def)
	}

	if g.Change != nil && g.Change.Definition != nil {
		st.Wanted = pluginfile.Differing(g.Definition, g.Change.Definition)
	}

	p.mu.Lock()
	st.Socket = p.traits.Socket
	p.mu.Unlock()

	if log := p.log(); log != nil {
		st.LogFile = log.Path()
	}

	return st
}
