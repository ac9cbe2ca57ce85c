package manifest

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/volagent/volagent/agent/pluginfile"
)

// unixScheme begins the address of a unix socket.
const unixScheme = "unix://"

// kubelet is the usual directory of the kubelet. Other distributions of Kubernetes have another one
// that also ends with this word.
const kubelet = "/var/lib/kubelet"

// findSocket finds the path of the CSI socket in the container: from the usual variable, or from the
// argument of a usual flag.
func (r *resolver) findSocket(words []text) {
	r.socket, r.moved, r.scratch = "", nil, false
	candidates := []text{r.env[pluginfile.VarEndpoint]}
	for i, word := range words {
		if len(word) == 0 {
			continue
		}

		flag, value, assigned := strings.Cut(word[0].literal, "=")
		switch {
		case !isEndpointFlag(flag):
		case assigned:
			candidates = append(candidates, literal(value).plus(word[1:]))
		case i+1 < len(words):
			candidates = append(candidates, words[i+1])
		}
	}

	for _, t := range candidates {
		raw, ok := t.raw()
		address := strings.TrimPrefix(strings.TrimPrefix(raw, "unix:"), "//")
		if ok && strings.HasPrefix(address, "/") {
			r.socket = address
			return
		}
	}

	_, set := r.env[pluginfile.VarEndpoint]
	told := slices.ContainsFunc(candidates[1:], func(t text) bool { return len(t) > 0 })
	switch {
	case told:
		add(&r.Warnings, "%s listens on an address that is not the path of a socket. Replace it by ${%s} in the file", r.c.origin(), pluginfile.VarEndpoint)
	case !set:
		add(&r.Warnings, "the manifest does not tell %s where to listen. The agent sets the variable %s; check that the driver uses it", r.c.origin(), pluginfile.VarEndpoint)
	}
}

// endpointOnly reports whether a text has no other variable for a path than that of the CSI socket.
func (r *resolver) endpointOnly(t text) bool {
	return !slices.ContainsFunc(t, func(p piece) bool {
		return p.variable == pluginfile.VarStateDir || p.variable == pluginfile.VarMountRoot
	})
}

// rules returns the paths of the container that have another path here, longer ones first.
func (r *resolver) rules() []rewrite {
	rules := kubeletRules(kubelet)
	rules = append(rules, r.moved...)
	slices.SortStableFunc(rules, func(a, b rewrite) int { return cmp.Compare(len(b.path), len(a.path)) })
	if r.socket == "" {
		return rules
	}

	return append([]rewrite{
		{unixScheme + r.socket, pluginfile.VarEndpoint}, {"unix:" + r.socket, pluginfile.VarEndpoint}, {r.socket, pluginfile.VarSocket},
	}, rules...)
}

// kubeletRules returns the meanings of the kubelet's directories, which are mounted at a path.
func kubeletRules(at string) []rewrite {
	at = strings.TrimSuffix(at, "/")
	return []rewrite{
		{at + "/plugins/kubernetes.io/csi", pluginfile.VarMountRoot},
		{at + "/plugins/kubernetes.io", pluginfile.VarMountRoot},
		{at + "/plugins", pluginfile.VarStateDir},
		{at + "/csi-plugins", pluginfile.VarStateDir},
		{at + "/pods", pluginfile.VarMountRoot},
		{at, pluginfile.VarMountRoot},
	}
}

// belowKubelet returns the part of a host's path below the directory of the kubelet.
func belowKubelet(p string) (rest string, ok bool) {
	elements := strings.Split(strings.Trim(path.Clean(p), "/"), "/")
	at := slices.Index(elements, "kubelet")
	if at < 0 || !path.IsAbs(p) {
		return "", false
	}
	return strings.Join(elements[at+1:], "/"), true
}

// mounts translates the mounts of the container.
func (r *resolver) mounts() error {
	volumes := map[string]volumeDef{}
	for _, v := range r.c.pod.Volumes {
		volumes[v.Name] = v
	}

	for _, m := range r.c.container().VolumeMounts {
		if !path.IsAbs(m.MountPath) {
			return invalid("the mount %s of %s has no absolute path", quoted([]string{m.Name}), r.c.origin())
		}

		m.MountPath = path.Clean(m.MountPath)
		v, known := volumes[m.Name]
		v.Name = m.Name
		var err error
		switch {
		case r.holdsSocket(m, v):
			r.move(m.MountPath, pluginfile.VarStateDir)
		case known && v.HostPath != nil:
			err = r.hostPath(m, v)
		case known && v.EmptyDir != nil:
			r.emptyDir(m, v)
		case known && v.ConfigMap != nil:
			err = r.configMapVolume(m, v)
		case known && v.Secret != nil:
			err = r.secretVolume(m, v)
		case known && v.Projected != nil:
			err = r.projected(m, v)
		case known && v.DownwardAPI != nil:
			add(&r.LeftOut, "volume %s of %s (downwardAPI)", v.Name, r.c.name())
		default:
			r.mount(r.require("VOLUME_"+strings.ToUpper(v.Name), fmt.Sprintf("a directory of this host in place of the volume %q", v.Name)), m)
		}

		if err != nil {
			return err
		}
	}

	return nil
}

