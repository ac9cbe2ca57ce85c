package part

import (
	"cmp"
	"strings"

	"github.com/volagent/volagent/agent/pluginfile"
	"github.com/volagent/volagent/volmgr/plugin"
)

// A plugin consists of one or more parts: at most one node part, and any number of controllers.
// Each part has its own file, process, state and record.
//
// The slot is the key of a part. It identifies the part's record and directories. If the part is
// the node part, or the only part of the plugin, its slot is the plugin's id. Each additional
// controller has its own slot.

// These are the types of parts. A monolith is both a node part and a controller.
const (
	Node       = pluginfile.TypeNode
	Controller = pluginfile.TypeController
	Monolith   = pluginfile.TypeMonolith
)

// Slot returns the key of an additional controller. Plugin ids contain no slash, so the key differs
// from every plugin id.
func Slot(id, instance string) string {
	if instance == "" {
		return id + "/" + Controller
	}
	return id + "/" + Controller + "/" + instance
}

// Kind returns the type of a part. It uses the type that the part's file states. If the file states
// no type, Kind uses the services that the plugin has reported. The result is empty if the plugin
// has not reported any.
func Kind(def *plugin.Definition, info plugin.Info) string {
	switch {
	case def != nil && def.Type != "":
		return def.Type
	case info.HasController && info.HasNode:
		return Monolith
	case info.HasController:
		return Controller
	case info.HasNode:
		return Node
	default:
		return ""
	}
}

// Name returns the name that distinguishes a part from the plugin's other parts, such as `node` or
// `controller a`.
func Name(kind, instance string) string {
	return cmp.Or(strings.TrimSuffix(kind+" "+instance, " "), "one of no known type")
}

// Only limits a request to some parts of a plugin. An empty field matches every part.
type Only struct {
	Type     string // Node, Controller or Monolith
	Instance string
}

// Includes reports whether a request applies to a part with the given type and instance name.
func (o Only) Includes(kind, instance string) bool {
	return (o.Type == "" || o.Type == kind) && (o.Instance == "" || o.Instance == instance)
}

// Narrow adds flags to a command line, so that the command applies only to the selected parts.
func (o Only) Narrow(command string, args []any) (string, []any) {
	if o.Type != "" {
		command, args = command+" --type %s", append(args, o.Type)
	}

	if o.Instance != "" {
		command, args = command+" --instance %s", append(args, o.Instance)
	}

	return command, args
}
