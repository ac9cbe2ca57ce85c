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
	"github.com/volagent/volagent/volmgr/volume"
)

// Registry keeps the definitions that were registered at run time.
type Registry interface {
	// LoadRegistered returns all of them.
	LoadRegistered() ([]volume.PluginDefinition, error)
	// Register stores one, in place of one with its id, type and instance. It is on
	// disk when that returns, or not at all.
	Register(ctx context.Context, def volume.PluginDefinition) error
	// Deregister forgets some, likewise.
	Deregister(ctx context.Context, defs []volume.PluginDefinition) error
}

// registeredFile stands in place of a file's path where a definition was
// registered.
const registeredFile = "a registration"

// What Register made of a definition.
const (
	Registered = "registered"
	Updated    = "updated"
	Unchanged  = "unchanged"
)

// Registration is what Register was given, as far as that is known.
type Registration struct {
	ID      string
	Outcome string
	Part    Only // of the plugin
}

// samePart reports whether two definitions are of one part of one plugin.
func samePart(a, b *volume.PluginDefinition) bool {
	return a.ID == b.ID && a.Type == b.Type && a.Instance == b.Instance
}

// loadRegistered takes up what an earlier agent was told; s.reload is held.
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

// sources are all definitions: those that were registered, which come first, and
// those of the files.
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

// take has the plugins follow their files, and what is registered; s.reload is
// held.
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
	// What was in use and has no file any more: it may still run, and hold
	// volumes.
	for _, slot := range sortedIDs(s.saved) {
		if _, known := s.plugins[slot]; !known && s.saved[slot].Definition != nil {
			s.add(slot, want{id: s.saved[slot].Of()})
		}
	}
}

// Register takes in the text of a plugin file, and keeps it over a restart of the
// agent. Name is what errors call the text. Where the same is registered already
// nothing changes, but that a plugin which failed is tried again. A changed
// definition comes into force as one in a file does.
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
		// Who goes away meanwhile must not leave disk and memory at odds.
		if err := s.opts.Registry.Register(context.WithoutCancel(ctx), *def); err != nil {
			return reg, err
		}
		s.registered = append(others, def)
	}
	s.take(files)
	reg.Outcome = outcome
	return reg, nil
}

// onDisk are the plugin files as they are now; s.reload is held.
func (s *Supervisor) onDisk() ([]found, error) {
	if !s.isLoaded() || s.opts.Registry == nil {
		return nil, volume.Errorf(volume.ErrRefused, "this agent has not read its plugins yet")
	}
	return readFiles(s.opts.PluginDir)
}

// admit says why a definition cannot be registered beside the others and the
// files.
func (s *Supervisor) admit(name string, def *volume.PluginDefinition, others []*volume.PluginDefinition, files []found) error {
	for _, f := range files {
		switch {
		case f.id != def.ID || f.def != nil && !samePart(f.def, def):
		case f.err != nil:
			return volume.Errorf(volume.ErrRefused, "plugin %q stands in a file, with a mistake in it: %s; mend that file, or remove it and register the plugin again", def.ID, f.err)
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

// Deregister forgets all that was registered of a plugin, and ends what runs of
// it, which gone waits for. It is refused while volumes are in use through the
// plugin, unless forced, and for a plugin that stands in a file.
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
		// Who goes away meanwhile must not leave disk and memory at odds.
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

// registeredParts are the parts of a plugin that were registered, those included
// that go on under their volumes after that was taken back.
func (s *Supervisor) registeredParts(id string) []*plugin {
	return slices.DeleteFunc(slices.Clone(s.parts(id)), func(p *plugin) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.file != registeredFile && !p.isLeaving()
	})
}

// isLeaving reports whether the part is to be no more; p.mu is held.
func (p *plugin) isLeaving() bool { return p.next != nil && p.next.def == nil }

// deregisters refuses what was not registered, or would go on because of a file
// with a mistake. What was, and goes on under its
// volumes, can still be forced to end.
func (s *Supervisor) deregisters(id string, registered, force bool, files []found) error {
	for _, f := range files {
		if registered && f.id == id && f.err != nil { // it would keep in force what was before it
			return volume.Errorf(volume.ErrRefused, "plugin %q stands in a file too, with a mistake in it: %s; mend that file, or remove it", id, f.err)
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
				WithHint("volctl plugin deregister %s --force", id)
		case file != "": // under its name, because it has no id or not this one
			return filed(file)
		case def != nil && def.ID == pluginfile.LocalID:
			return volume.Errorf(volume.ErrRefused, "plugin %q was not registered: it exists by itself", id)
		}
	}
	return unknown(id)
}

// unlessUsed does what leaves a plugin's volumes without some of its parts, if
// there are none in use that need them. The door is closed meanwhile, as in
// ifSpare.
func (s *Supervisor) unlessUsed(id string, parts []*plugin, force bool, do func() error) error {
	used := func() error {
		ids := s.needs(id, parts)
		if force || len(ids) == 0 {
			return nil
		}
		return volume.Errorf(volume.ErrRefused, "plugin %q is in use, by %s; without it they are neither mounted nor unmounted, and %s", id, names(ids), s.breaks(id)).
			WithHint("volctl plugin deregister %s --force", id)
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
	if err != nil || !force && len(s.inUse(id)) > 0 { // the parts go on
		for _, p := range parts {
			s.notify(p) // somebody may have seen the door closed, and wait
		}
	}
	return err
}

// needs names the volumes that need any of the parts: all that are in use, unless
// the parts are controllers, and another one is ready.
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

// AwaitRegistered waits until a plugin that was registered is ready, with what was
// registered in force. A change that waits for volumes to leave is not waited for,
// nor one of a plugin that was stopped on purpose. That it did not become ready
// is an error of its own kind, whatever the reason.
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
		WithHint("volctl plugin status %s", id)
}

// awaitGone waits until nothing runs any more of a plugin that was deregistered,
// and nothing is remembered that would start it. One that is there without a
// registration too is ready then.
func (s *Supervisor) awaitGone(ctx context.Context, p *plugin, asked time.Time) error {
	for {
		changed := s.Changed(p.id)
		p.mu.Lock()
		settled, gone, file := p.next == nil, p.next != nil && p.next.def == nil, p.file
		p.mu.Unlock()
		switch {
		case !gone && file == registeredFile:
			return volume.Errorf(volume.ErrRefused, "plugin %q was registered again meanwhile", p.id).WithHint("volctl plugin status %s", p.id)
		case settled: // a file has it, or it exists by itself
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
		return volume.Errorf(volume.ErrTimeout, "%s", msg).WithHint("volctl plugin status %s", p.id)
	}
}
