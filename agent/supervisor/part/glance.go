package part

import (
	"fmt"
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/csiclient"
	"github.com/volagent/volagent/volmgr/plugin"
)

// Glance is a snapshot of the state of one part of a plugin.
type Glance struct {
	ID      string // id of the plugin
	Slot    string
	Several bool // whether the plugin has other parts
	Kind    string
	View    plugin.View
	Status  Status
	Client  *csiclient.Client // nil if the part has no client
	Quiet   bool              // no new call may start, because the part is about to be stopped

	Desired
	Actual
}

// Look computes the fields Kind and View from the other fields. The argument open is false while
// new calls are blocked. The argument foreign is true if another program runs the part and keeps
// its log.
func (g *Glance) Look(open, foreign bool) {
	now, def := g.Status, g.Definition
	g.Kind = Kind(def, g.Info)
	g.View = plugin.View{
		Known:       true,
		Ready:       now.State == Ready && g.Client != nil && open && g.Wish == Run,
		State:       string(now.State),
		Reason:      now.Reason,
		NoLog:       foreign,
		Stopped:     g.Wish.Halts(),
		Final:       g.Wish.Halts() || now.State == Failed && !g.Retry && g.Wish != Restart,
		Incarnation: g.Incarnation,
		Restarts:    now.Restarts,
		Info:        g.Info,
	}

	if def != nil {
		g.View.CallTimeout, g.View.ControllerTimeout = def.NodeTimeout, def.ControllerTimeout
		g.View.StatsInterval, g.View.Scope, g.View.Fence = def.StatsInterval, def.Scope, def.Fence
		if def.Builtin != "" {
			g.View.Scope = plugin.ScopeHost
		}
	}

	if now.State == Ready && !g.View.Ready {
		g.View.Reason = "is about to be stopped"
	}
}

// Instance returns the part's instance name. It is empty if the part is the only one of its type.
func (g *Glance) Instance() string {
	if g.Definition == nil {
		return ""
	}
	return g.Definition.Instance
}

// Name returns the name that distinguishes the part from the plugin's other parts.
func (g *Glance) Name() string { return Name(g.Kind, g.Instance()) }

// Title returns the part's name for use in a sentence: `plugin "ebs"`, or `the node part of plugin
// "ebs"`.
func (g *Glance) Title() string {
	whole := fmt.Sprintf("plugin %q", g.ID)
	switch instance := g.Instance(); {
	case !g.Several:
		return whole
	case g.Kind == Controller && instance != "":
		return fmt.Sprintf("controller %q of %s", instance, whole)
	case g.Kind == "":
		return "a part of " + whole
	case g.Kind == Controller:
		return "the controller of " + whole
	default:
		return "the " + g.Kind + " part of " + whole
	}
}

// Serves reports whether the part provides a service. A service has the same name as the type of
// part that provides it.
func (g *Glance) Serves(service string) bool { return g.Kind == service || g.Kind == Monolith }

// Running reports whether the instance with the given incarnation number is still running.
func (g *Glance) Running(incarnation uint64) bool { return g.Up && g.Incarnation == incarnation }

// Standing describes the state of the part, the reason for the state, and the time of the next
// start.
func (g *Glance) Standing() string {
	words := g.View.State
	if g.View.Reason != "" {
		words += ": " + g.View.Reason
	}

	if next := g.Status.Next; !next.IsZero() {
		words += fmt.Sprintf("; next start in %s", max(0, time.Until(next)).Round(100*time.Millisecond))
	}

	return words
}

// Pending describes the change of the plugin's file that is not in force yet.
func (g *Glance) Pending() string {
	when := "nothing is staged through the plugin any more"
	if g.Kind == Controller {
		when = "another controller is ready, or no volume of the plugin is on this host any more"
	}

	what := "file"
	if g.Definition != nil && g.Definition.Registered {
		what = "registration"
	}

	switch {
	case g.Definition == nil:
		return "" // the state "failed" already has a reason that explains the change
	case g.Fault != nil:
		return fmt.Sprintf("its file cannot be used, the definition before it stays in force: %s", g.Fault)
	case g.Change == nil:
		return ""
	case g.Leaves() && what == "registration":
		return "it was deregistered; the plugin is stopped when " + when
	case g.Leaves():
		return "its file was removed or disabled; the plugin is stopped when " + when
	default:
		return fmt.Sprintf("its %s changed; the change comes into force when %s; with on_change: restart it does so at once", what, when)
	}
}

// Half reports whether the part's file states that the part provides only one of the two services.
func (g *Glance) Half() bool {
	return g.Definition != nil && g.Definition.Type != "" && (g.Kind == Node || g.Kind == Controller)
}

// said reports whether the part has ever reported its services.
func (g *Glance) said() bool { return g.View.Info.HasNode || g.View.Info.HasController }

// severity lists the states of a part. The later a state is in the list, the more urgently it needs
// an operator.
var severity = []State{Ready, Starting, Stopped, Unhealthy, BackingOff, Failed}

func (g *Glance) severity() int { return slices.Index(severity, g.Status.State) }
