package manifest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/volagent/volagent/agent/pluginfile"
	"github.com/volagent/volagent/volmgr/plugin"
)

// These are the interfaces of CSI plugins of docker.
const (
	swarmNode       = "docker.csinode/"
	swarmController = "docker.csicontroller/"
)

// swarmSockets is the directory in which docker looks for the sockets of managed plugins.
const swarmSockets = "/run/docker/plugins"

// managedPlugin is the config.json of a managed plugin of docker.
type managedPlugin struct {
	Interface *struct {
		Types  []string `json:"types"`
		Socket string   `json:"socket"`
	} `json:"interface"`
	Entrypoint []string `json:"entrypoint"`
	Args       struct {
		Value []string `json:"value"`
	} `json:"args"`
	Env []struct {
		Name        string   `json:"name"`
		Description string   `json:"description"`
		Value       *string  `json:"value"`
		Settable    []string `json:"settable"`
	} `json:"env"`
	Mounts []struct {
		Name        string   `json:"name"`
		Source      *string  `json:"source"`
		Destination string   `json:"destination"`
		Type        string   `json:"type"`
		Options     []string `json:"options"`
	} `json:"mounts"`
	Network struct {
		Type string `json:"type"`
	} `json:"network"`
	WorkDir         string `json:"workdir"`
	PropagatedMount string `json:"propagatedMount"`
	PidHost         bool   `json:"pidhost"`
	IpcHost         bool   `json:"ipchost"`
	User            *struct {
		UID, GID int
	} `json:"user"`
}

// swarmConfig returns the config.json of a managed plugin. It returns nil if the data is something
// else. It also accepts the output of docker plugin inspect for one plugin.
func swarmConfig(data []byte) (*managedPlugin, error) {
	data = bytes.TrimSpace(data)
	if !bytes.HasPrefix(data, []byte("{")) && !bytes.HasPrefix(data, []byte("[")) {
		return nil, nil
	}

	var probe struct {
		Interface json.RawMessage `json:"interface"`
		Config    json.RawMessage `json:"config"`
		Kind      string          `json:"kind"`
	}
	var inspected []json.RawMessage
	if json.Unmarshal(data, &inspected) == nil && len(inspected) == 1 {
		data = inspected[0]
	}
	if err := json.Unmarshal(data, &probe); err != nil || probe.Kind != "" {
		return nil, nil //nolint:nilerr // a text that is no JSON is a manifest of Kubernetes
	}
	if len(probe.Interface) == 0 && len(probe.Config) > 0 {
		data = probe.Config
	}

	var config managedPlugin
	if err := json.Unmarshal(data, &config); err != nil && len(probe.Interface)+len(probe.Config) > 0 {
		return nil, invalid("a field of the config.json does not have the type that docker requires")
	}
	if config.Interface == nil {
		return nil, nil
	}

	return &config, nil
}

// serves reports whether the plugin has an interface of a type.
func (m managedPlugin) serves(kind string) bool {
	return slices.ContainsFunc(m.Interface.Types, func(t string) bool { return strings.HasPrefix(t, kind) })
}

// importSwarm turns the config.json of a managed plugin into a plugin file.
func importSwarm(m managedPlugin, opts Options) (*Result, error) {
	node, controller := m.serves(swarmNode), m.serves(swarmController)
	switch {
	case !node && !controller:
		return nil, invalid("the managed plugin is not a CSI driver: its interface is %s", quoted(m.Interface.Types))
	case len(opts.Containers) > 0:
		return nil, invalid("a managed plugin has one container; do not name it")
	case len(m.Entrypoint) == 0:
		return nil, invalid("the config.json has no entrypoint")
	}

	n := &notes{}
	n.ID = cmp.Or(opts.ID, idOfSocket(m.Interface.Socket))
	if n.ID == "" {
		return nil, invalid("no id of the plugin follows from the config.json; choose one")
	}

	p := part{origin: opts.File, comment: "the config.json of a managed plugin of docker", pull: plugin.PullMissing}
	if node != controller {
		p.kind = map[bool]string{true: pluginfile.TypeNode, false: pluginfile.TypeController}[node]
	}

	p.image = "${" + p.require("IMAGE", "the image of the driver. A config.json does not name it, and the image of a managed plugin cannot run as a container") + "}"
	r := resolver{notes: n, opts: opts, used: map[string]bool{}, p: &p, env: map[string]text{}}
	r.swarmEnvironment(m)
	var words []string
	for _, word := range append(slices.Clone(m.Entrypoint), m.Args.Value...) {
		t, _ := apply(r.swarmRules(m), literal(word))
		words = append(words, t.String())
	}
	p.entrypoint, p.args = words[0], words[1:]

	if err := r.swarmMounts(m); err != nil {
		return nil, err
	}
	for _, name := range sortedKeys(opts.Secrets) {
		if !r.used[name] {
			return nil, invalid("no variable of the driver takes the secret %q; these take one: %s", clean(name), listed(r.takers))
		}
	}

	n.swarmLeftOut(m)
	add(&n.Warnings, "check that the image has the program %s at this path; the image of a managed plugin may have another", p.entrypoint)
	return n.finish([]part{p}, opts)
}

