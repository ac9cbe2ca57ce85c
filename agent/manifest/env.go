package manifest

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/volagent/volagent/agent/pluginfile"
)

// resolver resolves the references of one container at a time.
type resolver struct {
	*notes

	opts    Options
	objects []*object
	configs map[*object]*configMap
	used    map[string]bool // names in opts.Secrets that something takes
	takers  []string        // names of all variables and volumes that take a secret

	c   candidate
	p   *part
	env map[string]text // variables that are resolved so far, by name

	socket  string    // path of the CSI socket in the container, or empty
	moved   []rewrite // paths that are not mounted here
	scratch bool      // the state directory is already in use for an emptyDir
}

// secretDir is the directory for files with secrets.
const secretDir = "/etc/volagent/secrets/"

// configDir is the directory for the configuration of drivers.
const configDir = "/etc/volagent/"

// looksSecret matches the names of variables that usually hold a secret.
var looksSecret = regexp.MustCompile(`(?i)(^|_)(PASSWORD|PASSWD|PASSPHRASE|SECRET|TOKEN|SECRET_?KEY|(SECRET_)?ACCESS_?KEY|API_?KEY|PRIVATE_?KEY)$`).MatchString

// require returns the reference to a value that a person must set.
func (r *resolver) require(name, reason string) text {
	name = r.p.require(name, reason)
	return agentVariable(name)
}

// require adds a required value to a part, and returns its name.
func (p *part) require(name, reason string) string {
	name = strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' {
			return c
		}
		return '_'
	}, name)
	if name == "" || name[0] >= '0' && name[0] <= '9' {
		name = "_" + name
	}
	if name = name[:min(len(name), 56)]; slices.Contains(pluginfile.Variables(), name) {
		name += "_VALUE"
	}
	if !slices.ContainsFunc(p.values, func(v Value) bool { return v.Name == name }) {
		p.values = append(p.values, Value{Name: name, Reason: clean(reason)})
	}

	return name
}

// lookup returns the value of a variable of the container.
func (r *resolver) lookup(name string) (text, bool) {
	t, ok := r.env[name]
	return t, ok
}

// set sets a variable. A later one of the same name replaces it.
func (r *resolver) set(name string, t text) {
	r.env[name] = t
	r.p.env = slices.DeleteFunc(r.p.env, func(v variable) bool { return v.name == name })
	r.p.env = append(r.p.env, variable{name: name})
}

// tooLong returns an error for a text that is longer than maxText.
func (r *resolver) tooLong(t text) error {
	if t.size() > maxText {
		return invalid("a text of %s has more than %d bytes", r.c.origin(), maxText)
	}
	return nil
}

// environment resolves the variables of the container. It does not translate paths yet.
func (r *resolver) environment() error {
	for _, from := range r.c.container().EnvFrom {
		if err := r.envFrom(from); err != nil {
			return err
		}
	}

	for _, v := range r.c.container().Env {
		switch {
		case v.Name == "":
			return invalid("a variable of %s has no name", r.c.origin())
		case v.ValueFrom != nil:
			if err := r.valueFrom(v); err != nil {
				return err
			}

		case looksSecret(v.Name) && v.Value != "" && !strings.HasPrefix(v.Value, "/") && !strings.Contains(v.Value, "$("):
			r.setSecret(v.Name, v.Name, "the value of the variable "+v.Name+" in the manifest")
		default:
			r.set(v.Name, expand(v.Value, r.lookup))
		}

		if err := r.tooLong(r.env[v.Name]); err != nil {
			return err
		}
	}

	return nil
}

// setSecret sets a variable to the content of a file. The base is the default name of the file.
func (r *resolver) setSecret(name, base, source string) {
	r.set(name, text{{secret: name}})
	p := r.secretPath(name, base)
	r.p.env[len(r.p.env)-1].secret = p
	r.secret(Secret{Variable: name, Path: p, Source: source})
}

// secretPath returns the path of a secret's file: the one that a person chose, or a default.
func (r *resolver) secretPath(taker, base string) string {
	add(&r.takers, "%s", taker)
	if chosen := r.opts.Secrets[taker]; chosen != "" {
		r.used[taker] = true
		return chosen
	}
	return secretDir + r.ID + "-" + fileName(base)
}

