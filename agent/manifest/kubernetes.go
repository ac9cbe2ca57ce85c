package manifest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/volagent/volagent/agent/pluginfile"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// importKubernetes turns the objects of a manifest into plugin files.
func importKubernetes(objects []*object, opts Options) (*Result, error) {
	n := &notes{}
	var workloads []*workload
	for _, o := range objects {
		if !slices.Contains([]string{"DaemonSet", "Deployment", "StatefulSet"}, o.Kind) {
			continue
		}

		w := &workload{object: o}
		if err := o.into(opts.File, w); err != nil {
			return nil, err
		}
		workloads = append(workloads, w)
	}

	found, err := n.choose(workloads, opts.Containers)
	if err != nil {
		return nil, err
	}
	if err := n.refuseKubernetes(found, objects, opts); err != nil {
		return nil, err
	}
	if n.ID, err = pluginID(objects, found, opts); err != nil {
		return nil, err
	}

	r := resolver{notes: n, opts: opts, objects: objects, configs: map[*object]*configMap{}, used: map[string]bool{}}
	parts := make([]part, len(found))
	for i, c := range found {
		if parts[i], err = r.part(c); err != nil {
			return nil, err
		}
	}

	if parts, err = arrange(found, parts); err != nil {
		return nil, err
	}

	for _, name := range sortedKeys(opts.Secrets) {
		if !r.used[name] {
			return nil, invalid("no variable and no volume of the driver takes the secret %q; these take one: %s", clean(name), listed(r.takers))
		}
	}

	n.leaveOut(objects, found)
	n.warnRights(found)
	n.warnPorts(parts)
	return n.finish(parts, opts)
}

// refuseKubernetes returns an error if the driver needs the API of Kubernetes.
func (n *notes) refuseKubernetes(found []candidate, objects []*object, opts Options) error {
	for _, c := range found {
		signs, err := kubernetesSigns(c, objects, opts.File)
		switch {
		case err != nil:
			return err
		case len(signs) == 0:
		case opts.WithoutKubernetes:
			add(&n.Warnings, "%s has signs that it needs the API of Kubernetes: %s", c.origin(), strings.Join(signs, "; "))
		default:
			return &Error{Kind: Kubernetes, Message: fmt.Sprintf("the driver needs the API of Kubernetes, which a host without a cluster does not have. The signs of %s are %s",
				c.origin(), strings.Join(signs, "; "))}
		}
	}

	return nil
}

// arrange joins parts that run the same program in the same way, and gives the others a type.
func arrange(found []candidate, parts []part) ([]part, error) {
	var nodes, controllers []int
	for i, c := range found {
		if c.node() {
			nodes = append(nodes, i)
		}
		if c.controller() || !c.node() {
			controllers = append(controllers, i)
		}
	}

	several := func(what string, some []int) error {
		var names []string
		for _, i := range some {
			names = append(names, found[i].name())
		}
		return &Error{Kind: Choice, Message: fmt.Sprintf("the manifest has several containers that may be the %s of the CSI driver: %s", what, quoted(names))}
	}
	controllers = distinct(parts, controllers)
	if len(nodes) > 1 {
		return nil, several("node part", nodes)
	}
	if len(nodes) == 1 {
		controllers = slices.DeleteFunc(controllers, func(i int) bool { return i == nodes[0] || parts[nodes[0]].same(parts[i]) })
	}
	if len(controllers) > 1 || len(controllers) == 1 && len(nodes) == 1 && found[nodes[0]].controller() {
		return nil, several("controller part", append(slices.Clone(nodes), controllers...))
	}

	var out []part
	for _, i := range append(nodes, controllers...) {
		p := parts[i]
		if len(nodes)+len(controllers) > 1 {
			p.kind = map[bool]string{true: "node", false: "controller"}[slices.Contains(nodes, i)]
		}
		out = append(out, p)
	}

	return out, nil
}

// distinct returns the indexes of those parts that differ from all earlier ones.
func distinct(parts []part, some []int) (out []int) {
	for _, i := range some {
		if !slices.ContainsFunc(out, func(o int) bool { return parts[o].same(parts[i]) }) {
			out = append(out, i)
		}
	}
	return out
}

// part turns a container into a plugin file.
func (r *resolver) part(c candidate) (part, error) {
	ctr := c.container()
	r.c, r.p, r.env = c, &part{origin: c.name(), comment: c.origin()}, map[string]text{}
	for _, port := range ctr.Ports {
		r.p.ports = append(r.p.ports, port.ContainerPort)
	}

	r.p.pull = plugin.PullMissing
	if ctr.ImagePullPolicy == "Never" {
		r.p.pull = plugin.PullNever
	}

	r.p.image = withRegistry(ctr.Image)
	if ctr.Image == "" {
		r.p.image = r.require("IMAGE", "the image of the driver").String()
	}

	if err := r.environment(); err != nil {
		return part{}, err
	}

	words := make([]text, 0, len(ctr.Command)+len(ctr.Args))
	for _, word := range append(slices.Clone(ctr.Command), ctr.Args...) {
		t := expand(word, r.lookup)
		if err := r.tooLong(t); err != nil {
			return part{}, err
		}
		words = append(words, t)
	}

	r.findSocket(words)
	if err := r.mounts(); err != nil {
		return part{}, err
	}

	r.rewriteEnvironment()
	args, err := r.arguments(words)
	if err != nil {
		return part{}, err
	}

	if len(ctr.Command) > 0 {
		r.p.entrypoint, args = args[0], args[1:]
	}
	r.p.args = args
	return *r.p, nil
}

