package part

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/volagent/volagent/volmgr/plugin"
)

// Whole is a snapshot of all parts of one plugin, with the node part first.
type Whole []*Glance

// Apart reports whether the plugin's services are in separate parts. This is so if the plugin has
// several parts, or if its only part provides only one of the two services.
func (all Whole) Apart() bool { return len(all) > 1 || len(all) == 1 && all[0].Half() }

// View returns the view of a plugin whose services are in separate parts. The agent bases its
// decisions on this view. The argument driver is the last known driver of the plugin.
func (all Whole) View(id, driver string) plugin.View {
	g := all.Worst()
	v := plugin.View{
		NoLog: !slices.ContainsFunc(all, func(g *Glance) bool { return !g.View.NoLog }),
		Known: true, State: g.View.State, Reason: all.Reason(), Stopped: g.View.Stopped, Final: g.View.Final, Info: all.Merged(id, driver),
		Apart: &plugin.Apart{Node: all.service(id, Node), Controller: all.service(id, Controller)},
	}

	v.Ready = true
	for _, of := range []string{Node, Controller} {
		those := all.Serving(of)
		v.Ready = v.Ready && (len(those) == 0 || slices.ContainsFunc(those, func(g *Glance) bool { return g.View.Ready }))
	}

	for _, g := range all {
		v.Restarts += g.Status.Restarts
		v.Scope = cmp.Or(v.Scope, g.View.Scope)
		v.Fence = v.Fence.Stricter(g.View.Fence)
	}

	if nodes := all.Serving(Node); len(nodes) > 0 {
		v.Incarnation, v.CallTimeout = nodes[0].View.Incarnation, nodes[0].View.CallTimeout
		v.StatsInterval = nodes[0].View.StatsInterval
	}

	for _, g := range all.Serving(Controller) {
		v.ControllerTimeout = max(v.ControllerTimeout, g.View.ControllerTimeout)
	}

	return v
}

// Serving returns the parts that provide the given service.
func (all Whole) Serving(of string) Whole {
	return slices.DeleteFunc(slices.Clone(all), func(g *Glance) bool { return !g.Serves(of) })
}

// service returns the view of one service. The agent bases its decisions on this view.
func (all Whole) service(id, of string) plugin.Service {
	those := all.Serving(of)
	ready := slices.ContainsFunc(those, func(g *Glance) bool { return g.View.Ready })
	alive := slices.ContainsFunc(those, func(g *Glance) bool { return !g.View.Final })
	s := plugin.Service{Ready: ready, Final: len(those) > 0 && !alive, Unasked: len(those) > 0 && !slices.ContainsFunc(those, (*Glance).said)}
	if !ready {
		s.Lack = those.Lack(id, of)
	}

	return s
}

// Lack explains why a service is not ready.
func (all Whole) Lack(id, of string) string {
	switch len(all) {
	case 0:
		return fmt.Sprintf("plugin %q has no %s part", id, of)
	case 1:
		return all[0].Title() + " is " + all[0].Standing()
	}

	how := make([]string, 0, len(all))
	for _, g := range all {
		how = append(how, g.Name()+" is "+g.Standing())
	}

	return fmt.Sprintf("no %s of plugin %q is ready: %s", of, id, strings.Join(how, "; "))
}

// Worst returns the part that determines the state of the plugin. A service needs only one ready
// part, so the best part of each service counts. The plugin needs both services, so the worse of
// the two services counts. A part whose type is unknown, because its file was never valid, counts
// as a node part.
func (all Whole) Worst() *Glance {
	var found Whole
	for _, of := range []string{Node, Controller} {
		those := all.Serving(of)
		if of == Node {
			those = append(those, all.Serving("")...)
		}

		if len(those) > 0 {
			found = append(found, slices.MinFunc(those, func(a, b *Glance) int { return a.severity() - b.severity() }))
		}
	}

	if len(found) == 0 {
		found = all
	}

	return slices.MaxFunc(found, func(a, b *Glance) int { return a.severity() - b.severity() })
}

// Reason returns the reason for the state of the plugin. If the plugin is ready although one of its
// parts is not, Reason describes the part with the worst state.
func (all Whole) Reason() string {
	g := all.Worst()
	if g.Status.State == Ready && g.View.Ready {
		g = slices.MaxFunc(all, func(a, b *Glance) int { return a.severity() - b.severity() })
		if g.Status.State == Ready {
			return ""
		}
		return g.Name() + " is " + g.Standing()
	}
	if len(all) == 1 {
		return g.View.Reason
	}
	return strings.TrimSuffix(g.Name()+": "+g.View.Reason, ": ")
}

// Merged combines the reports of all parts. It takes the data about the node from the node part,
// and the data about the controller from a controller, preferably a ready one. Before the first
// report, the plugin files show which services the plugin has.
func (all Whole) Merged(id, driver string) plugin.Info {
	nodes, controllers := all.Serving(Node), all.Serving(Controller)
	slices.SortStableFunc(controllers, func(a, b *Glance) int { return a.severity() - b.severity() })
	of := func(those Whole) plugin.Info {
		for _, g := range those {
			if g.said() {
				return g.View.Info
			}
		}

		return plugin.Info{}
	}

	n, c := of(nodes), of(controllers)
	info := n
	if info.Driver == "" {
		info.Driver, info.Version = c.Driver, c.Version
	}

	info.Driver = cmp.Or(info.Driver, driver)
	info.ID, info.HasNode, info.HasController = id, len(nodes) > 0, len(controllers) > 0
	info.ControllerCaps = c.ControllerCaps
	info.Caps = c.Caps.WithNode(n.Caps)
	return info
}