// fileName returns a name for a file, without characters that are special anywhere.
func fileName(name string) string {
	name = strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("._-", c) {
			return c
		}
		return '-'
	}, name)
	return cmp.Or(strings.TrimLeft(name[:min(len(name), 100)], "."), "file")
}

func (r *resolver) valueFrom(v envVar) error {
	from := v.ValueFrom
	switch {
	case from.FieldRef != nil:
		r.set(v.Name, r.field(v.Name, from.FieldRef.FieldPath))
	case from.ResourceFieldRef != nil:
		add(&r.LeftOut, "variable %s of %s (%s)", v.Name, r.c.name(), from.ResourceFieldRef.Resource)
	case from.ConfigMapKeyRef != nil:
		return r.fromConfigMap(v.Name, *from.ConfigMapKeyRef)
	case from.SecretKeyRef != nil:
		ref := *from.SecretKeyRef
		given := r.opts.Secrets[v.Name] != ""
		known, _, err := r.secretKeys(ref.Name)
		if err != nil {
			return err
		}
		if ref.Optional && !given && !slices.Contains(known, ref.Key) {
			add(&r.takers, "%s", v.Name)
			add(&r.LeftOut, "variable %s of %s (optional key %q of Secret %q)", v.Name, r.c.name(), ref.Key, ref.Name)
			return nil
		}

		r.setSecret(v.Name, ref.Name+"-"+ref.Key, fmt.Sprintf("key %q of Secret %q", ref.Key, ref.Name))
	default:
		r.set(v.Name, r.require(v.Name, "the manifest takes the variable "+v.Name+" from a source that is not known here"))
	}

	return nil
}

// field returns the value of a pod's field.
func (r *resolver) field(name, field string) text {
	pod := r.c.workload.Spec.Template.Metadata
	if label, ok := quotedKey(field, "metadata.labels"); ok && pod.Labels[label] != "" {
		return literal(pod.Labels[label])
	}
	if note, ok := quotedKey(field, "metadata.annotations"); ok && pod.Annotations[note] != "" {
		return literal(pod.Annotations[note])
	}

	reason := map[string]string{
		"status.hostIP":  "the address of this host",
		"status.hostIPs": "the addresses of this host, separated by commas",
		"status.podIP":   "the address of this host, in place of a pod's",
		"status.podIPs":  "the addresses of this host, separated by commas, in place of a pod's",
		"metadata.name":  "a name that distinguishes this instance of the driver, in place of a pod's name",
		"metadata.uid":   "an id that distinguishes this instance of the driver, in place of a pod's",
	}[field]

	switch namespace := r.c.workload.object.Metadata.Namespace; {
	case field == "spec.nodeName":
		return agentVariable(pluginfile.VarNodeID)
	case field == "metadata.namespace" && namespace != "":
		return literal(namespace)
	case field == "spec.serviceAccountName":
		return literal(cmp.Or(r.c.pod.ServiceAccountName, r.c.pod.ServiceAccount, "default"))
	}

	return r.require(name, cmp.Or(reason, "the field "+field+" of the pod"))
}

// quotedKey returns KEY of a field in the form FIELD['KEY'].
func quotedKey(field, of string) (string, bool) {
	rest, ok := strings.CutPrefix(field, of+"['")
	key, closed := strings.CutSuffix(rest, "']")
	return key, ok && closed
}

func (r *resolver) fromConfigMap(name string, ref keyRef) error {
	m, err := r.configMap(ref.Name)
	if err != nil {
		return err
	}

	if m != nil {
		if value, ok := m.Data[ref.Key]; ok {
			r.set(name, literal(value))
			return nil
		}
	}
	if ref.Optional {
		add(&r.LeftOut, "variable %s of %s (optional key %q of ConfigMap %q)", name, r.c.name(), ref.Key, ref.Name)
		return nil
	}

	r.set(name, r.require(name, fmt.Sprintf("key %q of ConfigMap %q, which the manifest does not contain", ref.Key, ref.Name)))
	return nil
}

