package plugin

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/volagent/volagent/volmgr/plugin"
)

// grant is one right that a plugin file gives to a plugin.
type grant struct{ what, how string }

// grants returns the rights that a plugin file gives to its plugin, for the person who enables it.
func grants(def *plugin.Definition) []grant {
	var all []grant
	add := func(what, format string, args ...any) { all = append(all, grant{what, fmt.Sprintf(format, args...)}) }

	switch {
	case def.Container != nil:
		c := def.Container
		add("runs", "the image %s in %s", c.Image, c.Runtime)
		add("privileges", "privileged: user root of the host, with all capabilities")
		add("namespaces", "the network and the process ids of the host; mounts of its own")
		add("devices", "all devices of the host (/dev)")
		add("host paths", "its volumes, its state and its socket, read and write; mounts below its volumes also appear on the host")
		for _, m := range c.Mounts {
			add("", "%s", mountWords(m))
		}
	case def.Exec != nil:
		add("runs", "%s", strings.Join(def.Exec.Command, " "))
		add("privileges", "user root of the host, with all capabilities")
		add("namespaces", "those of the host: mounts, network, process ids")
		add("devices", "all devices of the host")
		add("host paths", "all, read and write")
	case def.Unit != "":
		add("runs", "the systemd service %s", def.Unit)
		add("privileges", "those in the file of the service, which decides about namespaces, devices and paths, too")
	case def.Socket != "":
		add("runs", "nothing: another program serves the socket %s, and has its own privileges", def.Socket)
	default:
		add("runs", "the bundled driver, as user root of the host with all capabilities")
	}

	for _, name := range slices.Sorted(maps.Keys(def.Env())) {
		if s := def.Env()[name].Secret; s != nil {
			add("secret", "%s from %s", name, strings.TrimSpace(strings.Join([]string{s.File, s.Credential, s.Env}, " ")))
		}
	}
	return all
}

// mountWords describes a mount of a container: SOURCE:TARGET[:OPTIONS].
func mountWords(mount string) string {
	parts := strings.SplitN(mount, ":", 3)
	if len(parts) == 3 && slices.Contains(strings.Split(parts[2], ","), "ro") {
		return parts[0] + ", read only"
	}
	if parts[0] == "/" {
		return "/, read and write: the whole host"
	}
	return parts[0] + ", read and write"
}
