package supervisor

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/volagent/volagent/agent/supervisor/part"
	"github.com/volagent/volagent/volmgr/csiclient"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// clients provides the views and the clients of plugins to the rest of the agent.
type clients struct {
	*parts

	mu    sync.Mutex
	turn  map[string]uint64    // the number of controller calls so far, by plugin id
	given map[subjectKey]given // the abandoned calls that a controller may still be processing
}

func newClients(all *parts) *clients {
	return &clients{parts: all, turn: map[string]uint64{}, given: map[subjectKey]given{}}
}

// Changed returns a channel that is closed when the state of a plugin changes next. To miss no
// change, a caller first gets the channel, then checks the state, and then waits.
func (s *clients) Changed(id string) <-chan struct{} { return s.changed(id) }

// Released reports that a volume is no longer staged through a plugin. If it was the last such
// volume, a changed definition that was waiting may come into force.
func (s *clients) Released(id string) {
	for _, p := range s.of(id) {
		if p.waits() {
			p.poke()
		}
	}
}

// View returns the view of a plugin. The agent bases its decisions on this view. Callers share its
// maps and slices and must not change them. View is called often for each volume, so there is a
// faster way for plugins with only one part.
func (s *clients) View(id string) plugin.View {
	parts := s.of(id)
	if len(parts) == 0 {
		return plugin.View{State: string(part.Stopped), Reason: "no such plugin is configured", Info: s.remembered(id)}
	}

	if len(parts) == 1 {
		if g := parts[0].look(); !g.Half() {
			return g.View
		}
	}

	return glances(parts).View(id, s.remembered(id).Driver)
}

// Client returns a client for calls to a plugin's node service. If the plugin has no node service,
// the client is connected to any part of the plugin. The error wraps volume.ErrPluginUnavailable,
// or volume.ErrNotFound if there is no such plugin. A client serves only one incarnation of the
// plugin, so callers get a new client before each call.
func (s *clients) Client(id string) (*csiclient.Client, error) {
	parts := s.of(id)
	all := glances(parts)
	if len(all) == 0 {
		return nil, unknown(id)
	}

	those := all.Serving(part.Node)
	if !all.Apart() || len(those) == 0 {
		those = all
	}

	for _, g := range those {
		if g.View.Ready {
			return g.Client, nil
		}
	}

	return nil, unavailable(parts, all, those, part.Node)
}

// Controller is a client that makes one call to a controller.
type Controller struct {
	*csiclient.Client
	// Done records the result of the call. The caller must call Done after the call.
	Done func(err error)
}

// Controller returns a client of a ready controller, and uses the controllers in turn. The argument
// subject is the plugin's own id of a volume.
//
// If the agent has abandoned a call about the subject, a controller may still be processing the
// call. All later calls about this subject then go to the same controller. This ends when the
// controller answers a call about the subject, when the controller ends, or when another call
// timeout has passed. Controller returns the same errors as Client.
func (s *clients) Controller(id, subject string) (Controller, error) {
	parts := s.of(id)
	all := glances(parts)
	if len(all) == 0 {
		return Controller{}, unknown(id)
	}

	those := all.Serving(part.Controller)
	if !all.Apart() {
		those = all
	}

	ready := slices.DeleteFunc(slices.Clone(those), func(g *part.Glance) bool { return !g.View.Ready })
	key := subjectKey{id, subject}
	if g, at := s.busy(key, those); at {
		if !g.View.Ready {
			return Controller{}, volume.Errorf(volume.ErrPluginUnavailable,
				"%s is %s; an earlier call for %q may still be at work there, so no other controller is asked", g.Title(), g.Standing(), subject).
				WithRemedy(remedy.Of(remedy.ShowPlugin, id))
		}

		ready = part.Whole{g}
	}

	if len(ready) == 0 {
		return Controller{}, unavailable(parts, all, those, part.Controller)
	}

	s.mu.Lock()
	g := ready[s.turn[id]%uint64(len(ready))]
	s.turn[id]++
	s.mu.Unlock()

	return Controller{g.Client, func(err error) { s.answered(key, g, err) }}, nil
}

// subjectKey identifies the subject of a controller call: a plugin's id, and the plugin's own id of
// a volume.
type subjectKey struct{ id, subject string }

// given describes a controller call that the agent has abandoned.
type given struct {
	incarnation uint64
	until       time.Time
}

// busy returns the part that may still be processing an abandoned call about the subject.
func (s *clients) busy(key subjectKey, those part.Whole) (*part.Glance, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	was, ok := s.given[key]
	if !ok {
		return nil, false
	}

	for _, g := range those {
		if g.Running(was.incarnation) && time.Now().Before(was.until) {
			return g, true
		}
	}

	delete(s.given, key)
	return nil, false
}

// answered records the result of a controller call.
func (s *clients) answered(key subjectKey, g *part.Glance, err error) {
	var call *volume.CallError
	timeout := csiclient.DefaultControllerTimeout
	if g.Definition != nil {
		timeout = g.Definition.ControllerTimeout
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	switch known := errors.As(err, &call); {
	case err != nil && (!known || call.Unsent):
		return // the call was not sent, so an earlier abandoned call may still be running
	case err == nil || call.Answered:
		delete(s.given, key)
		return
	}

	for k, was := range s.given {
		if time.Now().After(was.until) {
			delete(s.given, k)
		}
	}

	s.given[key] = given{g.View.Incarnation, time.Now().Add(timeout)}
}

// unavailable returns the error for a service that has no client.
func unavailable(parts []*supervised, all, those part.Whole, of string) error {
	id := all[0].ID
	if !all.Apart() {
		return unavailablePart(parts[0], all[0])
	}

	msg := those.Lack(id, of)
	for _, g := range those {
		p := parts[slices.Index(all, g)]
		if lines := p.lastLog(errorLines); len(lines) > 0 {
			msg += fmt.Sprintf("; the log of %s ends in %q", g.Name(), strings.Join(lines, " | "))
		}
	}

	err := volume.Errorf(volume.ErrPluginUnavailable, "%s", msg).WithRemedy(all[0].View.LogRemedy(id))
	every := func(is func(v plugin.View) bool) bool {
		return len(those) > 0 && !slices.ContainsFunc(those, func(g *part.Glance) bool { return !is(g.View) })
	}
	switch {
	case every(func(v plugin.View) bool { return v.Stopped }):
		return err.WithRemedy(remedy.Of(remedy.StartPlugin, id))
	case every(func(v plugin.View) bool { return v.Final }):
		return err.WithRemedy(remedy.Of(remedy.ShowPlugin, id))
	default:
		return err
	}
}

// unavailablePart returns the error for a plugin whose only part has no client.
func unavailablePart(p *supervised, g *part.Glance) error {
	v, msg := g.View, fmt.Sprintf("plugin %q is %s", p.id, g.Standing())
	if v.Final {
		return volume.Errorf(volume.ErrPluginUnavailable, "%s", msg).WithRemedy(v.Remedy(p.id))
	}
	if lines := p.lastLog(errorLines); len(lines) > 0 {
		msg += fmt.Sprintf("; its log ends in %q", strings.Join(lines, " | "))
	}

	return volume.Errorf(volume.ErrPluginUnavailable, "%s", msg).WithRemedy(v.LogRemedy(p.id))
}
