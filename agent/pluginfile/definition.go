// Package pluginfile parses plugin files. It converts the text of a file to a plugin.Definition,
// and a definition to settings that users can read. It does not access the host.
package pluginfile

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/volagent/volagent/volmgr/csiclient"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// LocalID is the id of the bundled plugin, which needs no plugin file. It is also the only valid
// value of the key builtin.
const LocalID = "local"

// These are the types of plugins, as plugin files name them.
const (
	TypeNode       = "node"
	TypeController = "controller"
	TypeMonolith   = "monolith"
)

// maxInFlight is the maximum value of the key max_in_flight.
const maxInFlight = 10000

// defaults returns a definition with the default values of all optional keys.
func defaults() *plugin.Definition {
	return &plugin.Definition{
		ProbeInterval:     30 * time.Second,
		ProbeTimeout:      csiclient.DefaultProbeTimeout,
		StartTimeout:      30 * time.Second,
		NodeTimeout:       csiclient.DefaultNodeTimeout,
		ControllerTimeout: csiclient.DefaultControllerTimeout,
		MaxInFlight:       csiclient.DefaultMaxInFlight,
		OnChange:          plugin.OnChangePending,
	}
}

// Local returns the definition of the bundled plugin, which needs no plugin file.
func Local() *plugin.Definition {
	d := defaults()
	d.ID, d.Builtin = LocalID, LocalID
	return d
}

// Parse reads the text of a plugin file. Its errors contain the given file name, the line and the
// key. If Parse returns an error, it still returns the plugin's id if the file contains a valid id.
// The caller can then show the error under this id.
func Parse(file string, data []byte) (id string, def *plugin.Definition, err error) {
	id, def, err = parse(file, data)
	if err != nil || def.Disabled {
		return id, def, err
	}

	r := reader{file: file}
	root, err := r.document(data)
	if err != nil {
		return "", nil, err
	}
	if line, name, found := firstPlaceholder(root); found {
		return id, nil, fmt.Errorf("%s:%d: the value %q is not filled in; replace %s, or set enabled: false", file, line, name, Placeholder(name))
	}
	return id, def, nil
}

// parse is Parse without the check for placeholders.
func parse(file string, data []byte) (id string, def *plugin.Definition, err error) {
	r := reader{file: file, values: map[string]string{}}
	root, err := r.document(data)
	if err != nil {
		return "", nil, err
	}

	id = findID(root)
	d := defaults()
	d.File = file
	runners := map[string]*yaml.Node{}
	if err := r.readValues(root); err != nil {
		return id, nil, err
	}
	if err := r.mapping(root, wholeFile, r.topLevel(d, runners)); err != nil {
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
	if err := r.checkValues(root, d.Disabled); err != nil {
		return id, nil, err
	}
	ofOneHost := d.Scope == plugin.ScopeHost || d.Builtin != ""
	if d.Fence != plugin.FenceNone && ofOneHost {
		return id, nil, r.errorf(root, "the plugin cannot have fence: %s, because no other host takes over storage that belongs to this host; remove the key fence", d.Fence)
	}

	return id, d, nil
}

// findID returns the id in a plugin file whose other keys may be invalid. It returns "" if the file
// has no valid id.
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

// topLevel returns the functions that read the top-level keys of a plugin file. These functions
// store the keys that determine how to run the plugin in the map runners.
func (r reader) topLevel(d *plugin.Definition, runners map[string]*yaml.Node) fields {
	runner := func(name string, read func(*yaml.Node) error) func(*yaml.Node) error {
		return func(n *yaml.Node) error {
			runners[name] = n
			return read(n)
		}
	}

	return fields{
		"id":        r.text("id", &d.ID),
		"enabled":   r.enabled(&d.Disabled),
		"values":    func(*yaml.Node) error { return nil }, // readValues has read them
		"type":      r.oneOf("type", &d.Type, "", TypeNode, TypeController, TypeMonolith),
		"instance":  r.instance(&d.Instance),
		"exec":      runner("exec", func(n *yaml.Node) error { return r.exec(n, d) }),
		"socket":    runner("socket", func(n *yaml.Node) error { return r.socket(n, d) }),
		"builtin":   runner("builtin", r.oneOf("builtin", &d.Builtin, LocalID)),
		"container": runner("container", func(n *yaml.Node) error { return r.container(n, d) }),
		"unit":      runner("unit", func(n *yaml.Node) error { return r.unit(n, d) }),
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
		"scope":          r.oneOf("scope", &d.Scope, "", plugin.ScopeHost, plugin.ScopeShared),
		"fence":          r.fence(&d.Fence),
		"stats_interval": r.statsInterval(&d.StatsInterval),
		"max_in_flight":  r.count("max_in_flight", &d.MaxInFlight, 1, maxInFlight),
		"unmasked_secrets": r.list("unmasked_secrets", "[prefix, volume]", &d.UnmaskedSecrets, func(key string) error {
			if key == "" {
				return errors.New("a key is empty")
			}

			return nil
		}),
		"on_change": r.oneOf("on_change", &d.OnChange, plugin.OnChangePending, plugin.OnChangeRestart),
	}
}

// oneRunner returns an error unless the file has exactly one key that determines how to run the
// plugin.
func (r reader) oneRunner(root *yaml.Node, runners map[string]*yaml.Node) error {
	const which = "exactly one of exec, container, unit, socket, builtin is needed"
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

func (r reader) socket(n *yaml.Node, d *plugin.Definition) error {
	s, err := r.scalar(n, "socket")
	if err != nil {
		return err
	}

	s = strings.TrimPrefix(s, "unix://")
	if !filepath.IsAbs(s) {
		return r.errorf(n, "socket %q is not an absolute path", s)
	}
	if err := CheckSocketPath(s); err != nil {
		return r.errorf(n, "%s", err)
	}

	d.Socket = filepath.Clean(s)
	return nil
}

// maxSocketPath is the maximum length of a unix socket's path: the length of sun_path without its
// final zero (unix(7)).
const maxSocketPath = 107

// CheckSocketPath returns an error if a path is too long for a unix socket.
func CheckSocketPath(path string) error {
	if len(path) > maxSocketPath {
		return fmt.Errorf("socket path %q has %d bytes, but a unix socket's path has at most %d", path, len(path), maxSocketPath)
	}
	return nil
}
