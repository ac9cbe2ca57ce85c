package spec

import (
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/volagent/volagent/agent/api"
)

// notForClaim explains the fields of a PersistentVolumeClaim that the agent does not support.
var notForClaim = map[string]string{
	"selector":      "it selects existing PersistentVolumes of a cluster; the class always makes a new volume",
	"volumeName":    "it names an existing PersistentVolume of a cluster; register that PersistentVolume with volctl volume register",
	"dataSource":    "write a volume file with class, and with snapshot_id or clone_id",
	"dataSourceRef": "write a volume file with class, and with snapshot_id or clone_id",

	"volumeAttributesClassName": "set mutable_parameters in the class file",
}

// persistentVolumeClaim decodes a PersistentVolumeClaim. It becomes a request for a new volume of a
// class.
func (d kubernetesDecoder) persistentVolumeClaim(n *yaml.Node) located {
	var (
		v         persistentVolume // its fields access, block and spec
		className *yaml.Node
	)

	ignored := func(*yaml.Node) {}
	d.mapping(n, "a PersistentVolumeClaim", fields{
		"apiVersion": func(n *yaml.Node) { d.oneOf(n, "apiVersion", []string{"v1"}) },
		"kind":       ignored,
		"status":     ignored,
		"metadata": func(n *yaml.Node) {
			d.some(n, "metadata", fields{"name": func(n *yaml.Node) { v.name, v.spec.ID = n, d.checked(n, "metadata.name", CheckVolumeID) }})
		},
		"spec": func(n *yaml.Node) {
			known := fields{
				"accessModes":      func(n *yaml.Node) { d.list(n, "accessModes", func(n *yaml.Node) { v.access = append(v.access, n) }) },
				"volumeMode":       func(n *yaml.Node) { v.block = d.oneOf(n, "volumeMode", []string{"Filesystem", "Block"}) == "Block" },
				"storageClassName": func(n *yaml.Node) { className, v.spec.Class = n, d.checked(n, "storageClassName", CheckClassID) },
				"resources":        func(n *yaml.Node) { d.claimResources(n, &v.spec) },
			}
			for name, why := range notForClaim {
				known[name] = func(n *yaml.Node) { d.fail(n, "%s is not supported: %s", name, why) }
			}
			d.mapping(n, "spec", known)
		},
	})

	if v.name == nil {
		v.name = n
		d.fail(n, `"metadata.name" is missing: it becomes the volume's id`)
	}
	if className == nil {
		d.fail(n, `"spec.storageClassName" is missing: it names the class of the volume; to list the classes: volctl class list`)
	}

	if len(v.access) > 0 || v.block { // otherwise the class decides
		v.spec.Capabilities = d.pvCapabilities(&v)
	}
	return located{Document: Document{Spec: v.spec}, at: v.name}
}

// claimResources reads the size of a PersistentVolumeClaim.
func (d kubernetesDecoder) claimResources(n *yaml.Node, s *api.VolumeSpec) {
	var smallest, largest *yaml.Node
	size := func(what string, at **yaml.Node, to *int64) func(*yaml.Node) {
		return func(n *yaml.Node) {
			d.mapping(n, what, fields{"storage": func(n *yaml.Node) { *at, *to = n, d.quantity(n) }})
		}
	}

	d.mapping(n, "resources", fields{
		"requests": size("requests", &smallest, &s.CapacityMin),
		"limits":   size("limits", &largest, &s.CapacityMax),
	})

	known := !slices.Contains([]*yaml.Node{smallest, largest}, nil)
	if known && s.CapacityMin > s.CapacityMax {
		d.fail(smallest, "the requested storage is more than its limit in line %d", largest.Line)
	}
}
