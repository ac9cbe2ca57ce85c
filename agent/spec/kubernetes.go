package spec

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/volagent/volagent/agent/api"
)

// kubernetesDecoder decodes PersistentVolumes and PersistentVolumeClaims of Kubernetes.
type kubernetesDecoder struct{ volumeDecoder }

// kubernetes decodes a Kubernetes object, as kubectl prints it: a PersistentVolume, a
// PersistentVolumeClaim, or a list of them.
func (d kubernetesDecoder) kubernetes(n *yaml.Node) {
	kindOf := ""
	var items *yaml.Node
	ok := d.some(n, "an object of Kubernetes", fields{
		"kind":  func(n *yaml.Node) { kindOf = d.text(n, "kind") },
		"items": func(n *yaml.Node) { items = n },
	})

	switch {
	case !ok:
	case kindOf == "PersistentVolume":
		d.found = append(d.found, d.persistentVolume(n))
	case kindOf == "PersistentVolumeClaim":
		d.found = append(d.found, d.persistentVolumeClaim(n))
	case kindOf == "StorageClass":
		d.fail(n, "a Kubernetes StorageClass is a class, not a volume: move it to a class file (volctl class list)")
	case slices.Contains(lists, kindOf):
		if items != nil {
			d.list(items, "items", d.entry)
		}
	case kindOf == "":
		d.fail(n, `"kind" is missing: only a PersistentVolume or a PersistentVolumeClaim of Kubernetes can be read`)
	default:
		d.fail(n, "a Kubernetes %s is not a volume: remove it from the file; only PersistentVolumes and PersistentVolumeClaims can be read", shortened(kindOf))
	}
}

// lists contains the kinds of objects that list other objects.
var lists = []string{"List", "PersistentVolumeList", "PersistentVolumeClaimList"}

// persistentVolume holds the decoded fields of a PersistentVolume.
type persistentVolume struct {
	name, driver, handle      *yaml.Node
	access                    []*yaml.Node
	block, readOnly, deletes  bool
	deleted                   bool
	claimNamespace, claimName string
	affinity                  bool
	spec                      api.VolumeSpec
	csi                       *yaml.Node
	secrets                   []string // entries such as "nodeStageSecretRef (ns/name)"
	otherSources              []string
}

// persistentVolume decodes a PersistentVolume with a csi source. It ignores fields that matter only
// to the cluster. It adds a warning for each field that affects the use of the volume on this host.
// It also warns if the cluster can still change or delete the volume.
func (d kubernetesDecoder) persistentVolume(n *yaml.Node) located {
	var v persistentVolume
	ignored := func(*yaml.Node) {}
	d.mapping(n, "a PersistentVolume", fields{
		"apiVersion": func(n *yaml.Node) { d.oneOf(n, "apiVersion", []string{"v1"}) },
		"kind":       ignored,
		"status":     ignored,
		"metadata": func(n *yaml.Node) {
			d.some(n, "metadata", fields{
				"name":              func(n *yaml.Node) { v.name, v.spec.ID = n, d.checked(n, "metadata.name", CheckVolumeID) },
				"deletionTimestamp": func(*yaml.Node) { v.deleted = true },
			})
		},
		"spec": func(n *yaml.Node) { d.pvSpec(n, &v) },
	})

	if v.name == nil {
		v.name = n
		d.fail(n, `"metadata.name" is missing: it becomes the volume's id`)
	}

	switch {
	case v.csi == nil && len(v.otherSources) > 0:
		d.fail(n, "the PersistentVolume has the source %s; only csi can be used here", joined(v.otherSources))
	case v.csi == nil:
		d.fail(n, `"spec.csi" is missing: only a PersistentVolume with that source can be used here`)
	case v.driver == nil || v.handle == nil:
		d.fail(v.csi, `"driver" and "volumeHandle" are both needed in csi`)
	}

	v.spec.Capabilities = d.pvCapabilities(&v)
	v.spec.Reclaim = api.ReclaimRetain
	doc := Document{Spec: v.spec, From: Kubernetes, Warnings: v.warnings()}

	if v.driver != nil {
		doc.Driver = v.driver.Value
	}

	return located{Document: doc, at: v.name}
}

// pvSources lists the sources of a PersistentVolume other than csi.
var pvSources = []string{
	"awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "fc", "flexVolume", "flocker", "gcePersistentDisk", "glusterfs",
	"hostPath", "iscsi", "local", "nfs", "photonPersistentDisk", "portworxVolume", "quobyte", "rbd", "scaleIO", "storageos", "vsphereVolume",
}

func (d kubernetesDecoder) pvSpec(n *yaml.Node, v *persistentVolume) {
	ignored := func(*yaml.Node) {}
	known := fields{
		"csi": func(n *yaml.Node) { v.csi = n; d.pvSource(n, v) },
		"capacity": func(n *yaml.Node) {
			d.some(n, "capacity", fields{"storage": func(n *yaml.Node) { v.spec.CapacityMin = d.quantity(n) }})
		},
		"accessModes": func(n *yaml.Node) { d.list(n, "accessModes", func(n *yaml.Node) { v.access = append(v.access, n) }) },
		"volumeMode":  func(n *yaml.Node) { v.block = d.oneOf(n, "volumeMode", []string{"Filesystem", "Block"}) == "Block" },
		"mountOptions": func(n *yaml.Node) {
			d.list(n, "mountOptions", func(n *yaml.Node) { v.flag(d.text(n, "a mount option")) })
		},
		"persistentVolumeReclaimPolicy": func(n *yaml.Node) {
			v.deletes = d.oneOf(n, "persistentVolumeReclaimPolicy", []string{"Retain", "Delete", "Recycle"}) == "Delete"
		},
		"claimRef": func(n *yaml.Node) {
			d.some(n, "claimRef", fields{
				"namespace": func(n *yaml.Node) { v.claimNamespace = d.text(n, "namespace") },
				"name":      func(n *yaml.Node) { v.claimName = d.text(n, "name") },
			})
		},
		"nodeAffinity":              func(*yaml.Node) { v.affinity = true },
		"storageClassName":          ignored,
		"volumeAttributesClassName": ignored,
	}

	for _, name := range pvSources {
		known[name] = func(*yaml.Node) { v.otherSources = append(v.otherSources, name) }
	}

	d.mapping(n, "spec", known)
}

