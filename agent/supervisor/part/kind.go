package part

import (
	"cmp"
	"strings"

	"github.com/volagent/volagent/agent/pluginfile"
	"github.com/volagent/volagent/volmgr/plugin"
)

// A plugin id stands for one or more parts: at most one node part, and any number of controllers.
// Each part has its own file, process, state and record.
//
// The slot is the key of a part's record and of its directories. The slot of a node part, or of a
// plugin's only part, is the plugin's id. An additional controller has its own slot.

// These are the types of parts. A monolith is both node part and controller.
const (
	Node       = pluginfile.TypeNode
	Controller = pluginfile.TypeController
	Monolith   = pluginfile.TypeMonolith
)

// Slot returns the slot of an additional controller. Plugin ids contain no slash, so the slot
// differs from every id.
func Slot(id, instance string) string {
	if instance == "" {
		return id + "/" + Controller
	}
	return id + "/" + Controller + "/" + instance
}

// Kind returns the type of a part. It uses the type in the part's file. If the file states no type,
// it uses the report of the plugin. The result is empty if neither is known.
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

// Name returns the name that distinguishes a part from the plugin's other parts: `node`,
// `controller a`.
func Name(kind, instance string) string {
	return cmp.Or(strings.TrimSuffix(kind+" "+instance, " "), "one of no known type")
}

// Only limits a request to some parts of a plugin. An empty field matches every part.
type Only struct {
	Type     string // Node, Controller or Monolith
	Instance string
}

// Includes reports whether a request applies to a part.
func (o Only) Includes(kind, instance string) bool {
	return (o.Type == "" || o.Type == kind) && (o.Instance == "" || o.Instance == instance)
}

// Narrow adds the flags to a command that limit it to the same parts.
func (o Only) Narrow(command string, args []any) (string, []any) {
	if o.Type != "" {
		command, args = command+" --type %s", append(args, o.Type)
	}

	if o.Instance != "" {
		command, args = command+" --instance %s", append(args, o.Instance)
	}

	return command, args
}
