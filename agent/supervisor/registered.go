package supervisor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/pluginfile"
	"github.com/volagent/volagent/agent/supervisor/definitions"
	"github.com/volagent/volagent/agent/supervisor/part"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// registrations registers and deregisters plugins at run time.
type registrations struct {
	*definitions.Definitions
	*requests
}

// Deregister removes all registrations of a plugin, and ends the plugin's instances. The returned
// function gone waits until the instances have ended. Without force, Deregister returns an error
// while volumes are in use through the plugin. It also returns an error if a file defines the
// plugin.
func (s *registrations) Deregister(ctx context.Context, id string, force bool) (gone func(context.Context) error, err error) {
	var asked time.Time
	var parts []*supervised
	err = s.Definitions.Deregister(id, func(g *definitions.Deregistration) error {
		if err := s.deregisters(id, g.Any(), force, g.Files); err != nil {
			return err
		}

		parts = s.registeredParts(id)
		if g.Any() {
			if err := s.unlessUsed(id, parts, force, func() error { return g.Remove(ctx) }); err != nil {
				return err
			}
		}

		asked = time.Now()
		for _, p := range parts {
			p.setForce(force)
		}

		return nil
	})

	if err != nil {
		return nil, err
	}

	return func(ctx context.Context) error {
		for _, p := range parts {
			if err := s.awaitGone(ctx, p, asked); err != nil {
				return err
			}
		}

		return nil
	}, nil
}

// registeredParts returns the registered parts of a plugin. The result includes parts that were
// deregistered but still run because volumes use them.
func (s *registrations) registeredParts(id string) []*supervised {
	return slices.DeleteFunc(slices.Clone(s.of(id)), func(p *supervised) bool {
		g := p.look()
		return g.File != definitions.RunTime && !g.Leaves()
	})
}

// deregisters returns an error if the plugin was not registered. It also returns an error if a bad
// file would keep the plugin running after the deregistration. With force, it accepts a plugin that
// was already deregistered but still runs because volumes use it.
func (s *registrations) deregisters(id string, registered, force bool, files []definitions.Found) error {
	for _, f := range files {
		// a bad file keeps the earlier definition in force
		if registered && f.ID == id && f.Err != nil {
			return volume.Errorf(volume.ErrRefused, "a file with a mistake also defines plugin %q: %s; fix that file, or remove it", id, f.Err)
		}
	}

	if registered {
		return nil
	}

	filed := func(file string) error {
		return volume.Errorf(volume.ErrRefused, "plugin %q was not registered; to remove it, remove its file %s", id, file)
	}
	for _, f := range files {
		if f.ID == id {
			return filed(f.File)
		}
	}

	for _, p := range s.of(id) {
		g := p.look()
		switch {
		case g.Leaves() && force:
			return nil
		case g.Leaves():
			return volume.Errorf(volume.ErrRefused, "plugin %q was already deregistered, or its file was removed; it ends when no volume is staged through it", id).
				WithHint("%s", suggest.Command("volctl plugin deregister %s --force", id))
		// a bad file in which the agent cannot read the id, so the status shows it under its file
		// name
		case g.File != "":
			return filed(g.File)
		case g.Definition != nil && g.Definition.ID == pluginfile.LocalID:
			return volume.Errorf(volume.ErrRefused, "plugin %q was not registered: it is the bundled driver", id)
		}
	}

	return unknown(id)
}

// unlessUsed calls do, which removes the given parts of a plugin, unless volumes in use need these
// parts. Like ifSpare, it blocks new calls during the check.
func (s *registrations) unlessUsed(id string, parts []*supervised, force bool, do func() error) error {
	used := func() error {
		ids := s.needs(id, parts)
		if force || len(ids) == 0 {
			return nil
		}

		return volume.Errorf(volume.ErrRefused, "plugin %q is in use, by %s; without it they are neither mounted nor unmounted, and %s", id, names(ids), s.breaks(id)).
			WithHint("%s", suggest.Command("volctl plugin deregister %s --force", id))
	}

	if err := used(); err != nil {
		return err
	}

	shut := func() error {
		s.doors.Lock()
		defer s.doors.Unlock()

		block(parts, 1)
		return used()
	}

	err := shut()
	if err == nil {
		err = do()
	}

	block(parts, -1)
	if err != nil || !force && len(s.inUse(id)) > 0 { // the parts keep running
		for _, p := range parts {
			s.notify(p) // a caller that found new calls blocked waits for this notification
		}
	}

	return err
}

