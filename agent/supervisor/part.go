package supervisor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/volagent/volagent/agent/pluginfile"
	"github.com/volagent/volagent/volmgr/csiclient"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// A plugin id stands for one part or for several: at most one node part, and any number of
// controllers. Each part has its own file, process, state and record. Type plugin is one such part.
//
// The slot is the key of a part: of its record, and of its directories. The slot of the node part,
// or of a plugin's only part, is the plugin's id. A controller beside others has a slot of its own.

// Types of parts.
const (
	typeNode       = pluginfile.TypeNode
	typeController = pluginfile.TypeController
	typeMonolith   = pluginfile.TypeMonolith
)

// slotOf returns the slot of a controller beside others. Plugin ids contain no slash, so the slot
// differs from every id.
func slotOf(id, instance string) string {
	if instance == "" {
		return id + "/" + typeController
	}
	return id + "/" + typeController + "/" + instance
}

// slots assigns slots to the valid files of one plugin. A controller that was the only part keeps
// the plugin's slot, and with it its process, until a node part needs that slot. A controller that
// has its own slot keeps it. The argument held has the definitions in use.
func slots(files []found, held map[string]*volume.PluginDefinition) map[string]found {
	out := map[string]found{}
	node := slices.ContainsFunc(files, func(f found) bool { return f.def.Type != typeController })
	for _, f := range files {
		own := slotOf(f.id, f.def.Instance)
		first, whole := held[f.id]
		_, apart := held[own]
		switch {
		case f.def.Type != typeController:
			out[f.id] = f
		case node || apart:
			out[own] = f
		case whole && first.Type == typeController && first.Instance == f.def.Instance, len(files) == 1:
			out[f.id] = f
		default:
			out[own] = f
		}
	}

	return out
}

// besides returns an error if a file cannot be used beside the earlier files of the same plugin.
func besides(f found, others []found) error {
	for _, o := range others {
		switch a, b := f.def, o.def; {
		case samePart(a, b) && o.file == registeredFile:
			return fmt.Errorf("%s: plugin %q is registered at run time; deregister it first: %s", f.file, f.id, suggest.Command("volctl plugin deregister %s", f.id))
		case samePart(a, b):
			return fmt.Errorf("%s: plugin %q with the same type and instance is defined in %s already", f.file, f.id, o.file)
		case a.Type == "":
			return fmt.Errorf("%s: plugin %q is defined in %s already; several parts of one plugin need a type each: node or controller", f.file, f.id, o.file)
		case b.Type == "":
			return fmt.Errorf("%s: plugin %q is defined in %s already, without a type; several parts of one plugin need a type each: node or controller", f.file, f.id, o.file)
		case a.Type == typeMonolith || b.Type == typeMonolith:
			return fmt.Errorf("%s: plugin %q is defined in %s already; a monolith is node and controller in one, and has no other parts", f.file, f.id, o.file)
		case a.Type == typeNode && b.Type == typeNode:
			return fmt.Errorf("%s: plugin %q has its node part in %s already; there is one on a host", f.file, f.id, o.file)
		}
	}

	return nil
}

// Only limits a request to some parts of a plugin. An empty field does not limit it.
type Only struct {
	Type     string // node, controller or monolith
	Instance string
}

// parts returns the parts of a plugin, the node part first.
func (s *Supervisor) parts(id string) []*plugin {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byID[id]
}

// index updates the list of a plugin's parts. The caller holds s.mu. A slice that parts returned
// never changes.
func (s *Supervisor) index(id string) {
	var all []*plugin
	for _, p := range s.plugins {
		if p.id == id {
			all = append(all, p)
		}
	}

	slices.SortFunc(all, func(a, b *plugin) int { return cmp.Compare(a.slot, b.slot) })
	if s.byID[id] = all; len(all) == 0 {
		delete(s.byID, id)
	}
}

// selected returns the parts of a plugin that a request addresses. The error wraps
// volume.ErrNotFound if there are none.
func (s *Supervisor) selected(id string, only []Only) ([]*plugin, error) {
	all := s.parts(id)
	if len(all) == 0 {
		return nil, unknown(id)
	}

	parts := slices.DeleteFunc(slices.Clone(all), func(p *plugin) bool {
		kind, instance := p.which()
		return slices.ContainsFunc(only, func(o Only) bool {
			return o.Type != "" && o.Type != kind || o.Instance != "" && o.Instance != instance
		})
	})

	if len(parts) > 0 {
		return parts, nil
	}

	var have []string
	for _, p := range all {
		have = append(have, p.name())
	}

	return nil, volume.Errorf(volume.ErrNotFound, "plugin %q has no such part; it has %s", id, strings.Join(have, ", ")).
		WithRemedy(remedy.Of(remedy.ShowPlugin, id))
}