// holdsSocket reports whether a mount is the directory of the CSI socket, which the agent provides.
func (r *resolver) holdsSocket(m volumeMount, v volumeDef) bool {
	if r.socket != "" && path.Dir(r.socket) == m.MountPath {
		return true
	}
	if r.socket != "" || v.HostPath == nil {
		return false
	}

	// The driver knows its socket without being told. It is in a plugin's directory.
	rest, ok := belowKubelet(v.HostPath.Path)
	above, below := path.Split(rest)
	return ok && below != "" && slices.Contains([]string{"plugins/", "csi-plugins/"}, above)
}

// move records that a path of the container is not mounted, and has another meaning here.
func (r *resolver) move(p, variable string) {
	r.moved = append(r.moved, rewrite{p, variable})
}

// hostPath translates the mount of a path of the host.
func (r *resolver) hostPath(m volumeMount, v volumeDef) error {
	from := v.HostPath.Path
	if !path.IsAbs(from) {
		return invalid("the volume %s of %s has no absolute path", quoted([]string{v.Name}), r.c.workload.object)
	}

	from = path.Join(from, m.SubPath)
	if rest, ok := belowKubelet(from); ok {
		r.kubeletMount(m, rest)
		return nil
	}
	if device := from == "/dev" || strings.HasPrefix(from, "/dev/"); device && from == m.MountPath {
		return nil // every plugin's container has the host's /dev
	}

	if strings.HasSuffix(v.HostPath.Type, "OrCreate") {
		what := map[bool]string{true: "file", false: "directory"}[strings.HasPrefix(v.HostPath.Type, "File")]
		add(&r.Make, "%s %s", what, from)
	}

	r.mount(literal(from), m)
	return nil
}

// kubeletMount translates the mount of a directory of the kubelet. The argument rest is its path
// below the kubelet's directory.
func (r *resolver) kubeletMount(m volumeMount, rest string) {
	first, below, _ := strings.Cut(rest, "/")
	switch {
	case rest == "":
		r.moved = append(r.moved, kubeletRules(m.MountPath)...)
	case first == "pods", strings.HasPrefix(rest, "plugins/kubernetes.io"):
		r.move(m.MountPath, pluginfile.VarMountRoot)
	case first == "plugins" && below == "":
		r.move(m.MountPath+"/kubernetes.io/csi", pluginfile.VarMountRoot)
		r.move(m.MountPath+"/kubernetes.io", pluginfile.VarMountRoot)
		r.move(m.MountPath, pluginfile.VarStateDir)
	case first == "plugins", first == "csi-plugins":
		r.mount(agentVariable(pluginfile.VarStateDir), m)
	default:
		add(&r.LeftOut, "volume %s of %s (the kubelet's %s)", m.Name, r.c.name(), rest)
	}
}

// mount adds a mount to the part.
func (r *resolver) mount(from text, m volumeMount) {
	if m.SubPathExpr != "" {
		from = from.plus(literal("/")).plus(expand(m.SubPathExpr, r.lookup))
	}

	var options []string
	if m.ReadOnly {
		options = append(options, "ro")
	}
	switch m.MountPropagation {
	case "Bidirectional":
		options = append(options, "rshared")
	case "HostToContainer":
		options = append(options, "rslave")
	}

	entry := from.String() + ":" + literal(m.MountPath).String()
	if len(options) > 0 {
		entry += ":" + strings.Join(options, ",")
	}

	if !slices.Contains(r.p.mounts, entry) {
		r.p.mounts = append(r.p.mounts, entry)
	}
}

// emptyDir translates the mount of a directory that is empty when a pod starts.
func (r *resolver) emptyDir(m volumeMount, v volumeDef) {
	switch {
	case v.EmptyDir.Medium == "Memory":
		r.mount(literal("/dev/shm"), m)
	case !r.scratch:
		r.scratch = true
		r.mount(agentVariable(pluginfile.VarStateDir), m)
	default:
		// Two volumes in one directory could use the same names.
		dir := path.Join("/var/lib/csi-scratch", r.ID, fileName(v.Name))
		add(&r.Make, "directory %s", dir)
		r.mount(literal(dir), m)
	}
}

