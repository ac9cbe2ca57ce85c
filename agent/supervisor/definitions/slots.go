package definitions

import (
	"fmt"
	"slices"

	"github.com/volagent/volagent/agent/supervisor/part"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/suggest"
)

// slots assigns a slot, which is the key of a part, to each valid file of one plugin. If the plugin
// has only a controller, the controller uses the plugin's own slot. It keeps this slot, and
// therefore its process, until a node part needs the slot. A controller that has an additional slot
// keeps this slot. The argument held contains the definitions in use.
func slots(files []Found, held map[string]*plugin.Definition) map[string]Found {
	out := map[string]Found{}
	node := slices.ContainsFunc(files, func(f Found) bool { return f.Definition.Type != part.Controller })
	for _, f := range files {
		own := part.Slot(f.ID, f.Definition.Instance)
		first, whole := held[f.ID]
		_, apart := held[own]
		switch {
		case f.Definition.Type != part.Controller:
			out[f.ID] = f
		case node || apart:
			out[own] = f
		case whole && first.Type == part.Controller && first.Instance == f.Definition.Instance, len(files) == 1:
			out[f.ID] = f
		default:
			out[own] = f
		}
	}

	return out
}

// besides returns an error if a file conflicts with an earlier file of the same plugin.
func besides(f Found, others []Found) error {
	for _, o := range others {
		switch a, b := f.Definition, o.Definition; {
		case samePart(a, b) && o.File == RunTime:
			return fmt.Errorf("%s: plugin %q is registered at run time; deregister it first: %s", f.File, f.ID, suggest.Command("volctl plugin deregister %s", f.ID))
		case samePart(a, b):
			return fmt.Errorf("%s: plugin %q with the same type and instance is defined in %s already", f.File, f.ID, o.File)
		case a.Type == "":
			return fmt.Errorf("%s: plugin %q is defined in %s already; several parts of one plugin need a type each: node or controller", f.File, f.ID, o.File)
		case b.Type == "":
			return fmt.Errorf("%s: plugin %q is defined in %s already, without a type; several parts of one plugin need a type each: node or controller", f.File, f.ID, o.File)
		case a.Type == part.Monolith || b.Type == part.Monolith:
			return fmt.Errorf("%s: plugin %q is defined in %s already; a monolith is node and controller in one, and has no other parts", f.File, f.ID, o.File)
		case a.Type == part.Node && b.Type == part.Node:
			return fmt.Errorf("%s: plugin %q has its node part in %s already; there is one on a host", f.File, f.ID, o.File)
		}
	}

	return nil
}

// samePart reports whether two definitions describe the same part of the same plugin.
func samePart(a, b *plugin.Definition) bool {
	return a.ID == b.ID && a.Type == b.Type && a.Instance == b.Instance
}
