package supervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/pluginfile"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// Registry keeps the definitions that were registered at run time.
type Registry interface {
	// LoadRegistered returns all of the definitions.
	LoadRegistered() ([]volume.PluginDefinition, error)
	// Register stores a definition, and replaces the one with the same id, type and instance.
	// Either the definition is on disk when Register returns, or nothing has changed.
	Register(ctx context.Context, def volume.PluginDefinition) error
	// Deregister removes definitions, with the same guarantee.
	Deregister(ctx context.Context, defs []volume.PluginDefinition) error
}

// registeredFile is used in place of a file's path for a definition that was registered at run
// time.
const registeredFile = "a registration"

// The outcomes of Register.
const (
	Registered = "registered"
	Updated    = "updated"
	Unchanged  = "unchanged"
)

// Registration describes the definition that Register received, as far as it is known, and the
// outcome.
type Registration struct {
	ID      string
	Outcome string
	Part    Only // the part of the plugin
}

// samePart reports whether two definitions describe the same part of the same plugin.
func samePart(a, b *volume.PluginDefinition) bool {
	return a.ID == b.ID && a.Type == b.Type && a.Instance == b.Instance
}

// loadRegistered loads the definitions that earlier agents registered. The caller holds s.reload.
func (s *Supervisor) loadRegistered() error {
	if s.opts.Registry == nil {
		return nil
	}

	defs, err := s.opts.Registry.LoadRegistered()
	if err != nil {
		return fmt.Errorf("cannot load the registered plugins: %w", err)
	}

	for i := range defs {
		s.registered = append(s.registered, &defs[i])
	}

	return nil
}

// sources returns all definitions: first the registered ones, then those of the files.
func (s *Supervisor) sources(registered []*volume.PluginDefinition, files []found) []found {
	registered = slices.SortedFunc(slices.Values(registered), func(a, b *volume.PluginDefinition) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Type, b.Type), cmp.Compare(a.Instance, b.Instance))
	})
	all := make([]found, 0, len(registered)+len(files))
	for _, def := range registered {
		all = append(all, found{want{id: def.ID, def: def, file: registeredFile}})
	}

	return append(all, files...)
}

// take makes the plugins follow their files and the registrations. The caller holds s.reload.
func (s *Supervisor) take(files []found) {
	s.taken = files
	wants := s.wants(s.sources(s.registered, files), s.held())
	s.mu.Lock()
	defer s.mu.Unlock()

	for slot, p := range s.plugins {
		if _, still := wants[slot]; !still {
			p.propose(want{})
		}
	}

	for _, slot := range sortedIDs(wants) {
		w := wants[slot]
		if p, known := s.plugins[slot]; known {
			p.propose(w)
		} else {
			s.add(slot, w)
		}
	}

	// A part that was in use and has no file any more may still run, and hold volumes.
	for _, slot := range sortedIDs(s.saved) {
		if _, known := s.plugins[slot]; !known && s.saved[slot].Definition != nil {
			s.add(slot, want{id: s.saved[slot].Of()})
		}
	}
}

// Register registers the text of a plugin file, and keeps it across restarts of the agent. Errors
// use name for the text. If the same definition is already registered, nothing changes, but a
// plugin that failed is tried again. A changed definition comes into force like a changed file.
func (s *Supervisor) Register(ctx context.Context, name string, text []byte) (reg Registration, err error) {
	if len(text) > maxFile {
		return reg, volume.Errorf(volume.ErrInvalid, "%s has more than %d bytes", name, maxFile)
	}

	id, def, err := pluginfile.Parse(name, text)
	if reg.ID = id; err != nil {
		return reg, volume.Errorf(volume.ErrInvalid, "%s", err)
	}

	reg.Part = Only{Type: def.Type, Instance: def.Instance}
	s.reload.Lock()
	defer s.reload.Unlock()

	files, err := s.onDisk()
	if err != nil {
		return reg, err
	}

	outcome, others := Registered, []*volume.PluginDefinition{}
	for _, d := range s.registered {
		switch {
		case !samePart(d, def):
			others = append(others, d)
		case d.Equal(def):
			outcome = Unchanged
		default:
			outcome = Updated
		}
	}

	if err := s.admit(name, def, others, files); err != nil {
		return reg, err
	}

	def.File, def.Registered = "", true
	if outcome != Unchanged {
		// If the caller goes away meanwhile, disk and memory must still agree.
		if err := s.opts.Registry.Register(context.WithoutCancel(ctx), *def); err != nil {
			return reg, err
		}

		s.registered = append(others, def)
	}

	s.take(files)
	reg.Outcome = outcome
	return reg, nil
}