func (d kubernetesDecoder) pvSource(n *yaml.Node, v *persistentVolume) {
	known := fields{
		"driver":           func(n *yaml.Node) { v.driver = n; d.text(n, "driver") },
		"volumeHandle":     func(n *yaml.Node) { v.handle, v.spec.ExternalID = n, d.text(n, "volumeHandle") },
		"volumeAttributes": func(n *yaml.Node) { v.spec.Context = d.texts(n, "volumeAttributes") },
		"readOnly":         func(n *yaml.Node) { v.readOnly = d.truth(n, "readOnly") },
		"fsType": func(n *yaml.Node) {
			if n.Value != "" { // an empty type selects the driver's default
				v.options().FSType = d.text(n, "fsType")
			}
		},
	}

	for _, name := range []string{"controllerPublishSecretRef", "nodeStageSecretRef", "nodePublishSecretRef", "controllerExpandSecretRef", "nodeExpandSecretRef"} {
		known[name] = func(n *yaml.Node) {
			var namespace, secret string
			d.mapping(n, name, fields{
				"namespace": func(n *yaml.Node) { namespace = d.text(n, "namespace") },
				"name":      func(n *yaml.Node) { secret = d.text(n, "name") },
			})
			v.secrets = append(v.secrets, fmt.Sprintf("%s (%s)", name, shortened(strings.TrimPrefix(namespace+"/"+secret, "/"))))
		}
	}

	d.mapping(n, "csi", known)
}

func (v *persistentVolume) options() *api.MountOptions {
	if v.spec.MountOptions == nil {
		v.spec.MountOptions = &api.MountOptions{}
	}
	return v.spec.MountOptions
}

func (v *persistentVolume) flag(flag string) {
	o := v.options()
	o.MountFlags = append(o.MountFlags, flag)
}

func (d kubernetesDecoder) truth(n *yaml.Node, what string) bool {
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" {
		d.fail(n, "%s must be true or false, not %s", what, kind(n))
	}
	return strings.EqualFold(n.Value, "true")
}

func (d kubernetesDecoder) quantity(n *yaml.Node) int64 {
	if n.Kind != yaml.ScalarNode || !slices.Contains([]string{"!!str", "!!int", "!!float"}, n.ShortTag()) {
		d.fail(n, "storage must be a quantity such as 10Gi, not %s", kind(n))
		return 0
	}

	size, err := parseQuantity(n.Value)
	if err != nil {
		d.fail(n, "storage: %v", err)
	}

	return size
}

// pvAccess maps each Kubernetes access mode to two access modes of the agent: reading applies if
// csi.readOnly is set, and writing applies otherwise.
var pvAccess = map[string]struct{ writing, reading string }{
	"ReadWriteOnce":    {"single-node-writer", "single-node-reader-only"},
	"ReadWriteOncePod": {"single-node-single-writer", "single-node-reader-only"},
	"ReadOnlyMany":     {"multi-node-reader-only", "multi-node-reader-only"},
	"ReadWriteMany":    {"multi-node-multi-writer", "multi-node-reader-only"},
}

func (d kubernetesDecoder) pvCapabilities(v *persistentVolume) []api.Capability {
	caps := make([]api.Capability, 0, len(v.access))
	attachment := DefaultAttachmentMode

	if v.block {
		attachment = "block-device"
	}

	for _, n := range v.access {
		mode := pvAccess[d.oneOf(n, "access mode", []string{"ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"})]
		c := api.Capability{AccessMode: mode.writing, AttachmentMode: attachment}
		if v.readOnly {
			c.AccessMode = mode.reading
		}
		if !slices.Contains(caps, c) {
			caps = append(caps, c)
		}
	}

	if len(caps) == 0 {
		access := DefaultAccessMode
		if v.readOnly {
			access = "single-node-reader-only"
		}
		caps = append(caps, api.Capability{AccessMode: access, AttachmentMode: attachment})
	}

	return caps
}

// warnings returns warnings for the operator about the volume.
func (v *persistentVolume) warnings() []string {
	user := "its users"
	if v.claimName != "" {
		user = "the users of the claim " + shortened(v.claimNamespace+"/"+v.claimName)
	}

	said := []string{"the Kubernetes cluster must stop using the volume: end " + user + " before you claim the volume here"}
	if v.deletes {
		said = append(said, "its reclaim policy in the cluster is Delete, so the cluster destroys the data when its claim is deleted: "+
			"first set the policy to Retain in the cluster. This agent registers the volume with reclaim: retain")
	}

	if v.deleted {
		said = append(said, "the cluster is deleting the volume")
	}

	if len(v.secrets) > 0 {
		said = append(said, "the volume needs Secrets of the cluster, which the agent cannot read: "+joined(v.secrets)+
			". Export the volume to a file, add the values of these Secrets under secrets, and register that file")
	}

	if v.affinity {
		said = append(said, "the agent ignores its nodeAffinity: check that this host can reach the storage")
	}

	return said
}