// arguments returns the arguments of a part.
func (r *resolver) arguments(words []text) ([]string, error) {
	args := make([]string, len(words))
	for i, word := range words {
		raw, _ := word[:min(len(word), 1)].raw()
		flag, _, _ := strings.Cut(raw, "=")
		if secret := word.secretIn(); secret != "" {
			return nil, &Error{Kind: SecretArgument, Message: fmt.Sprintf(
				"%s takes the secret of the variable %q in the argument %q. Other users of the host can read arguments, so a plugin file cannot pass a secret there",
				r.c.origin(), clean(secret), clean(flag))}
		}

		translated, changed := apply(r.rules(), word)
		if args[i] = translated.String(); changed && !r.endpointOnly(translated) {
			add(&r.Warnings, "a path in the argument %s became %s", cmp.Or(flag, "of "+r.p.origin), names(translated))
		}
	}

	return args, nil
}

// names returns the variables that stand for paths in a text, in the form of plugin files.
func names(t text) string {
	var all []string
	for _, p := range t {
		if slices.Contains([]string{pluginfile.VarEndpoint, pluginfile.VarSocket, pluginfile.VarStateDir, pluginfile.VarMountRoot}, p.variable) {
			all = append(all, "${"+p.variable+"}")
		}
	}
	return strings.Join(slices.Compact(all), ", ")
}

// pluginID returns the id of the plugin.
func pluginID(objects []*object, found []candidate, opts Options) (string, error) {
	if opts.ID != "" {
		return opts.ID, nil
	}

	var drivers []string
	for _, o := range objects {
		if o.Kind == "CSIDriver" {
			drivers = append(drivers, o.Metadata.Name)
		}
	}

	id := idOfWorkload(found[0].workload.object.Metadata.Name)
	if len(drivers) == 1 {
		id = idOfWorkload(idOfDriver(drivers[0]))
	}

	if volume.CheckPluginID(id) != nil {
		return "", invalid("no id of the plugin follows from the manifest; choose one")
	}
	return id, nil
}

// general lists the words in names of drivers that do not distinguish drivers.
var general = []string{"csi", "driver", "plugin", "csiplugin", "io", "com", "org", "net", "cloud", "dev", "sh", "k8s", "kubernetes", "ru", "cn", "de", "co"}

// idOfDriver returns the most specific word of a driver's name, such as nfs for nfs.csi.k8s.io or
// hetzner for csi.hetzner.cloud.
func idOfDriver(name string) string {
	words := strings.Split(name, ".")
	at := slices.Index(words, "csi")
	if at > 0 && !slices.Contains(general, words[at-1]) {
		return words[at-1]
	}

	for _, word := range words {
		if !slices.Contains(general, word) {
			return word
		}
	}

	return ""
}

// idOfWorkload returns the name of a workload without the words that name a part of a driver.
func idOfWorkload(name string) string {
	words := slices.DeleteFunc(strings.Split(name, "-"), func(word string) bool {
		return slices.Contains(general, word) || slices.Contains([]string{"node", "nodeplugin", "controller", "ds", "daemonset", "provisioner"}, word)
	})
	return strings.Join(words, "-")
}

// withRegistry returns the name of an image with its registry. Kubernetes uses docker.io by default,
// and podman has no default.
func withRegistry(image string) string {
	if image == "" || strings.ContainsAny(image, "$ ") {
		return image
	}

	host, _, below := strings.Cut(image, "/")
	switch {
	case !below:
		return "docker.io/library/" + image
	case host == "localhost" || strings.ContainsAny(host, ".:"):
		return image
	default:
		return "docker.io/" + image
	}
}

// warnRights warns that a plugin's container has rights that the manifest does not ask for.
func (n *notes) warnRights(found []candidate) {
	var all []string
	for _, c := range found {
		var lacks []string
		if !c.container().SecurityContext.Privileged {
			lacks = append(lacks, "privileged")
		}
		if !c.pod.HostNetwork {
			lacks = append(lacks, "hostNetwork")
		}
		if !c.pod.HostPID {
			lacks = append(lacks, "hostPID")
		}

		if len(lacks) > 0 {
			all = append(all, strings.Join(lacks, ", ")+" for "+c.name())
		}
	}

	if len(all) > 0 {
		add(&n.Warnings, "containers of plugins are privileged, and have the host's network and process ids. The manifest does not ask for %s", strings.Join(all, "; "))
	}
}

// warnPorts warns of ports that two parts use, because both have the host's network.
func (n *notes) warnPorts(parts []part) {
	owner := map[int]string{}
	for _, p := range parts {
		for _, port := range p.ports {
			if other, twice := owner[port]; twice && other != p.origin {
				add(&n.Warnings, "%s and %s both use port %d, and both have the host's network; give one of them another port", other, p.origin, port)
			}
			owner[port] = p.origin
		}
	}
}