// needs returns the ids of the volumes that need the given parts. It returns no ids if the parts
// are only controllers and another controller is ready. Otherwise it returns all volumes in use.
func (s *registrations) needs(id string, parts []*supervised) []string {
	ids := s.inUse(id)
	for _, p := range parts {
		if g := p.look(); g.Kind != part.Controller {
			return ids
		}
	}

	for _, p := range s.of(id) {
		if g := p.look(); !slices.Contains(parts, p) && g.View.Ready && g.Serves(part.Controller) {
			return nil
		}
	}

	return ids
}

// AwaitRegistered waits until a registered plugin is ready and the registered definition is in
// force. It returns at once if the definition waits for volumes, or if an operator stopped the
// plugin. If the plugin does not become ready, the error wraps volume.ErrPluginUnavailable.
func (s *registrations) AwaitRegistered(ctx context.Context, reg definitions.Registration, asked time.Time) error {
	id := reg.ID
	err := s.await(ctx, id, []part.Only{reg.Part}, func(g *part.Glance) (bool, error) {
		now, change := g.Status, g.Change
		switch {
		case g.Wish.Halts():
			return true, nil
		case change != nil:
			return s.used(g) && change.Definition != nil && change.Definition.OnChange != plugin.OnChangeRestart, nil
		case now.State == part.Failed && now.Since.After(asked):
			return false, volume.Errorf(volume.ErrPluginUnavailable, "%s is %s: %s", g.Title(), now.State, now.Reason)
		}

		return now.State == part.Ready && !g.Quiet, nil
	})

	if !errors.Is(err, volume.ErrTimeout) && !errors.Is(err, volume.ErrPluginUnavailable) {
		return err
	}

	return volume.Errorf(volume.ErrPluginUnavailable, "%s; it stays registered", strings.TrimPrefix(err.Error(), "timed out: ")).
		WithRemedy(remedy.Of(remedy.ShowPlugin, id))
}

// used reports whether a part must keep running because volumes use it.
func (s *registrations) used(g *part.Glance) bool {
	for _, p := range s.of(g.ID) {
		if p.slot == g.Slot {
			return len(p.needed()) > 0
		}
	}
	return false
}

// awaitGone waits until a deregistered plugin has no running instance, and no record that would
// start an instance. If a file also defines the plugin, or if it is the bundled driver, awaitGone
// waits until the plugin is ready.
func (s *registrations) awaitGone(ctx context.Context, p *supervised, asked time.Time) error {
	for {
		changed := s.changed(p.id)
		g := p.look()
		switch {
		case !g.Leaves() && g.File == definitions.RunTime:
			return volume.Errorf(volume.ErrRefused, "plugin %q was registered again meanwhile", p.id).WithRemedy(remedy.Of(remedy.ShowPlugin, p.id))
		case g.Change == nil: // a file defines the plugin, or it is the bundled driver
			return s.AwaitStarted(ctx, p.id, asked)
		}

		select {
		case <-p.over:
			if slices.Contains(s.of(p.id), p) {
				return volume.ErrStopping
			}

			return nil

		case <-changed:
			continue
		case <-ctx.Done():
		}

		msg := fmt.Sprintf("timed out: plugin %q is deregistered, and has not ended yet", p.id)
		if ids := p.needed(); len(ids) > 0 {
			msg = fmt.Sprintf("timed out: plugin %q is deregistered, and ends when these volumes no longer use it: %s", p.id, names(ids))
		}

		return volume.Errorf(volume.ErrTimeout, "%s", msg).WithRemedy(remedy.Of(remedy.ShowPlugin, p.id))
	}
}
