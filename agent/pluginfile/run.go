package pluginfile

import (
	"fmt"
	"path/filepath"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/volagent/volagent/volmgr/plugin"
)

func (r reader) exec(n *yaml.Node, d *plugin.Definition) error {
	e := &plugin.Exec{}
	err := r.mapping(n, "exec", fields{
		"command": r.list("command", "[/usr/bin/plugin, --flag]", &e.Command, checkVariables),
		"env":     r.env(&e.Env),
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

func (r reader) container(n *yaml.Node, d *plugin.Definition) error {
	c := &plugin.Container{Pull: plugin.PullNever}
	err := r.mapping(n, "container", fields{
		"runtime": r.oneOf("runtime", &c.Runtime, plugin.RuntimePodman, plugin.RuntimeDocker),
		"image":   r.text("image", &c.Image),
		"entrypoint": func(n *yaml.Node) error {
			err := r.text("entrypoint", &c.Entrypoint)(n)
			if err == nil && c.Entrypoint == "" {
				err = r.errorf(n, "the entrypoint is empty; remove the key to use that of the image")
			}
			return err
		},
		"args":   r.list("args", "[--flag, --other-flag]", &c.Args, checkVariables),
		"env":    r.env(&c.Env),
		"mounts": r.list("mounts", "[/etc/ceph:/etc/ceph:ro]", &c.Mounts, checkMount),
		"pull":   r.oneOf("pull", &c.Pull, plugin.PullNever, plugin.PullMissing),
	})
	c.Image = r.fill(c.Image)

	switch {
	case err != nil:
		return err
	case c.Runtime == "":
		return r.errorf(n, "container has no runtime; it can be %s or %s", plugin.RuntimePodman, plugin.RuntimeDocker)
	case c.Image == "":
		return r.errorf(n, "container has no image")
	case strings.HasPrefix(c.Image, "-") || strings.ContainsFunc(c.Image, unicode.IsSpace):
		return r.errorf(n, "%q cannot be the name of an image", c.Image)
	}

	d.Container = c
	return nil
}

// checkMount returns an error unless a container's mount has the form SOURCE:TARGET[:OPTIONS].
func checkMount(s string) error {
	if err := checkVariables(s); err != nil {
		return err
	}

	parts := strings.Split(s, ":")
	if len(parts) < 2 || len(parts) > 3 || !absolute(parts[0]) || !absolute(parts[1]) {
		return fmt.Errorf("%q is not SOURCE:TARGET[:OPTIONS] with two absolute paths", s)
	}

	return nil
}

// absolute reports whether a path is absolute. A path that begins with a variable counts as
// absolute, because the variable may be an absolute path.
func absolute(path string) bool {
	return filepath.IsAbs(path) || strings.HasPrefix(path, "${")
}

// ownUnit is the name of the agent's own systemd service, as the package of a Linux distribution
// installs it.
const ownUnit = "volagent.service"

// unit reads the name of a systemd service. It refuses units of other types, because such units run
// no process that could be a plugin.
func (r reader) unit(n *yaml.Node, d *plugin.Definition) error {
	name, err := r.scalar(n, "unit")
	switch {
	case err != nil:
		return err
	case !strings.HasSuffix(name, ".service") || len(name) > 255 || strings.ContainsFunc(name, notInUnit) ||
		strings.HasPrefix(name, ".") || strings.Contains(name, "@."):
		return r.errorf(n, "unit %q is not the name of a service, like my-csi-plugin.service", name)
	case name == ownUnit:
		return r.errorf(n, "unit %q is the agent itself", name)
	}

	d.Unit = name
	return nil
}

// notInUnit reports whether a character is forbidden in the name of a unit (systemd.unit(5)).
func notInUnit(c rune) bool {
	return !strings.ContainsRune("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789:-_.\\@", c)
}

// list returns a function that reads a list of strings. It does not accept a single string, because
// splitting the string would need the quoting rules of a shell.
func (r reader) list(key, example string, to *[]string, check func(string) error) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		n = resolve(n)
		if n.Kind != yaml.SequenceNode {
			return r.errorf(n, "%q is not a list, like %s", key, example)
		}

		for _, item := range n.Content {
			s, err := r.scalar(item, key)
			if err != nil {
				return err
			}
			s = r.fill(s)
			if err := check(s); err != nil {
				return r.errorf(item, "in %s: %s", key, err)
			}

			*to = append(*to, s)
		}

		return nil
	}
}

// env returns a function that reads the environment variables of a plugin.
func (r reader) env(to *map[string]plugin.EnvValue) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		env := map[string]plugin.EnvValue{}
		*to = env
		return r.pairs(n, "env", func(key, value *yaml.Node) error {
			name := key.Value
			before, _, assigned := strings.Cut(name, "=")
			switch {
			// the entry has the form NAME=VALUE; the message omits the value, which may be a
			// password
			case assigned:
				return r.errorf(key, "in env %q is no KEY: VALUE", before+"=…")
			case name == "" || strings.ContainsRune(name, 0):
				return r.errorf(key, "%q cannot be the name of an environment variable", name)
			case name == VarEndpoint || name == EnvIncarnation:
				return r.errorf(key, "%s is set by the agent", name)
			}

			if _, twice := env[name]; twice {
				return r.errorf(key, "key %q stands twice in env", name)
			}
			if resolve(value).Kind == yaml.MappingNode {
				ref, err := r.secretRef(resolve(value), name)
				env[name] = plugin.EnvValue{Secret: ref}
				return err
			}

			s, err := r.scalar(value, name)
			if err != nil {
				return err
			}
			s = r.fill(s)
			if err := checkVariables(s); err != nil {
				return r.errorf(value, "in %s: %s", name, err)
			}

			env[name] = plugin.EnvValue{Value: s}
			return nil
		})
	}
}
