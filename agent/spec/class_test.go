package spec_test

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/spec"
)

const fullClass = `
id: fast
note: SSDs for databases
plugin_id: ebs
name_prefix: ${NODE_ID}-
size: {default: 10GiB, min: 1GiB, max: 1TiB}
capabilities:
  - access_mode: single-node-writer
  - access_mode: single-node-writer
    attachment_mode: block-device
mount_options: {fs_type: xfs, mount_flags: [noatime]}
parameters: {type: gp3}
mutable_parameters: {iops: "4000"}
topology_request: {required: [{zone: a}]}
secrets: {key: {file: /etc/volagent/secrets/ebs}}
reclaim: delete
scope: host
allow: [reclaim, fs_type]
`

func fullSpec() api.ClassSpec {
	return api.ClassSpec{
		ID: "fast", Note: "SSDs for databases", PluginID: "ebs", NamePrefix: "${NODE_ID}-",
		Size: api.ClassSize{Default: 10 << 30, Min: 1 << 30, Max: 1 << 40},
		Capabilities: []api.Capability{
			{AccessMode: "single-node-writer", AttachmentMode: "file-system"},
			{AccessMode: "single-node-writer", AttachmentMode: "block-device"},
		},
		MountOptions: &api.MountOptions{FSType: "xfs", MountFlags: []string{"noatime"}},
		Topology:     &api.TopologyRequest{Required: []map[string]string{{"zone": "a"}}},
		Parameters:   map[string]string{"type": "gp3"}, Mutable: map[string]string{"iops": "4000"},
		Secrets: map[string]api.Secret{"key": {File: "/etc/volagent/secrets/ebs"}},
		Reclaim: "delete", Scope: "host", Allow: []string{"reclaim", "fs_type"},
	}
}

// TestReadClass checks that ReadClass reads every field, and that WriteClass writes every field.
func TestReadClass(t *testing.T) {
	got, err := spec.ReadClass("fast.yaml", []byte(fullClass), "file")
	if err != nil || !reflect.DeepEqual(got.Spec, fullSpec()) || got.Line != 4 {
		t.Errorf("%v\ngot  %+v\nwant %+v", err, got, fullSpec())
	}
	fields := reflect.ValueOf(got.Spec)
	for i := range fields.NumField() {
		if name := fields.Type().Field(i).Name; fields.Field(i).IsZero() && name != "Driver" {
			t.Errorf("the test does not read %s", name)
		}
	}

	text, err := spec.WriteClass(fullSpec())
	if err != nil {
		t.Fatal(err)
	}
	back, err := spec.ReadClass("again.yaml", text, "x")
	want := fullSpec()
	want.Allow = []string{"fs_type", "reclaim"}
	if err != nil || !reflect.DeepEqual(back.Spec, want) {
		t.Errorf("%v: %+v in\n%s", err, back, text)
	}

	short, err := spec.ReadClass("x.yaml", []byte("driver: d.example\n"), "x")
	if err != nil || !reflect.DeepEqual(short.Spec, api.ClassSpec{ID: "x", Driver: "d.example"}) {
		t.Errorf("%v, %+v", err, short)
	}
}

const storageClass = `apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: gp3
  annotations: {storageclass.kubernetes.io/is-default-class: "true"}
provisioner: ebs.csi.aws.com
parameters:
  type: gp3
  csi.storage.k8s.io/fstype: ext4
reclaimPolicy: Delete
allowVolumeExpansion: true
volumeBindingMode: WaitForFirstConsumer
mountOptions: [noatime]
allowedTopologies:
- matchLabelExpressions:
  - {key: zone, values: [a, b]}
  - {key: rack, values: [r1]}
`

// TestStorageClass checks the meaning of each field of a StorageClass.
func TestStorageClass(t *testing.T) {
	got, err := spec.ReadClass("gp3.yaml", []byte(storageClass), "x")
	want := spec.ClassDocument{From: spec.Kubernetes, Line: 6, Spec: api.ClassSpec{
		ID: "gp3", Driver: "ebs.csi.aws.com", Parameters: map[string]string{"type": "gp3"}, Reclaim: "delete",
		MountOptions: &api.MountOptions{FSType: "ext4", MountFlags: []string{"noatime"}},
		Topology:     &api.TopologyRequest{Required: []map[string]string{{"zone": "a", "rack": "r1"}, {"zone": "b", "rack": "r1"}}},
	}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v\ngot  %+v\nwant %+v", err, got, want)
	}

	secret := strings.Replace(storageClass, "csi.storage.k8s.io/fstype: ext4", "csi.storage.k8s.io/provisioner-secret-name: s\n  csi.storage.k8s.io/provisioner-secret-namespace: n", 1)
	got, err = spec.ReadClass("gp3.yaml", []byte(secret), "x")
	if err != nil || len(got.Warnings) != 1 || !strings.Contains(got.Warnings[0], "provisioner-secret-name, provisioner-secret-namespace") || len(got.Spec.Parameters) != 1 {
		t.Errorf("%v, %+v", err, got)
	}
	plain, err := spec.ReadClass("x.yaml", []byte("kind: StorageClass\nmetadata: {name: a}\nprovisioner: p"), "x")
	if err != nil || plain.Spec.Reclaim != "" || plain.Spec.Parameters != nil {
		t.Errorf("%v, %+v", err, plain)
	}
}

