package supervisor

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/csiclient"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// glances returns the state of each part of a plugin.
func glances(parts []*plugin) []*glance {
	all, room := make([]*glance, len(parts)), make([]glance, len(parts))
	for i, p := range parts {
		room[i] = p.look()
		all[i] = &room[i]
	}
	return all
}

// apart reports whether some calls cannot go to a single part: there are several parts, or the only
// part has one service.
func apart(all []*glance) bool { return len(all) > 1 || len(all) == 1 && all[0].half() }

// half reports whether the file says that the part has only one service.
func (g *glance) half() bool { return g.typed && (g.kind == typeNode || g.kind == typeController) }

// View returns a plugin as decisions see it. Its maps and slices are shared and must not be
// changed. View is called again and again for each volume, so plugins with one part take a short
// path.
func (s *Supervisor) View(id string) volume.PluginView {
	parts := s.parts(id)
	switch len(parts) {
	case 0:
		return volume.PluginView{State: string(Stopped), Reason: "no such plugin is configured", Info: s.remembered(id)}
	case 1:
		if g := parts[0].look(); !g.half() {
			return g.view
		}
	}

	return s.together(id, glances(parts))
}

// together returns the view of a plugin whose services are in separate parts.
func (s *Supervisor) together(id string, all []*glance) volume.PluginView {
	g := worst(all)
	v := volume.PluginView{
		NoLog: !slices.ContainsFunc(all, func(g *glance) bool { return !g.view.NoLog }),
		Known: true, State: g.view.State, Reason: g.reason(all), Stopped: g.view.Stopped, Final: g.view.Final, Info: s.merged(id, all),
		Apart: &volume.Apart{Node: service(id, all, typeNode), Controller: service(id, all, typeController)},
	}

	v.Ready = true
	for _, of := range []string{typeNode, typeController} {
		those := serving(all, of)
		v.Ready = v.Ready && (len(those) == 0 || slices.ContainsFunc(those, func(g *glance) bool { return g.view.Ready }))
	}

	for _, g := range all {
		v.Restarts += g.status.restarts
	}

	if nodes := serving(all, typeNode); len(nodes) > 0 {
		v.Incarnation, v.CallTimeout = nodes[0].view.Incarnation, nodes[0].view.CallTimeout
		v.StatsInterval = nodes[0].view.StatsInterval
	}

	for _, g := range serving(all, typeController) {
		v.ControllerTimeout = max(v.ControllerTimeout, g.view.ControllerTimeout)
	}

	return v
}

// serving returns the parts with a service.
func serving(all []*glance, of string) []*glance {
	return slices.DeleteFunc(slices.Clone(all), func(g *glance) bool { return !g.serves(of) })
}

// service returns one service as decisions see it.
func service(id string, all []*glance, of string) volume.Service {
	those := serving(all, of)
	ready := slices.ContainsFunc(those, func(g *glance) bool { return g.view.Ready })
	alive := slices.ContainsFunc(those, func(g *glance) bool { return !g.view.Final })
	s := volume.Service{Ready: ready, Final: len(those) > 0 && !alive, Unasked: len(those) > 0 && !slices.ContainsFunc(those, (*glance).said)}
	if !ready {
		s.Lack = lack(id, those, of)
	}

	return s
}

// lack explains why a service is not ready.
func lack(id string, those []*glance, of string) string {
	switch len(those) {
	case 0:
		return fmt.Sprintf("plugin %q has no %s part", id, of)
	case 1:
		return those[0].p.title() + " is " + those[0].standing()
	}

	how := make([]string, 0, len(those))
	for _, g := range those {
		how = append(how, g.p.name()+" is "+g.standing())
	}

	return fmt.Sprintf("no %s of plugin %q is ready: %s", of, id, strings.Join(how, "; "))
}

// standing describes the state of a part.
func (g *glance) standing() string {
	words := g.view.State
	if g.view.Reason != "" {
		words += ": " + g.view.Reason
	}

	if next := g.status.next; !next.IsZero() {
		words += fmt.Sprintf("; next start in %s", max(0, time.Until(next)).Round(100*time.Millisecond))
	}

	return words
}

// severity orders the states. The last one needs a person most urgently.
var severity = []State{Ready, Starting, Stopped, Unhealthy, BackingOff, Failed}

func (g *glance) severity() int { return slices.Index(severity, g.status.state) }

// worst returns the part that determines the state of the plugin. One ready part is enough for a
// service, so a service is as good as its best part, and a plugin as bad as its worse service. A
// part of unknown type, whose file was never valid, counts as a node part.
func worst(all []*glance) *glance {
	var found []*glance
	for _, of := range []string{typeNode, typeController} {
		those := serving(all, of)
		if of == typeNode {
			those = append(those, serving(all, "")...)
		}

		if len(those) > 0 {
			found = append(found, slices.MinFunc(those, func(a, b *glance) int { return a.severity() - b.severity() }))
		}
	}

	if len(found) == 0 {
		found = all
	}

	return slices.MaxFunc(found, func(a, b *glance) int { return a.severity() - b.severity() })
}

// reason explains the state of the plugin, in the words of the part that determines it. If that
// part is ready, the explanation is that of the part in the worst state.
func (g *glance) reason(all []*glance) string {
	if g.status.state == Ready && g.view.Ready {
		g = slices.MaxFunc(all, func(a, b *glance) int { return a.severity() - b.severity() })
		if g.status.state == Ready {
			return ""
		}
		return g.p.name() + " is " + g.standing()
	}
	if len(all) == 1 {
		return g.view.Reason
	}
	return strings.TrimSuffix(g.p.name()+": "+g.view.Reason, ": ")
}