// idOfSocket returns the name of a socket without the words that name a part of a driver.
func idOfSocket(socket string) string {
	return fileNameOrEmpty(idOfWorkload(strings.TrimSuffix(path.Base(socket), ".sock")))
}

func fileNameOrEmpty(name string) string {
	if name == "" || name == "." || name == "/" {
		return ""
	}
	name = fileName(name)
	return name[:min(len(name), 48)]
}

// swarmRules returns the paths of a managed plugin that have another path here.
func (r *resolver) swarmRules(m managedPlugin) []rewrite {
	socket := path.Join(swarmSockets, path.Base("/"+m.Interface.Socket))
	rules := []rewrite{
		{unixScheme + socket, pluginfile.VarEndpoint}, {"unix:" + socket, pluginfile.VarEndpoint}, {socket, pluginfile.VarSocket},
	}
	if path.IsAbs(m.PropagatedMount) {
		rules = append(rules, rewrite{path.Clean(m.PropagatedMount), pluginfile.VarMountRoot})
	}

	return rules
}

func (r *resolver) swarmEnvironment(m managedPlugin) {
	for _, v := range m.Env {
		switch {
		case v.Name == pluginfile.VarEndpoint || v.Name == pluginfile.EnvIncarnation || v.Name == "":
			continue
		case looksSecret(v.Name) && (v.Value == nil || !strings.HasPrefix(*v.Value, "/")):
			r.setSecret(v.Name, v.Name, cmp.Or(v.Description, "the value of the variable "+v.Name))
			continue
		case v.Value == nil:
			r.set(v.Name, r.require(v.Name, cmp.Or(v.Description, "the variable "+v.Name)))
		default:
			t, _ := apply(r.swarmRules(m), literal(*v.Value))
			r.set(v.Name, t)
		}

		r.p.env[len(r.p.env)-1].text = r.env[v.Name].String()
	}
}

func (r *resolver) swarmMounts(m managedPlugin) error {
	for _, mount := range m.Mounts {
		if !path.IsAbs(mount.Destination) {
			return invalid("the mount %s of the config.json has no absolute destination", quoted([]string{mount.Name}))
		}

		vm := volumeMount{Name: mount.Name, MountPath: path.Clean(mount.Destination), ReadOnly: slices.Contains(mount.Options, "ro")}
		switch {
		case slices.Contains(mount.Options, "rshared"), slices.Contains(mount.Options, "shared"):
			vm.MountPropagation = "Bidirectional"
		case slices.Contains(mount.Options, "rslave"), slices.Contains(mount.Options, "slave"):
			vm.MountPropagation = "HostToContainer"
		}

		source := ""
		if mount.Source != nil {
			source = *mount.Source
		}
		switch {
		case mount.Type == "tmpfs":
			r.mount(literal("/dev/shm"), vm)
		case source == "":
			r.mount(r.require("MOUNT_"+strings.ToUpper(cmp.Or(mount.Name, path.Base(vm.MountPath))), "a path of this host that the driver gets as "+vm.MountPath), vm)
		case !path.IsAbs(source):
			return invalid("the mount %s of the config.json has no absolute source", quoted([]string{mount.Name}))
		case path.Clean(source) == vm.MountPath && (vm.MountPath == "/dev" || strings.HasPrefix(vm.MountPath, "/dev/")):
			// every plugin's container has the host's /dev
		default:
			r.mount(literal(path.Clean(source)), vm)
		}
	}

	return nil
}

// swarmLeftOut records the content of a config.json that has no effect here.
func (n *notes) swarmLeftOut(m managedPlugin) {
	if m.PropagatedMount != "" {
		add(&n.LeftOut, "propagatedMount %s (volumes are mounted below ${%s})", m.PropagatedMount, pluginfile.VarMountRoot)
	}
	if m.WorkDir != "" {
		add(&n.LeftOut, "workdir %s", m.WorkDir)
	}
	if m.IpcHost {
		add(&n.LeftOut, "ipchost")
	}
	if m.User != nil && m.User.UID != 0 {
		add(&n.LeftOut, "user %d", m.User.UID)
	}

	var lacks []string
	if m.Network.Type != "host" {
		lacks = append(lacks, "network host")
	}
	if !m.PidHost {
		lacks = append(lacks, "pidhost")
	}
	if len(lacks) > 0 {
		add(&n.Warnings, "%s", fmt.Sprintf("containers of plugins are privileged, and have the host's network and process ids. The config.json does not ask for %s", strings.Join(lacks, ", ")))
	}
}