// which returns the part's type and instance. The type comes from the file or, if the file states
// none, from the plugin.
func (p *plugin) which() (kind, instance string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.kind(), p.instance()
}

// kind returns the part's type. The caller holds p.mu.
func (p *plugin) kind() string { return kindOf(p.def, p.rec.Info) }

// instance returns the part's instance. The caller holds p.mu.
func (p *plugin) instance() string {
	if p.def == nil {
		return ""
	}
	return p.def.Instance
}

// name returns the name of the part among the plugin's parts: `node`, `controller a`.
func (p *plugin) name() string {
	kind, instance := p.which()
	return cmp.Or(strings.TrimSuffix(kind+" "+instance, " "), "one of no known type")
}

// title names the part in a sentence: `plugin "ebs"`, or `the node part of plugin "ebs"`.
func (p *plugin) title() string {
	whole := fmt.Sprintf("plugin %q", p.id)
	if len(p.s.parts(p.id)) < 2 {
		return whole
	}

	switch kind, instance := p.which(); {
	case kind == typeController && instance != "":
		return fmt.Sprintf("controller %q of %s", instance, whole)
	case kind == "":
		return "a part of " + whole
	case kind == typeController:
		return "the controller of " + whole
	default:
		return "the " + kind + " part of " + whole
	}
}

// narrow adds the flags that limit a command to the same parts.
func (o Only) narrow(command string, args []any) (string, []any) {
	if o.Type != "" {
		command, args = command+" --type %s", append(args, o.Type)
	}

	if o.Instance != "" {
		command, args = command+" --instance %s", append(args, o.Instance)
	}

	return command, args
}

// inUse names the volumes that prevent a stop of the part. Mounts may live in the process of a part
// that serves the node. A controller holds no mounts: volumes need it only while no other
// controller is ready.
func (p *plugin) inUse() []string {
	ids := p.s.inUse(p.id)
	if kind, _ := p.which(); len(ids) == 0 || kind != typeController {
		return ids
	}

	for _, other := range p.s.parts(p.id) {
		if l := other.look(); other != p && l.view.Ready && l.serves(typeController) {
			return nil
		}
	}

	return ids
}

// shut blocks new calls if no volume is in use then, and reports whether it did. Only one part does
// this at a time, so that two controllers cannot rely on each other.
func (p *plugin) shut() bool {
	p.s.doors.Lock()
	defer p.s.doors.Unlock()

	p.setQuiet(true)
	if len(p.inUse()) == 0 {
		return true
	}

	p.setQuiet(false)
	return false
}

// holds reports whether mounts may live in the part's process.
func (p *plugin) holds() bool {
	kind, _ := p.which()
	return kind != typeController && len(p.s.inUse(p.id)) > 0
}

// glance is the state of a part at one moment.
type glance struct {
	p      *plugin
	kind   string
	typed  bool // the file states the type
	view   volume.PluginView
	status status
	client *csiclient.Client
}

// serves reports whether the part has a service, which is named by its type.
func (g *glance) serves(service string) bool { return g.kind == service || g.kind == typeMonolith }

// said reports whether the part has ever reported its services.
func (g *glance) said() bool { return g.view.Info.HasNode || g.view.Info.HasController }

// other returns the driver that a part conflicts with: the driver of another part, or this part's
// earlier driver. It returns an empty driver if there is no conflict, and then records driver for
// the part. A controller beside others may change its driver, because the other parts determine the
// driver of the plugin.
func (s *Supervisor) other(p *plugin, driver string) (was, who string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	p.mu.Lock()
	mine := p.rec.Info.Driver
	p.mu.Unlock()

	binds := p.slot == p.id || len(s.byID[p.id]) == 1
	switch first := s.saved[p.id].Info.Driver; {
	case binds && mine != "" && mine != driver:
		return mine, ""
	case s.plugins[p.id] == nil && first != "" && first != driver:
		return first, ""
	}

	for _, o := range s.byID[p.id] {
		if o == p {
			continue
		}

		o.mu.Lock()
		theirs, name := o.rec.Info.Driver, strings.TrimSuffix(o.kind()+" "+o.instance(), " ")
		o.mu.Unlock()
		if theirs != "" && theirs != driver {
			return theirs, name
		}
	}

	p.mu.Lock()
	p.rec.Info.Driver = driver
	p.mu.Unlock()
	if mine != "" && mine != driver {
		for _, o := range s.byID[p.id] { // the driver of a refused part may be right now
			o.retry()
		}
	}

	return "", ""
}

// retry makes a part that failed, or that waits for a retry, try again at once.
func (p *plugin) retry() {
	p.mu.Lock()
	p.kick = true
	p.mu.Unlock()
	p.poke()
}