// envFrom sets a variable for each key of a ConfigMap or Secret.
func (r *resolver) envFrom(from envFrom) error {
	var keys []string
	var exists, optional bool
	var name, kind string
	var err error
	values := map[string]string{}
	switch {
	case from.ConfigMapRef != nil:
		kind, name, optional = "ConfigMap", from.ConfigMapRef.Name, from.ConfigMapRef.Optional
		m, e := r.configMap(name)
		if err = e; m != nil {
			keys, values, exists = sortedKeys(m.Data), m.Data, true
		}

	case from.SecretRef != nil:
		kind, name, optional = "Secret", from.SecretRef.Name, from.SecretRef.Optional
		keys, exists, err = r.secretKeys(name)
	default:
		return nil
	}

	switch {
	case err != nil:
		return err
	case !exists && optional:
		add(&r.LeftOut, "optional %s %q of %s", kind, name, r.c.name())
	case !exists:
		return invalid("%s takes its variables from the %s %s, which is not in the manifest; append its document, and leave the values of a Secret empty",
			r.c.origin(), kind, quoted([]string{name}))
	}

	for _, key := range keys {
		if kind == "Secret" {
			r.setSecret(from.Prefix+key, name+"-"+key, fmt.Sprintf("key %q of Secret %q", key, name))
		} else {
			r.set(from.Prefix+key, literal(values[key]))
		}
	}

	return nil
}

// named returns the object with a kind and name in the namespace of the workload, or nil.
func (r *resolver) named(kind, name string) *object {
	for _, o := range r.objects {
		if o.Kind == kind && o.Metadata.Name == name && sameNamespace(o.Metadata.Namespace, r.c.workload.object.Metadata.Namespace) {
			return o
		}
	}
	return nil
}

// configMap returns a ConfigMap of the manifest, or nil.
func (r *resolver) configMap(name string) (*configMap, error) {
	o := r.named("ConfigMap", name)
	if o == nil {
		return nil, nil
	}

	if r.configs[o] == nil {
		r.configs[o] = &configMap{}
		if err := o.into(r.opts.File, r.configs[o]); err != nil {
			return nil, err
		}
	}

	return r.configs[o], nil
}

// secretKeys returns the keys of a Secret, and whether the manifest contains the Secret. It does not
// read the values.
func (r *resolver) secretKeys(name string) (all []string, exists bool, err error) {
	o := r.named("Secret", name)
	if o == nil {
		return nil, false, nil
	}

	var s secretObject
	if err := o.into(r.opts.File, &s); err != nil {
		return nil, false, err
	}

	all = append(sortedKeys(s.Data), sortedKeys(s.StringData)...)
	slices.Sort(all)
	return slices.Compact(all), true, nil
}

// rewriteEnvironment translates the paths in the variables, and removes the variable that the agent
// sets.
func (r *resolver) rewriteEnvironment() {
	var out []variable
	for _, v := range r.p.env {
		t := r.env[v.name]
		switch {
		case v.name == pluginfile.VarEndpoint || v.name == pluginfile.EnvIncarnation:
			continue
		case t.secretIn() != "" && v.secret == "":
			v.secret = r.secretOf(v.name, t)
		case v.secret == "":
			translated, changed := apply(r.rules(), t)
			v.text = translated.String()
			if changed && !r.endpointOnly(translated) {
				add(&r.Warnings, "a path in the variable %s became %s", v.name, names(translated))
			}
		}

		out = append(out, v)
	}

	r.p.env = out
}

// secretOf returns the file of a variable that contains another variable's secret. If it has more
// text, a file of its own must contain the whole text.
func (r *resolver) secretOf(name string, t text) string {
	if len(t) == 1 {
		for _, v := range r.p.env {
			if v.name == t[0].secret && v.secret != "" {
				return v.secret
			}
		}
	}

	p := r.secretPath(name, name)
	r.secret(Secret{Variable: name, Path: p, Source: "the text of the variable " + name + ", which contains the secret of " + t.secretIn()})
	return p
}

// directory returns the path of a host directory for files of a ConfigMap.
func (r *resolver) directory(name string) string { return path.Join(configDir, r.ID, fileName(name)) }
