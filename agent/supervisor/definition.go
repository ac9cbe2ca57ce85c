package supervisor

import (
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/volagent/volagent/volmgr/csiclient"
	"github.com/volagent/volagent/volmgr/volume"
)

// localID is the plugin that exists without a file, and the one builtin.
const localID = "local"

// Plugin types.
const (
	typeNode       = "node"
	typeController = "controller"
	typeMonolith   = "monolith"
)

// maxInFlight bounds max_in_flight.
const maxInFlight = 10000

// defaults is a definition with everything that a file may leave out.
func defaults() *volume.PluginDefinition {
	return &volume.PluginDefinition{
		ProbeInterval:     30 * time.Second,
		ProbeTimeout:      csiclient.DefaultProbeTimeout,
		StartTimeout:      30 * time.Second,
		NodeTimeout:       csiclient.DefaultNodeTimeout,
		ControllerTimeout: csiclient.DefaultControllerTimeout,
		MaxInFlight:       csiclient.DefaultMaxInFlight,
		OnChange:          volume.OnChangePending,
	}
}

// localDefinition is the plugin that exists without a file.
func localDefinition() *volume.PluginDefinition {
	d := defaults()
	d.ID, d.Builtin = localID, localID
	return d
}

// parse reads a plugin file. The id is returned whenever it could be read, so
// that an error can be shown under it.
func parse(file string, data []byte) (id string, def *volume.PluginDefinition, err error) {
	r := reader{file: file}
	root, err := r.document(data)
	if err != nil {
		return "", nil, err
	}
	id = findID(root)
	d := defaults()
	d.File = file
	runners := map[string]*yaml.Node{}
	if err := r.mapping(root, "a plugin file", r.topLevel(d, runners)); err != nil {
		return id, nil, err
	}
	if d.ID == "" {
		return "", nil, r.errorf(root, "the plugin has no id")
	}
	if err := volume.CheckPluginID(d.ID); err != nil {
		return "", nil, r.errorf(root, "%s", err)
	}
	if err := r.oneRunner(root, runners); err != nil {
		return id, nil, err
	}
	return id, d, nil
}

// findID returns the id of a file that may be wrong in any other way.
func findID(root *yaml.Node) string {
	if root.Kind != yaml.MappingNode {
		return ""
	}
	for i := 0; i+1 < len(root.Content); i += 2 {
		if id := root.Content[i+1].Value; root.Content[i].Value == "id" && volume.CheckPluginID(id) == nil {
			return id
		}
	}
	return ""
}

// topLevel are the keys of a plugin file.
func (r reader) topLevel(d *volume.PluginDefinition, runners map[string]*yaml.Node) fields {
	runner := func(name string, read func(*yaml.Node) error) func(*yaml.Node) error {
		return func(n *yaml.Node) error {
			runners[name] = n
			return read(n)
		}
	}
	unsupported := func(name string) func(*yaml.Node) error {
		return runner(name, func(n *yaml.Node) error {
			return r.errorf(n, "%q is not supported by this release; use exec, socket or builtin", name)
		})
	}
	return fields{
		"id":        r.text("id", &d.ID),
		"type":      r.oneOf("type", &d.Type, "", typeNode, typeController, typeMonolith),
		"instance":  r.text("instance", &d.Instance),
		"exec":      runner("exec", func(n *yaml.Node) error { return r.exec(n, d) }),
		"socket":    runner("socket", func(n *yaml.Node) error { return r.socket(n, d) }),
		"builtin":   runner("builtin", r.oneOf("builtin", &d.Builtin, localID)),
		"container": unsupported("container"),
		"unit":      unsupported("unit"),
		"health": func(n *yaml.Node) error {
			return r.mapping(n, "health", fields{
				"interval":      r.duration("interval", &d.ProbeInterval),
				"timeout":       r.duration("timeout", &d.ProbeTimeout),
				"start_timeout": r.duration("start_timeout", &d.StartTimeout),
			})
		},
		"timeouts": func(n *yaml.Node) error {
			return r.mapping(n, "timeouts", fields{
				"node":       r.duration("node", &d.NodeTimeout),
				"controller": r.duration("controller", &d.ControllerTimeout),
			})
		},
		"max_in_flight": r.count("max_in_flight", &d.MaxInFlight, 1, maxInFlight),
		"on_change":     r.oneOf("on_change", &d.OnChange, volume.OnChangePending, volume.OnChangeRestart),
	}
}