// onDisk reads the current plugin files. The caller holds s.reload.
func (s *Supervisor) onDisk() ([]found, error) {
	if !s.isLoaded() || s.opts.Registry == nil {
		return nil, volume.Errorf(volume.ErrRefused, "this agent has not read its plugins yet")
	}
	return readFiles(s.opts.PluginDir)
}

// admit returns an error if a definition cannot be registered beside the others and the files.
func (s *Supervisor) admit(name string, def *volume.PluginDefinition, others []*volume.PluginDefinition, files []found) error {
	for _, f := range files {
		switch {
		case f.id != def.ID || f.def != nil && !samePart(f.def, def):
		case f.err != nil:
			return volume.Errorf(volume.ErrRefused, "plugin %q stands in a file, with a mistake in it: %s; fix that file, or remove it and register the plugin again", def.ID, f.err)
		default:
			return volume.Errorf(volume.ErrRefused, "plugin %q is defined in %s; change that file, or remove it and register the plugin again", def.ID, f.file)
		}
	}

	trial := found{want{id: def.ID, def: def, file: name}}
	wants := s.wants(append(s.sources(others, files), trial), s.held())
	for _, w := range wants {
		if w.def == def {
			return nil
		}
	}

	for _, w := range wants {
		if w.file == name && w.err != nil {
			return volume.Errorf(volume.ErrRefused, "%s", w.err)
		}
	}

	return nil
}

// Deregister removes all registrations of a plugin, and ends its instances. The returned function
// gone waits for their end. Deregister is refused while volumes are in use through the plugin,
// unless forced. It is also refused for a plugin that is defined in a file.
func (s *Supervisor) Deregister(ctx context.Context, id string, force bool) (gone func(context.Context) error, err error) {
	s.reload.Lock()
	defer s.reload.Unlock()

	files, err := s.onDisk()
	if err != nil {
		return nil, err
	}

	var drop []volume.PluginDefinition
	var stay []*volume.PluginDefinition
	for _, d := range s.registered {
		if d.ID == id {
			drop = append(drop, *d)
		} else {
			stay = append(stay, d)
		}
	}

	if err := s.deregisters(id, len(drop) > 0, force, files); err != nil {
		return nil, err
	}

	parts := s.registeredParts(id)
	if len(drop) > 0 {
		// If the caller goes away meanwhile, disk and memory must still agree.
		forget := func() error { return s.opts.Registry.Deregister(context.WithoutCancel(ctx), drop) }
		if err := s.unlessUsed(id, parts, force, forget); err != nil {
			return nil, err
		}

		s.registered = stay
	}

	asked := time.Now()
	for _, p := range parts {
		p.mu.Lock()
		p.force = force
		p.mu.Unlock()
	}

	s.take(files)
	return func(ctx context.Context) error {
		for _, p := range parts {
			if err := s.awaitGone(ctx, p, asked); err != nil {
				return err
			}
		}

		return nil
	}, nil
}

// registeredParts returns the registered parts of a plugin. They include parts that were
// deregistered and keep running because volumes use them.
func (s *Supervisor) registeredParts(id string) []*plugin {
	return slices.DeleteFunc(slices.Clone(s.parts(id)), func(p *plugin) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.file != registeredFile && !p.isLeaving()
	})
}

// isLeaving reports whether the part is about to be removed. The caller holds p.mu.
func (p *plugin) isLeaving() bool { return p.next != nil && p.next.def == nil }

// deregisters refuses a plugin that was not registered, or that would keep running because of a
// file with a mistake. A plugin that was deregistered and still runs because of its volumes can be
// forced to end.
func (s *Supervisor) deregisters(id string, registered, force bool, files []found) error {
	for _, f := range files {
		if registered && f.id == id && f.err != nil { // the file would keep the earlier definition in force
			return volume.Errorf(volume.ErrRefused, "plugin %q stands in a file too, with a mistake in it: %s; fix that file, or remove it", id, f.err)
		}
	}

	if registered {
		return nil
	}

	filed := func(file string) error {
		return volume.Errorf(volume.ErrRefused, "plugin %q was not registered, it stands in %s: remove that file", id, file)
	}
	for _, f := range files {
		if f.id == id {
			return filed(f.file)
		}
	}

	for _, p := range s.parts(id) {
		p.mu.Lock()
		leaving, def, file := p.isLeaving(), p.def, p.file
		p.mu.Unlock()
		switch {
		case leaving && force:
			return nil
		case leaving:
			return volume.Errorf(volume.ErrRefused, "plugin %q is deregistered, or its file was removed, already; it ends when nothing is staged through it any more", id).
				WithHint("%s", suggest.Command("volctl plugin deregister %s --force", id))
		case file != "": // a file shown under its name, because it has no id or another id
			return filed(file)
		case def != nil && def.ID == pluginfile.LocalID:
			return volume.Errorf(volume.ErrRefused, "plugin %q was not registered: it exists by itself", id)
		}
	}

	return unknown(id)
}