// TestClassMistakes checks the messages for mistakes, each with its line, and the id that remains
// known.
func TestClassMistakes(t *testing.T) {
	class := func(lines string) string { return "id: fast\nplugin_id: p\n" + lines }
	many := "[" + strings.Repeat("x, ", 256) + "x]"
	for file, want := range map[string]string{
		"":                                                           `f:1:1: the file contains no class`,
		"id: a\n---\nid: b":                                          `f:3:1: a class file contains one class; move this document to a file of its own`,
		"- id: a":                                                    `f:1:1: a class must be a mapping of names to values, not a list`,
		"note: x":                                                    `f:1:1: "plugin_id" is missing: it names the plugin that makes the volumes`,
		class("driver: d"):                                           `f:3:9: "plugin_id" and "driver" are both given: a class needs only one of them`,
		class("sice: 1GiB"):                                          `f:3:1: unknown field "sice" in a class (did you mean "size"?)`,
		class("size: 1GiB"):                                          `f:3:7: size must be a mapping of names to values, not a text`,
		class("size: {max: 10}"):                                     `f:3:13: size.max: bad size "10": a number without a unit counts bytes, and must be at least 1048576`,
		class("size: {most: 1GiB}"):                                  `f:3:8: unknown field "most" in size`,
		class("allow: [plugin_id]"):                                  `f:3:9: unknown field in allow "plugin_id"; it is one of name, capabilities, fs_type, mount_flags, parameters, mutable_parameters, topology_request, secrets, reclaim, scope`,
		class("name_prefix: ${HOST}-"):                               `f:3:14: bad name_prefix "${HOST}-": the only variable is ${NODE_ID}`,
		class("note: \"a\\nb\""):                                     `f:3:7: note must be one line of printable characters`,
		class("secrets: {k: hunter2}"):                               `f:3:14: secret "k" of a class must be a reference: {file: PATH}, {credential: NAME} or {env: NAME}`,
		class("secrets: {k: {sealed: true}}"):                        `f:3:14: secret "k" of a class must be a reference: {file: PATH}, {credential: NAME} or {env: NAME}`,
		class("size: {min: 2GiB, max: 1GiB}"):                        `f:3:7: size.min 2GiB is more than size.max 1GiB`,
		class("size: {default: 2GiB, max: 1GiB}"):                    `f:3:7: size.default 2GiB is more than size.max 1GiB`,
		class("size: {default: 1GiB, min: 2GiB}"):                    `f:3:7: size.default 1GiB is less than size.min 2GiB`,
		class("scope: shared\nname_prefix: ${NODE_ID}"):              `f:4:14: ${NODE_ID} is not possible with scope: shared, because every host must use the same name for a shared volume`,
		"kind: ConfigMap\n":                                          `f:1:1: a Kubernetes "ConfigMap" is not a class: only a StorageClass can be read here`,
		"kind: StorageClass\nprovisioner: p":                         `f:1:1: "metadata.name" is missing: it becomes the id of the class`,
		"kind: StorageClass\nmetadata: {name: a}":                    `f:1:1: "provisioner" is missing: it names the CSI driver`,
		strings.Replace(storageClass, "fstype:", "pv/name:", 1):      `f:9:3: parameter "csi.storage.k8s.io/pv/name" is not supported: names with csi.storage.k8s.io/ are reserved for Kubernetes`,
		strings.Replace(storageClass, "[a, b]", "[]", 1):             `f:16:5: "key" and "values" are both needed in matchLabelExpressions`,
		strings.Replace(storageClass, "[a, b]", many, 1):             `f:16:5: allowedTopologies has more than 256 combinations of values`,
		strings.Replace(storageClass, "mountOptions:", "mounts:", 1): `f:13:1: unknown field "mounts" in a StorageClass`,
		strings.Replace(storageClass, "Delete", "Recycle", 1):        `f:10:16: unknown reclaimPolicy "Recycle"; it is one of Delete, Retain`,
	} {
		got, err := spec.ReadClass("f", []byte(file), "stem")
		if err == nil || !strings.Contains(err.Error(), want) || got.From != "" || got.Spec.PluginID != "" {
			t.Errorf("%q:\ngot  %v, %+v\nwant %s", file, err, got, want)
			continue
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the message contains the secret: %v", err)
		}
		if strings.HasPrefix(file, "id: fast") && got.Spec.ID != "fast" {
			t.Errorf("%q: the id is %q", file, got.Spec.ID)
		}
	}
	for file, stem := range map[string]string{"plugin_id: p": "a b", "id: -x\nplugin_id: p": "x"} {
		if got, err := spec.ReadClass("f", []byte(file), stem); err == nil || !strings.Contains(err.Error(), "bad class id") || got.Spec.ID != "" {
			t.Errorf("%q: %v, %+v", file, err, got)
		}
	}
}

