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
	ID string
	// node, controller, monolith, or node+controller; empty while the type is unknown
	Type     string
	Instance string // the instance name, which only a controller can have
	// exec, container, unit, socket or builtin; empty if the plugin's file was never valid
	Runner string
	// path of the plugin file; empty for a registered plugin, and for the bundled driver without a
	// file
	File     string
	State    part.State
	Reason   string
	Since    time.Time
	Next     time.Time // when the next start is due, in the state backing-off
	Restarts int
	PID      int
	// Registered is set if the definition was registered at run time.
	Registered bool
	// Info is the plugin's last report about itself. While the plugin is down, it stays as it was.
	Info     plugin.Info
	Socket   string
	LogFile  string // path of the log file; empty if the agent keeps no log of the plugin
	LastExit string
	LastLog  []string
	Pending  string   // the reason why a changed, removed or bad plugin file is not in force
	Warnings []string // warnings about the running instance
	// Running contains the settings of the definition in use. Wanted contains the settings of the
	// file that differ from Running. Both use the keys of plugin files; see pluginfile.Settings.
	Running map[string]string
	Wanted  map[string]string

	Nodes, Controllers Count
	// Parts lists the parts of the plugin. Most plugins have only one part. If there are several,
	// each element contains the values that differ between parts, such as the process, the socket
	// and the log. The fields above are then empty.
	Parts []Status
}

// Count counts the parts that provide a service. A monolith counts for both services. A part whose
// type is unknown counts for the node service.
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

// Statuses returns the status of each plugin, sorted by id.
func (s *statuses) Statuses() []Status {
	all := []Status{}
	for _, id := range s.ids() {
		if parts := s.of(id); len(parts) > 0 {
			all = append(all, s.whole(id, parts))
		}
	}

	return all
}

// Disabled is the state of a part whose file has enabled: false. The supervisor does not know such a
// part otherwise, so no part changes to this state or leaves it.
const Disabled part.State = "disabled"

// Disabled returns the plugin files that have enabled: false, as parts in the state Disabled.
func (s *registrations) Disabled() []Status {
	var all []Status
	for _, f := range s.Definitions.Disabled() {
		d := f.Definition
		all = append(all, Status{
			ID: f.ID, Type: d.Type, Instance: d.Instance, Runner: d.Runner(), File: f.File,
			State: Disabled, Reason: "its file " + f.File + " has enabled: false",
		})
	}

	return all
}

// Parts returns the status of every part of every plugin. It omits the last lines of the logs, so
// it reads no files.
func (s *statuses) Parts() []Status {
	out := []Status{}
	for _, p := range s.all() {
		g := p.look()
		out = append(out, brief(p, &g))
	}

	return out
}

// whole returns the status of a plugin, including the status of each part.
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

// sum combines the statuses of several parts into the status of their plugin.
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

// each sorts the given words in descending order, removes duplicates, and joins the words with "+".
func each(words []string) string {
	slices.SortFunc(words, func(a, b string) int { return cmp.Compare(b, a) })
	return strings.Trim(strings.Join(slices.Compact(words), "+"), "+")
}

// brief returns the status of one part. It omits the last lines of the log, so it reads no file.
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