// files returns the names of the files that a volume has for the keys of a ConfigMap or Secret.
func (f fileRefs) files(keys []string) map[string]string {
	out := map[string]string{}
	if len(f.Items) > 0 {
		for _, item := range f.Items {
			out[cmp.Or(item.Path, item.Key)] = item.Key
		}
		return out
	}

	for _, key := range keys {
		out[key] = key
	}
	return out
}

// configMapVolume translates the mount of a ConfigMap.
func (r *resolver) configMapVolume(m volumeMount, v volumeDef) error {
	found, err := r.configMapFiles(*v.ConfigMap, r.directory(v.ConfigMap.Name))
	if err != nil || !found {
		return err
	}

	r.mountFiles(r.directory(v.ConfigMap.Name), m)
	return nil
}

// configMapFiles records the files that must exist in place of a ConfigMap. It returns false for an
// optional one that the manifest does not contain.
func (r *resolver) configMapFiles(ref fileRefs, dir string) (bool, error) {
	c, err := r.configMap(ref.Name)
	switch {
	case err != nil:
		return false, err
	case c == nil && ref.Optional:
		add(&r.LeftOut, "optional ConfigMap %q of %s", ref.Name, r.c.name())
		return false, nil
	case c == nil && len(ref.Items) == 0:
		add(&r.Make, "directory %s with the files of ConfigMap %q, which the manifest does not contain", dir, ref.Name)
		return true, nil
	}

	var keys []string
	if c != nil {
		keys = append(sortedKeys(c.Data), sortedKeys(c.BinaryData)...)
	}
	files := ref.files(keys)
	for _, name := range sortedKeys(files) {
		add(&r.Make, "file %s with the key %q of ConfigMap %q", path.Join(dir, name), files[name], ref.Name)
	}
	if len(files) == 0 {
		add(&r.Make, "directory %s (ConfigMap %q has no keys)", dir, ref.Name)
	}

	return true, nil
}

// secretVolume translates the mount of a Secret.
func (r *resolver) secretVolume(m volumeMount, v volumeDef) error {
	ref := *v.Secret
	ref.Name = cmp.Or(ref.SecretName, ref.Name)
	dir := r.secretPath(v.Name, ref.Name)
	found, err := r.secretFiles(v.Name, ref, dir)
	if err != nil || !found {
		return err
	}

	m.ReadOnly = true
	r.mountFiles(dir, m)
	return nil
}

// secretFiles records the files that must exist in place of a Secret. It returns false for an
// optional one that the manifest does not contain.
func (r *resolver) secretFiles(taker string, ref fileRefs, dir string) (bool, error) {
	keys, exists, err := r.secretKeys(ref.Name)
	switch {
	case err != nil:
		return false, err
	case !exists && ref.Optional && r.opts.Secrets[taker] == "":
		add(&r.LeftOut, "optional Secret %q of %s", ref.Name, r.c.name())
		return false, nil
	}

	files := ref.files(keys)
	for _, name := range sortedKeys(files) {
		r.secret(Secret{Variable: taker, Path: path.Join(dir, name), Source: fmt.Sprintf("key %q of Secret %q", files[name], ref.Name)})
	}
	if len(files) == 0 {
		add(&r.Make, "directory %s with the files of Secret %q, each with mode 0600", dir, ref.Name)
	}

	return true, nil
}

// mountFiles mounts a directory of files, or one of the files.
func (r *resolver) mountFiles(dir string, m volumeMount) {
	m.ReadOnly = true
	r.mount(literal(path.Join(dir, path.Clean("/"+m.SubPath))), m)
}

// projected translates the mount of a volume that consists of several sources.
func (r *resolver) projected(m volumeMount, v volumeDef) error {
	dir, filled := r.directory(v.Name), false
	for _, s := range v.Projected.Sources {
		var found bool
		var err error
		switch {
		case s.ConfigMap != nil:
			found, err = r.configMapFiles(*s.ConfigMap, dir)
		case s.Secret != nil:
			add(&r.takers, "%s", v.Name)
			found, err = r.secretFiles(v.Name, *s.Secret, dir)
		default:
			add(&r.LeftOut, "volume %s of %s (a token or fields of the pod)", v.Name, r.c.name())
		}

		if err != nil {
			return err
		}
		filled = filled || found
	}

	if filled {
		r.mountFiles(dir, m)
	}
	return nil
}