const claim = `apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: shop, labels: {app: shop}}
spec:
  accessModes: [ReadWriteOncePod]
  storageClassName: fast
  volumeMode: Block
  resources:
    requests: {storage: 8Gi}
    limits: {storage: 10Gi}
`

// TestPersistentVolumeClaim checks the meaning of each field of a PersistentVolumeClaim.
func TestPersistentVolumeClaim(t *testing.T) {
	check(t, claim, []api.VolumeSpec{{
		ID: "data", Class: "fast", CapacityMin: 8 << 30, CapacityMax: 10 << 30,
		Capabilities: []api.Capability{{AccessMode: "single-node-single-writer", AttachmentMode: "block-device"}},
	}})
	check(t, "kind: PersistentVolumeClaim\nmetadata: {name: a}\nspec: {storageClassName: fast}", []api.VolumeSpec{{ID: "a", Class: "fast"}})
	check(t, "id: a\nclass: fast\ncapacity_min: 1GiB\n", []api.VolumeSpec{{ID: "a", Class: "fast", CapacityMin: 1 << 30}})

	for in, want := range map[string]string{
		"  selector: {matchLabels: {a: b}}":             `claim.yaml:11:13: selector is not supported: it selects existing PersistentVolumes of a cluster; the class always makes a new volume`,
		"  dataSource: {kind: VolumeSnapshot, name: s}": `claim.yaml:11:15: dataSource is not supported: write a volume file with class, and with snapshot_id or clone_id`,
		"  volumeName: pvc-1":                           `volumeName is not supported: it names an existing PersistentVolume of a cluster`,
		"  volumeAttributesClassName: x":                `volumeAttributesClassName is not supported: set mutable_parameters in the class file`,
		"  frobnicate: x":                               `claim.yaml:11:3: unknown field "frobnicate" in spec`,
		"---\nid: b\nclass: fast\nplugin_id: local":     `claim.yaml:14:12: "class" and "plugin_id" are both given: the class names the plugin`,
		"---\nid: b\nclass: fast\nexternal_id: x":       `claim.yaml:14:14: "class" and "external_id" are both given`,
	} {
		if _, err := spec.Parse("claim.yaml", []byte(claim+in+"\n")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s:\ngot  %v\nwant %s", in, err, want)
		}
	}
	for old, want := range map[string]string{
		"  storageClassName: fast\n": `"spec.storageClassName" is missing: it names the class of the volume; to list the classes: volctl class list`,
		"storage: 8Gi":               `unknown field "cpu" in requests`,
		"8Gi":                        `claim.yaml:9:25: the requested storage is more than its limit in line 10`,
	} {
		file := strings.Replace(claim, old, map[string]string{"storage: 8Gi": "cpu: '1'", "8Gi": "80Gi"}[old], 1)
		if _, err := spec.Parse("claim.yaml", []byte(file)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("without %q:\ngot  %v\nwant %s", old, err, want)
		}
	}
}

// FuzzReadClass checks that ReadClass never shows a secret, that its mistakes have places in the
// file, and that WriteClass keeps the meaning of a class.
func FuzzReadClass(f *testing.F) {
	for _, file := range []string{fullClass, storageClass, "plugin_id: p\nsecrets: {a: b}", "kind: StorageClass", "[]", "{", "\x00"} {
		f.Add([]byte(file))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		doc, err := spec.ReadClass("f", data, "stem")
		if err != nil {
			return
		}
		if spec.CheckClassID(doc.Spec.ID) != nil || (doc.Spec.PluginID == "") == (doc.Spec.Driver == "") || doc.Line < 1 {
			t.Errorf("accepted %+v", doc)
		}
		text, err := spec.WriteClass(doc.Spec)
		if err != nil {
			t.Fatal(err)
		}
		again, err := spec.ReadClass("g", text, "stem")
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		twice, err := spec.WriteClass(again.Spec)
		if err != nil || string(twice) != string(text) {
			t.Errorf("%v: %s became %s", err, text, twice)
		}
	})
}

// TestDocumentedClasses checks that ReadClass accepts every class file in the documentation.
func TestDocumentedClasses(t *testing.T) {
	page, err := os.ReadFile("../../docs/classes.md")
	if err != nil {
		t.Fatal(err)
	}
	files := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	for _, file := range files {
		if _, err := spec.ReadClass("docs.yaml", []byte(file[1]), "fast"); err != nil {
			t.Errorf("%v in\n%s", err, file[1])
		}
	}
	if len(files) == 0 {
		t.Error("the page shows no class file")
	}
	for _, field := range spec.Replaceable() {
		if !strings.Contains(string(page), "`"+field+"`") {
			t.Errorf("the page does not name %s", field)
		}
	}
}
