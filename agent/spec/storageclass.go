package spec

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/volagent/volagent/agent/api"
)

// storageClassDecoder decodes StorageClasses of Kubernetes.
type storageClassDecoder struct{ volumeDecoder }

// reservedPrefix is the beginning of the parameters that Kubernetes reads itself. It does not pass
// them to the plugin. See the sidecar external-provisioner of Kubernetes.
const reservedPrefix = "csi.storage.k8s.io/"

// fsTypeParameters are the parameters of a StorageClass that contain the type of the file system. The
// second one is deprecated.
var fsTypeParameters = []string{reservedPrefix + "fstype", "fstype"}

// storageClass decodes a StorageClass. Its name becomes the id of the class, and its provisioner the
// CSI driver.
func (d storageClassDecoder) storageClass(n *yaml.Node) ClassDocument {
	doc := ClassDocument{From: Kubernetes, Line: n.Line}
	s := &doc.Spec
	ignored := func(*yaml.Node) {}
	kindOf := ""

	d.some(n, "an object of Kubernetes", fields{"kind": func(n *yaml.Node) { kindOf = d.text(n, "kind") }})
	if kindOf != "StorageClass" {
		d.fail(n, "a Kubernetes %s is not a class: only a StorageClass can be read here", quote(kindOf))
		return doc
	}

	d.mapping(n, "a StorageClass", fields{
		"apiVersion": func(n *yaml.Node) { d.oneOf(n, "apiVersion", []string{"storage.k8s.io/v1", "storage.k8s.io/v1beta1"}) },
		"kind":       ignored,
		"metadata": func(n *yaml.Node) {
			d.some(n, "metadata", fields{"name": func(n *yaml.Node) { s.ID = d.checked(n, "metadata.name", CheckClassID) }})
		},
		"provisioner": func(n *yaml.Node) { doc.Line, s.Driver = n.Line, d.text(n, "provisioner") },
		"parameters":  func(n *yaml.Node) { d.classParameters(n, &doc) },
		"reclaimPolicy": func(n *yaml.Node) {
			s.Reclaim = map[string]string{"Delete": api.ReclaimDelete, "Retain": api.ReclaimRetain}[d.oneOf(n, "reclaimPolicy", []string{"Delete", "Retain"})]
		},
		"mountOptions": func(n *yaml.Node) {
			d.list(n, "mountOptions", func(n *yaml.Node) { addFlag(&s.MountOptions, d.text(n, "a mount option")) })
		},
		"allowedTopologies": func(n *yaml.Node) { s.Topology = d.allowedTopologies(n) },

		// A volume of one host can always grow if its plugin permits it, and the host that creates a
		// volume is the one that uses it.
		"allowVolumeExpansion": ignored,
		"volumeBindingMode":    ignored,
	})

	if !given(n, "metadata") || s.ID == "" {
		d.fail(n, `"metadata.name" is missing: it becomes the id of the class`)
	}
	if !given(n, "provisioner") {
		d.fail(n, `"provisioner" is missing: it names the CSI driver`)
	}
	return doc
}

// addFlag adds a mount flag to mount options that may not exist yet.
func addFlag(to **api.MountOptions, flag string) {
	if *to == nil {
		*to = &api.MountOptions{}
	}
	(*to).MountFlags = append((*to).MountFlags, flag)
}

// classParameters reads the parameters of a StorageClass. The references to Secrets of the cluster
// become a warning, because the agent cannot read them.
func (d storageClassDecoder) classParameters(n *yaml.Node, doc *ClassDocument) {
	var secrets []string
	all := d.texts(n, "parameters")
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		value, ok := all[key.Value]
		name, reserved := strings.CutPrefix(key.Value, reservedPrefix)
		isSecret := strings.HasSuffix(name, "secret-name") || strings.HasSuffix(name, "secret-namespace")

		switch {
		case !ok:
			continue
		case slices.Contains(fsTypeParameters, key.Value):
			if doc.Spec.MountOptions == nil {
				doc.Spec.MountOptions = &api.MountOptions{}
			}
			doc.Spec.MountOptions.FSType = value
		case !reserved:
			continue
		case isSecret:
			secrets = append(secrets, shortened(name))
		default:
			d.fail(key, "parameter %s is not supported: names with %s are reserved for Kubernetes", quote(key.Value), reservedPrefix)
		}
		delete(all, key.Value)
	}

	if len(all) > 0 {
		doc.Spec.Parameters = all
	}
	if len(secrets) > 0 {
		slices.Sort(secrets)
		doc.Warnings = append(doc.Warnings, "the class names Secrets of the cluster, which the agent cannot read ("+joined(secrets)+
			"): write the output of volctl class show to the class file, and add secrets with references")
	}
}

// allowedTopologies reads the topologies of a StorageClass. Each term is a list of expressions, and
// an expression lists the values of one key. A CSI topology has one value for each key, so a term
// becomes one topology for each combination of values.
func (d storageClassDecoder) allowedTopologies(n *yaml.Node) *api.TopologyRequest {
	var t api.TopologyRequest
	d.list(n, "allowedTopologies", func(n *yaml.Node) {
		term := []map[string]string{{}}
		d.mapping(n, "allowedTopologies", fields{
			"matchLabelExpressions": func(list *yaml.Node) {
				d.list(list, "matchLabelExpressions", func(n *yaml.Node) { term = d.labelExpression(n, term) })
			},
		})
		t.Required = append(t.Required, term...)
	})

	if len(t.Required) > maxTopologies {
		d.fail(n, "allowedTopologies has %d combinations of values, more than %d", len(t.Required), maxTopologies)
	}
	return &t
}

// maxTopologies limits the number of topologies of a class.
const maxTopologies = 256

// labelExpression returns the topologies of a term, each with each value of the expression.
func (d storageClassDecoder) labelExpression(n *yaml.Node, term []map[string]string) []map[string]string {
	key, values := "", []string{}
	d.mapping(n, "matchLabelExpressions", fields{
		"key": func(n *yaml.Node) { key = d.text(n, "key") },
		"values": func(n *yaml.Node) {
			d.list(n, "values", func(n *yaml.Node) { values = append(values, d.text(n, "a value")) })
		},
	})

	if key == "" || len(values) == 0 {
		d.fail(n, `"key" and "values" are both needed in matchLabelExpressions`)
		return term
	}
	if len(term)*len(values) > maxTopologies {
		d.fail(n, "allowedTopologies has more than %d combinations of values", maxTopologies)
		return term
	}

	var all []map[string]string
	for _, had := range term {
		for _, value := range values {
			one := map[string]string{key: value}
			for k, v := range had {
				one[k] = v
			}
			all = append(all, one)
		}
	}
	return all
}