// unlessUsed calls do, which takes some parts away from a plugin's volumes, unless volumes in use
// need these parts. It blocks new calls meanwhile, as in ifSpare.
func (s *Supervisor) unlessUsed(id string, parts []*plugin, force bool, do func() error) error {
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

		ask(parts, 1)
		return used()
	}

	err := shut()
	if err == nil {
		err = do()
	}

	ask(parts, -1)
	if err != nil || !force && len(s.inUse(id)) > 0 { // the parts keep running
		for _, p := range parts {
			s.notify(p) // a waiter may have seen the plugin blocked
		}
	}

	return err
}

// needs names the volumes that need any of the parts. These are all volumes in use, unless the
// parts are controllers and another controller is ready.
func (s *Supervisor) needs(id string, parts []*plugin) []string {
	ids := s.inUse(id)
	for _, p := range parts {
		if kind, _ := p.which(); kind != typeController {
			return ids
		}
	}

	for _, p := range s.parts(id) {
		if l := p.look(); !slices.Contains(parts, p) && l.view.Ready && l.serves(typeController) {
			return nil
		}
	}

	return ids
}

// AwaitRegistered waits until a registered plugin is ready with the registered definition in force.
// It does not wait for a change that waits for volumes, nor for a plugin that was stopped on
// purpose. If the plugin does not become ready, for any reason, the error wraps
// volume.ErrPluginUnavailable.
func (s *Supervisor) AwaitRegistered(ctx context.Context, reg Registration, asked time.Time) error {
	id := reg.ID
	err := s.await(ctx, id, []Only{reg.Part}, func(p *plugin) (bool, error) {
		used, title := len(p.inUse()) > 0, p.title()
		p.mu.Lock()
		defer p.mu.Unlock()

		now := p.m.snapshot()
		switch {
		case p.halt:
			return true, nil
		case p.next != nil:
			return used && p.next.def != nil && p.next.def.OnChange != volume.OnChangeRestart, nil
		case now.state == Failed && now.since.After(asked):
			return false, volume.Errorf(volume.ErrPluginUnavailable, "%s is %s: %s", title, now.state, now.reason)
		}

		return now.state == Ready && !p.quiet, nil
	})

	if !errors.Is(err, volume.ErrTimeout) && !errors.Is(err, volume.ErrPluginUnavailable) {
		return err
	}

	return volume.Errorf(volume.ErrPluginUnavailable, "%s; it stays registered", strings.TrimPrefix(err.Error(), "timed out: ")).
		WithRemedy(remedy.Of(remedy.ShowPlugin, id))
}

// awaitGone waits until no instance of a deregistered plugin runs, and no record would start one.
// If the plugin is also defined without a registration, awaitGone waits until that plugin is ready.
func (s *Supervisor) awaitGone(ctx context.Context, p *plugin, asked time.Time) error {
	for {
		changed := s.Changed(p.id)
		p.mu.Lock()
		settled, gone, file := p.next == nil, p.next != nil && p.next.def == nil, p.file
		p.mu.Unlock()

		switch {
		case !gone && file == registeredFile:
			return volume.Errorf(volume.ErrRefused, "plugin %q was registered again meanwhile", p.id).WithRemedy(remedy.Of(remedy.ShowPlugin, p.id))
		case settled: // a file defines it, or it is the bundled driver
			return s.AwaitStarted(ctx, p.id, asked)
		}

		select {
		case <-p.over:
			if slices.Contains(s.parts(p.id), p) {
				return volume.ErrStopping
			}

			return nil

		case <-changed:
			continue
		case <-ctx.Done():
		}

		msg := fmt.Sprintf("timed out: plugin %q is deregistered, and has not ended yet", p.id)
		if ids := p.inUse(); len(ids) > 0 {
			msg = fmt.Sprintf("timed out: plugin %q is deregistered, and ends when it is not in use any more, by %s", p.id, names(ids))
		}

		return volume.Errorf(volume.ErrTimeout, "%s", msg).WithRemedy(remedy.Of(remedy.ShowPlugin, p.id))
	}
}
