package definitions

import (
	"cmp"
	"context"
	"slices"

	"github.com/volagent/volagent/agent/pluginfile"
	"github.com/volagent/volagent/agent/supervisor/part"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// These are the outcomes of Register.
const (
	Registered = "registered"
	Updated    = "updated"
	Unchanged  = "unchanged"
)

// Registration describes the definition that was passed to Register, as far as the agent could read
// the definition. It also contains the outcome.
type Registration struct {
	ID      string
	Outcome string
	Part    part.Only // the part of the plugin that the definition describes
}

// sources returns the registered definitions, followed by the definitions in the files.
func sources(registered []*plugin.Definition, files []Found) []Found {
	registered = slices.SortedFunc(slices.Values(registered), func(a, b *plugin.Definition) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Type, b.Type), cmp.Compare(a.Instance, b.Instance))
	})
	all := make([]Found, 0, len(registered)+len(files))
	for _, def := range registered {
		all = append(all, Found{Want{ID: def.ID, Definition: def, File: RunTime}})
	}

	return append(all, files...)
}

// Register registers the text of a plugin file. It stores the definition, so that the next agent
// has it, too. In error messages, the text is called name. If the same definition is already
// registered, Register only restarts a failed plugin. A changed definition comes into force in the
// same way as a changed file.
func (d *Definitions) Register(ctx context.Context, name string, text []byte) (reg Registration, err error) {
	if len(text) > maxFile {
		return reg, volume.Errorf(volume.ErrInvalid, "%s has more than %d bytes", name, maxFile)
	}

	id, def, err := pluginfile.Parse(name, text)
	if reg.ID = id; err != nil {
		return reg, volume.Errorf(volume.ErrInvalid, "%s", err)
	}

	if def.Disabled {
		return reg, volume.Errorf(volume.ErrRefused, "%s has enabled: false; enable it first", name)
	}

	reg.Part = part.Only{Type: def.Type, Instance: def.Instance}
	d.mu.Lock()
	defer d.mu.Unlock()

	files, err := d.onDisk()
	if err != nil {
		return reg, err
	}

	outcome, others := Registered, []*plugin.Definition{}
	for _, o := range d.registered {
		switch {
		case !samePart(o, def):
			others = append(others, o)
		case o.Equal(def):
			outcome = Unchanged
		default:
			outcome = Updated
		}
	}

	if err := d.admit(name, def, others, files); err != nil {
		return reg, err
	}

	def.File, def.Registered = "", true
	if outcome != Unchanged {
		// Even if the caller cancels the call, the registration must be completed both in the
		// database and in memory.
		if err := d.opts.Registry.Register(context.WithoutCancel(ctx), *def); err != nil {
			return reg, err
		}

		d.registered = append(others, def)
	}

	d.follow(files)
	reg.Outcome = outcome
	return reg, nil
}

// onDisk reads the current plugin files. The caller holds d.mu.
func (d *Definitions) onDisk() ([]Found, error) {
	if !d.loaded || d.opts.Registry == nil {
		return nil, volume.Errorf(volume.ErrRefused, "this agent has not read its plugins yet")
	}
	return readFiles(d.opts.Dir)
}

// admit returns an error if a definition conflicts with another registered definition or with a
// file.
func (d *Definitions) admit(name string, def *plugin.Definition, others []*plugin.Definition, files []Found) error {
	files = enabled(files)
	for _, f := range files {
		switch {
		case f.ID != def.ID || f.Definition != nil && !samePart(f.Definition, def):
		case f.Err != nil:
			return volume.Errorf(volume.ErrRefused, "a file with a mistake defines plugin %q: %s; fix that file, or remove it and register the plugin again", def.ID, f.Err)
		default:
			return volume.Errorf(volume.ErrRefused, "plugin %q is defined in %s; change that file, or remove it and register the plugin again", def.ID, f.File)
		}
	}

	trial := Found{Want{ID: def.ID, Definition: def, File: name}}
	wants := d.opts.Rules.wants(append(sources(others, files), trial), d.opts.Parts.Held())
	for _, w := range wants {
		if w.Definition == def {
			return nil
		}
	}

	for _, w := range wants {
		if w.File == name && w.Err != nil {
			return volume.Errorf(volume.ErrRefused, "%s", w.Err)
		}
	}

	return nil
}

// Deregistration removes all registrations of one plugin.
type Deregistration struct {
	Files []Found // the current plugin files

	d    *Definitions
	drop []plugin.Definition
	stay []*plugin.Definition
}

// Any reports whether the plugin has any registration.
func (g *Deregistration) Any() bool { return len(g.drop) > 0 }

// Remove deletes the registrations. When it returns nil, the deletion is on disk. If it returns an
// error, nothing has changed.
func (g *Deregistration) Remove(ctx context.Context) error {
	// Even if the caller cancels the call, the removal must be completed both in the database and
	// in memory.
	if err := g.d.opts.Registry.Deregister(context.WithoutCancel(ctx), g.drop); err != nil {
		return err
	}

	g.d.registered = g.stay
	return nil
}

// Deregister calls the function do with a Deregistration. If do succeeds, the parts follow the
// definitions that remain. No definition can change until Deregister returns.
func (d *Definitions) Deregister(id string, do func(g *Deregistration) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()

	files, err := d.onDisk()
	if err != nil {
		return err
	}

	g := &Deregistration{Files: enabled(files), d: d}
	for _, def := range d.registered {
		if def.ID == id {
			g.drop = append(g.drop, *def)
		} else {
			g.stay = append(g.stay, def)
		}
	}

	if err := do(g); err != nil {
		return err
	}

	d.follow(files)
	return nil
}