// merged combines the reports of the parts: the node part's report about the node, and a
// controller's report about the controller, preferably that of a ready one. The files alone can
// tell that the plugin has these services.
func (s *Supervisor) merged(id string, all []*glance) volume.PluginInfo {
	nodes, controllers := serving(all, typeNode), serving(all, typeController)
	slices.SortStableFunc(controllers, func(a, b *glance) int { return a.severity() - b.severity() })
	of := func(those []*glance) volume.PluginInfo {
		for _, g := range those {
			if g.said() {
				return g.view.Info
			}
		}

		return volume.PluginInfo{}
	}

	n, c := of(nodes), of(controllers)
	info := n
	if info.Driver == "" {
		info.Driver, info.Version = c.Driver, c.Version
	}

	if info.Driver == "" {
		info.Driver = s.remembered(id).Driver
	}

	info.ID, info.HasNode, info.HasController = id, len(nodes) > 0, len(controllers) > 0
	info.ControllerCaps = c.ControllerCaps
	info.Caps = c.Caps.WithNode(n.Caps)
	return info
}

// remembered returns the last report of a plugin that is not configured any more.
func (s *Supervisor) remembered(id string) volume.PluginInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.saved[id].Info
}

// Client returns the client of a plugin for calls to its node service or, if it has none, to any
// part. The error wraps volume.ErrPluginUnavailable, or volume.ErrNotFound if there is no such
// plugin. A client serves one incarnation, so callers ask for the client before each call.
func (s *Supervisor) Client(id string) (*csiclient.Client, error) {
	all := glances(s.parts(id))
	if len(all) == 0 {
		return nil, unknown(id)
	}

	those := serving(all, typeNode)
	if !apart(all) || len(those) == 0 {
		those = all
	}

	for _, g := range those {
		if g.view.Ready {
			return g.client, nil
		}
	}

	return nil, unavailable(id, all, those, typeNode)
}

// Controller is the client of a controller for one call.
type Controller struct {
	*csiclient.Client
	// Done must be called with the result of the call.
	Done func(err error)
}

// Controller returns the client of a ready controller, each in turn. A call about a subject (a
// volume, as the plugin knows it) that was given up may still be in progress in the part that
// received it. All later calls about that subject then go to that part. This ends when the part
// answers for the subject or ends, or when the timeout of its calls has passed once more. The
// errors are those of Client.
func (s *Supervisor) Controller(id, subject string) (Controller, error) {
	all := glances(s.parts(id))
	if len(all) == 0 {
		return Controller{}, unknown(id)
	}

	those := serving(all, typeController)
	if !apart(all) {
		those = all
	}

	ready := slices.DeleteFunc(slices.Clone(those), func(g *glance) bool { return !g.view.Ready })
	key := subjectKey{id, subject}
	if g, at := s.busy(key, those); at {
		if !g.view.Ready {
			return Controller{}, volume.Errorf(volume.ErrPluginUnavailable,
				"%s is %s; an earlier call for %q may still be at work there, so no other controller is asked", g.p.title(), g.standing(), subject).
				WithRemedy(remedy.Of(remedy.ShowPlugin, id))
		}

		ready = []*glance{g}
	}

	if len(ready) == 0 {
		return Controller{}, unavailable(id, all, those, typeController)
	}

	s.mu.Lock()
	g := ready[s.turn[id]%uint64(len(ready))]
	s.turn[id]++
	s.mu.Unlock()

	return Controller{g.client, func(err error) { s.answered(key, g, err) }}, nil
}

// subjectKey identifies the subject of a controller call.
type subjectKey struct{ id, subject string }

// given records a controller call that was given up.
type given struct {
	incarnation uint64
	until       time.Time
}

// busy returns the part in which a call may still be in progress.
func (s *Supervisor) busy(key subjectKey, those []*glance) (*glance, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	was, ok := s.given[key]
	if !ok {
		return nil, false
	}

	for _, g := range those {
		if g.p.running(was.incarnation) && time.Now().Before(was.until) {
			return g, true
		}
	}

	delete(s.given, key)
	return nil, false
}

// answered records how a controller call ended.
func (s *Supervisor) answered(key subjectKey, g *glance, err error) {
	var call *volume.CallError
	timeout := csiclient.DefaultControllerTimeout
	if def, _ := g.p.definition(); def != nil {
		timeout = def.ControllerTimeout
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	switch known := errors.As(err, &call); {
	case err != nil && (!known || call.Unsent):
		return // it says nothing about the earlier call
	case err == nil || call.Answered:
		delete(s.given, key)
		return
	}

	for k, was := range s.given {
		if time.Now().After(was.until) {
			delete(s.given, k)
		}
	}

	s.given[key] = given{g.view.Incarnation, time.Now().Add(timeout)}
}

// unavailable returns the error for a service that has no client.
func unavailable(id string, all, those []*glance, of string) error {
	if !apart(all) {
		return all[0].p.unavailable(all[0].view)
	}

	msg := lack(id, those, of)
	for _, g := range those {
		if lines := g.p.tail(errorLines); len(lines) > 0 {
			msg += fmt.Sprintf("; the log of %s ends in %q", g.p.name(), strings.Join(lines, " | "))
		}
	}

	err := volume.Errorf(volume.ErrPluginUnavailable, "%s", msg).WithRemedy(all[0].view.LogRemedy(id))
	every := func(is func(v volume.PluginView) bool) bool {
		return len(those) > 0 && !slices.ContainsFunc(those, func(g *glance) bool { return !is(g.view) })
	}
	switch {
	case every(func(v volume.PluginView) bool { return v.Stopped }):
		return err.WithRemedy(remedy.Of(remedy.StartPlugin, id))
	case every(func(v volume.PluginView) bool { return v.Final }):
		return err.WithRemedy(remedy.Of(remedy.ShowPlugin, id))
	default:
		return err
	}
}