// oneRunner checks that the file says once how the plugin is run.
func (r reader) oneRunner(root *yaml.Node, runners map[string]*yaml.Node) error {
	const which = "exactly one of exec, socket, builtin is needed"
	if len(runners) == 0 {
		return r.errorf(root, "nothing says how the plugin is run: %s", which)
	}
	if len(runners) == 1 {
		return nil
	}
	var names []string
	last := root
	for name, n := range runners {
		names = append(names, name)
		if n.Line > last.Line {
			last = n
		}
	}
	slices.Sort(names)
	return r.errorf(last, "%s are given at once: %s", strings.Join(names, " and "), which)
}

func (r reader) socket(n *yaml.Node, d *volume.PluginDefinition) error {
	s, err := r.scalar(n, "socket")
	if err != nil {
		return err
	}
	s = strings.TrimPrefix(s, "unix://")
	if !filepath.IsAbs(s) {
		return r.errorf(n, "socket %q is not an absolute path", s)
	}
	if err := checkSocketPath(s); err != nil {
		return r.errorf(n, "%s", err)
	}
	d.Socket = filepath.Clean(s)
	return nil
}

func (r reader) exec(n *yaml.Node, d *volume.PluginDefinition) error {
	e := &volume.PluginExec{}
	err := r.mapping(n, "exec", fields{
		"command": func(n *yaml.Node) error { return r.command(n, e) },
		"env":     func(n *yaml.Node) error { return r.env(n, e) },
	})
	if err != nil {
		return err
	}
	if len(e.Command) == 0 || e.Command[0] == "" {
		return r.errorf(n, "exec has no command")
	}
	if name := e.Command[0]; strings.Contains(name, "/") && !strings.HasPrefix(name, "/") && !strings.HasPrefix(name, "${") {
		return r.errorf(n, "command %q is neither an absolute path nor a name in PATH", name)
	}
	d.Exec = e
	return nil
}

// command reads the command: a list, since a string would need a shell's
// quoting rules.
func (r reader) command(n *yaml.Node, e *volume.PluginExec) error {
	n = resolve(n)
	if n.Kind != yaml.SequenceNode {
		return r.errorf(n, "%q is not a list, like [/usr/bin/plugin, --flag]", "command")
	}
	for _, item := range n.Content {
		s, err := r.scalar(item, "command")
		if err != nil {
			return err
		}
		if err := checkVariables(s); err != nil {
			return r.errorf(item, "in command: %s", err)
		}
		e.Command = append(e.Command, s)
	}
	return nil
}

func (r reader) env(n *yaml.Node, e *volume.PluginExec) error {
	e.Env = map[string]volume.EnvValue{}
	return r.pairs(n, "env", func(key, value *yaml.Node) error {
		name := key.Value
		switch {
		case name == "" || strings.ContainsAny(name, "=\x00"):
			return r.errorf(key, "%q cannot be the name of an environment variable", name)
		case name == varEndpoint || name == envIncarnation:
			return r.errorf(key, "%s is set by the agent", name)
		}
		if _, twice := e.Env[name]; twice {
			return r.errorf(key, "key %q stands twice in env", name)
		}
		if resolve(value).Kind == yaml.MappingNode {
			ref, err := r.secretRef(resolve(value), name)
			e.Env[name] = volume.EnvValue{Secret: ref}
			return err
		}
		s, err := r.scalar(value, name)
		if err != nil {
			return err
		}
		if err := checkVariables(s); err != nil {
			return r.errorf(value, "in %s: %s", name, err)
		}
		e.Env[name] = volume.EnvValue{Value: s}
		return nil
	})
}
