package spec_test

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/spec"
)

// pv is a PersistentVolume in the format in which kubectl prints it.
const pv = `apiVersion: v1
kind: PersistentVolume
metadata:
  annotations: {pv.kubernetes.io/provisioned-by: ebs.csi.aws.com}
  name: pvc-1
  finalizers: [kubernetes.io/pv-protection]
  uid: 2f
spec:
  accessModes: [ReadWriteOnce, ReadOnlyMany]
  capacity: {storage: 10Gi}
  claimRef: {kind: PersistentVolumeClaim, namespace: shop, name: data, uid: 3a}
  csi:
    driver: ebs.csi.aws.com
    volumeHandle: vol-0abc
    fsType: xfs
    volumeAttributes: {storage.kubernetes.io/csiProvisionerIdentity: x}
    nodeStageSecretRef: {name: luks, namespace: shop}
  mountOptions: [noatime]
  nodeAffinity: {required: {nodeSelectorTerms: []}}
  persistentVolumeReclaimPolicy: Delete
  storageClassName: gp3
  volumeMode: Filesystem
status: {phase: Bound}
`

func pvWant() spec.Document {
	return spec.Document{
		Line: 5,
		Spec: api.VolumeSpec{
			ID: "pvc-1", ExternalID: "vol-0abc", CapacityMin: 10 << 30, Reclaim: "retain",
			Capabilities: []api.Capability{{AccessMode: "single-node-writer", AttachmentMode: "file-system"}, {AccessMode: "multi-node-reader-only", AttachmentMode: "file-system"}},
			MountOptions: &api.MountOptions{FSType: "xfs", MountFlags: []string{"noatime"}},
			Context:      map[string]string{"storage.kubernetes.io/csiProvisionerIdentity": "x"},
		},
		From: spec.Kubernetes, Driver: "ebs.csi.aws.com",
		Warnings: []string{
			"the Kubernetes cluster must stop using the volume: end the users of the claim shop/data before you claim the volume here",
			"its reclaim policy in the cluster is Delete, so the cluster destroys the data when its claim is deleted: first set the policy to Retain in the cluster. This agent registers the volume with reclaim: retain",
			"the volume needs Secrets of the cluster, which the agent cannot read: nodeStageSecretRef (shop/luks). Export the volume to a file, add the values of these Secrets under secrets, and register that file",
			"the agent ignores its nodeAffinity: check that this host can reach the storage",
		},
	}
}

func TestReadPersistentVolume(t *testing.T) {
	docs, err := spec.Read("pv.yaml", []byte(pv))
	if want := []spec.Document{pvWant()}; err != nil || !reflect.DeepEqual(docs, want) {
		t.Errorf("%v\n got %+v\nwant %+v", err, docs, want)
	}
	if specs, err := spec.Parse("pv.yaml", []byte(pv)); specs != nil || err == nil ||
		err.Error() != "pv.yaml:5:9: a Kubernetes PersistentVolume describes a volume that exists: it can only be registered (volctl volume register)" {
		t.Errorf("to create it: %v", err)
	}
}

const minimalPV = `{"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "b"}, "spec": {"csi": {"driver": "d", "volumeHandle": "h"}}}`

// TestReadMixed checks that one file may contain documents in all formats.
func TestReadMixed(t *testing.T) {
	for name, file := range map[string]string{
		"documents":  "id: a\nplugin_id: p\n---\n" + minimalPV + "\n---\n" + nomadMinimal,
		"a list":     "[{\"id\": \"a\", \"plugin_id\": \"p\"}, " + minimalPV + ", " + nomadMinimal + "]",
		"a stream":   "{\"id\": \"a\", \"plugin_id\": \"p\"} " + minimalPV + "\n\n" + nomadMinimal,
		"a k8s List": "id: a\nplugin_id: p\n---\napiVersion: v1\nkind: List\nitems:\n- " + minimalPV + "\n---\n" + nomadMinimal,
	} {
		docs, err := spec.Read("stdin", []byte(file))
		var ids []string
		for _, d := range docs {
			ids = append(ids, d.Spec.ID+string(d.From))
		}
		if err != nil || strings.Join(ids, " ") != "a bKubernetes cNomad" {
			t.Errorf("%s: %v, %q", name, err, ids)
		}
	}
	if _, err := spec.Read("f", []byte("id: b\nplugin_id: p\n---\n"+minimalPV)); err == nil || err.Error() != `f:4:71: volume "b" is in this file twice, first in line 1` {
		t.Errorf("the same id in both words: %v", err)
	}
}

// TestPersistentVolumeModes checks the conversion of the access modes of Kubernetes.
func TestPersistentVolumeModes(t *testing.T) {
	for in, want := range map[string]string{
		"accessModes: [ReadWriteOnce]":               "single-node-writer/file-system",
		"accessModes: [ReadWriteOncePod]":            "single-node-single-writer/file-system",
		"accessModes: [ReadWriteMany, ReadOnlyMany]": "multi-node-multi-writer/file-system multi-node-reader-only/file-system",
		"{}": "single-node-writer/file-system",
		"volumeMode: Block\n  accessModes: [ReadWriteOnce]": "single-node-writer/block-device",
		"volumeMode: Block": "single-node-writer/block-device",
		"READONLY accessModes: [ReadWriteOnce, ReadWriteOncePod]": "single-node-reader-only/file-system",
		"READONLY accessModes: [ReadWriteMany, ReadOnlyMany]":     "multi-node-reader-only/file-system",
		"READONLY ": "single-node-reader-only/file-system",
		"READONLY volumeMode: Block\n  accessModes: [ReadWriteMany]": "multi-node-reader-only/block-device",
	} {
		rest, readOnly := strings.CutPrefix(in, "READONLY ")
		csi := "{driver: d, volumeHandle: h}"
		if readOnly {
			csi = "{driver: d, volumeHandle: h, readOnly: true}"
		}
		file := "apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: a}\nspec:\n  csi: " + csi + "\n  " + strings.TrimPrefix(rest, "{}") + "\n"
		docs, err := spec.Read("pv.yaml", []byte(file))
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		var got []string
		for _, c := range docs[0].Spec.Capabilities {
			got = append(got, c.AccessMode+"/"+c.AttachmentMode)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: got %q, want %q", in, got, want)
		}
		if w := docs[0].Warnings; len(w) != 1 || !strings.HasPrefix(w[0], "the Kubernetes cluster must stop using the volume") {
			t.Errorf("%s: warnings %q", in, w)
		}
	}
}

func TestPersistentVolumeSizes(t *testing.T) {
	for in, want := range map[string]int64{
		"10Gi": 10 << 30, "1.5Ki": 1536, "1G": 1e9, "1500M": 1500e6, "5k": 5000, "1e3": 1000, "1E3": 1000, "9E": 9e18, "2Ei": 2 << 60, "100": 100, "'100'": 100,
		"1500m": 2, "1n": 1, "0.5": 1, ".5Ki": 512, "+4Ti": 4 << 40, "3Pi": 3 << 50, "9223372036854775807": 1<<63 - 1, "10e-1": 1,
	} {
		docs, err := spec.Read("pv.yaml", []byte(strings.Replace(pv, "10Gi", in, 1)))
		if err != nil || docs[0].Spec.CapacityMin != want {
			t.Errorf("%s: %v, %+v, want %d", in, err, docs, want)
		}
	}
	for in, want := range map[string]string{
		"10GB": "bad quantity \"10GB\"", "0": "more than 0", "-1Gi": "bad quantity", "8Ei": "more than 2^63-1", "1e99": "more than 2^63-1", "1e100": "bad quantity", "''": "bad quantity",
		"[1]": "must be a quantity such as 10Gi, not a list", "Gi": "bad quantity", "1.Gi1": "bad quantity", "0x10": "bad quantity",
	} {
		_, err := spec.Read("pv.yaml", []byte(strings.Replace(pv, "10Gi", in, 1)))
		if err == nil || !strings.HasPrefix(err.Error(), "pv.yaml:10:23: storage") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", in, err, want)
		}
	}
}

const hostVolume = `a host volume of Nomad is not a CSI volume: write type csi and plugin_id local, without Nomad's keys for hosts, or bind-mount an existing directory`

func TestForeignMistakes(t *testing.T) {
	pvWith := func(old, with string) string { return strings.Replace(pv, old, with, 1) }
	for _, tt := range []struct{ name, file, want string }{
		{"another kind", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}", `f:1:1: a Kubernetes ConfigMap is not a volume: remove it from the file; only PersistentVolumes and PersistentVolumeClaims can be read`},
		{"another kind in a list", "kind: List\nitems:\n- {kind: StorageClass}", `f:3:3: a Kubernetes StorageClass is a class, not a volume: move it to a class file (volctl class list)`},
		{"no kind", "apiVersion: v1\nid: a", `f:1:1: "kind" is missing: only a PersistentVolume or a PersistentVolumeClaim of Kubernetes can be read`},
		{"another source", "kind: PersistentVolume\nmetadata: {name: a}\nspec: {nfs: {server: x}}", `f:1:1: the PersistentVolume has the source nfs; only csi can be used here`},
		{"no source", "kind: PersistentVolume\nmetadata: {name: a}\nspec: {}", `f:1:1: "spec.csi" is missing: only a PersistentVolume with that source can be used here`},
		{"no name", "kind: PersistentVolume\nspec: {csi: {driver: d, volumeHandle: h}}", `f:1:1: "metadata.name" is missing: it becomes the volume's id`},
		{"no handle", pvWith("    volumeHandle: vol-0abc\n", ""), `f:13:5: "driver" and "volumeHandle" are both needed in csi`},
		{"unknown field", pvWith("fsType", "fstype"), `f:15:5: unknown field "fstype" in csi (did you mean "fsType"?)`},
		{"unknown mode", pvWith("ReadOnlyMany", "ReadOnlyManny"), `f:9:32: unknown access mode "ReadOnlyManny" (did you mean "ReadOnlyMany"?); it is one of ReadWriteOnce, ReadOnlyMany, ReadWriteMany, ReadWriteOncePod`},
		{"read only of text", pvWith("fsType: xfs", "readOnly: 'true'"), `f:15:15: readOnly must be true or false, not a text`},
		{"version", pvWith("apiVersion: v1", "apiVersion: v2"), `f:1:13: unknown apiVersion "v2" (did you mean "v1"?); it is one of v1`},
		{"a listing of Nomad", `[{"ID": "a", "PluginID": "p", "ExternalID": "x", "CurrentReaders": 0}]`, `f:1:9: this is an entry of a list of Nomad, which omits fields: use the output of nomad volume status -json ID for each volume`},
		{"a host volume of Nomad", `{"ID": "a", "HostPath": "/x", "Parameters": {}}`, `f:1:8: ` + hostVolume},
		{"bad mode of Nomad", strings.Replace(nomadStatus, "multi-node-reader-only", "many", 1), `f:24:20: unknown AccessMode "many"; it is one of single-node-reader-only, single-node-writer, single-node-single-writer, single-node-multi-writer, multi-node-reader-only, multi-node-single-writer, multi-node-multi-writer`},
		{"bad size of Nomad", strings.Replace(nomadStatus, `Min": 10737418240`, `Min": "10GiB"`, 1), `f:29:27: RequestedCapacityMin must be a number of bytes`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := spec.Read("f", []byte(tt.file))
			if err == nil || err.Error() != tt.want || got != nil {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
}

const nomadMinimal = `{"ID": "c", "PluginID": "p", "ExternalID": "x", "RequestedCapabilities": null}`

// nomadStatus is the output of nomad volume status -json ebs_prod_db1, shortened.
const nomadStatus = `{
  "AccessMode": "",
  "Allocations": [
    {"ID": "9c2d8a3b-5a5b-8e9b-8f2e-d4e5f60718", "JobID": "web", "ClientStatus": "running"},
    {"ID": "11111111-0000-0000-0000-000000000000", "JobID": "old", "ClientStatus": "complete"}
  ],
  "AttachmentMode": "",
  "Capacity": 10737418240,
  "CloneID": "",
  "Context": {"endpoint": "http://x"},
  "ControllerRequired": true,
  "CreateIndex": 64,
  "ExternalID": "vol-0abc",
  "ID": "ebs_prod_db1",
  "ModifyTime": 1755764038000000000,
  "MountOptions": {"FSType": "ext4", "MountFlags": ["[REDACTED]"]},
  "Name": "database",
  "Namespace": "default",
  "Parameters": {"type": "gp3"},
  "PluginID": "aws-ebs0", "Provider": "ebs.csi.aws.com",
  "ProviderVersion": "v1.10",
  "ReadAllocs": {},
  "RequestedCapabilities": [
    {"AccessMode": "multi-node-reader-only",
     "AttachmentMode": "file-system"},
    {"AccessMode": "single-node-writer", "AttachmentMode": "block-device"}
  ],
  "RequestedCapacityMax": 0,
  "RequestedCapacityMin": 10737418240,
  "RequestedTopologies": {"Preferred": null, "Required": [{"Segments": {"zone": "a"}}]},
  "ResourceExhausted": "0001-01-01T00:00:00Z",
  "Schedulable": true,
  "Secrets": {"key": "[REDACTED]"},
  "SnapshotID": "snap-1",
  "Topologies": [{"Segments": {"zone": "a"}}],
  "WriteAllocs": {"9c2d8a3b-5a5b-8e9b-8f2e-d4e5f60718": null, "22222222-0000-0000-0000-000000000000": null}
}`

func TestReadNomadStatus(t *testing.T) {
	want := []spec.Document{{
		Spec: api.VolumeSpec{
			ID: "ebs_prod_db1", Name: "database", PluginID: "aws-ebs0", ExternalID: "vol-0abc", SnapshotID: "snap-1", CapacityMin: 10 << 30,
			Capabilities: []api.Capability{{AccessMode: "multi-node-reader-only", AttachmentMode: "file-system"}, {AccessMode: "single-node-writer", AttachmentMode: "block-device"}},
			MountOptions: &api.MountOptions{FSType: "ext4"},
			Topology:     &api.TopologyRequest{Required: []map[string]string{{"zone": "a"}}},
			Parameters:   map[string]string{"type": "gp3"}, Context: map[string]string{"endpoint": "http://x"},
		},
		Line: 14, From: spec.Nomad, Driver: "ebs.csi.aws.com", FlagsHidden: true,
		Warnings: []string{
			"first deregister the volume in Nomad: nomad volume deregister ebs_prod_db1. Allocations that claim the volume in Nomad: 22222222, 9c2d8a3b (job web)",
			"Nomad does not show the volume's secrets (key): export the volume to a file, add the secrets, and register that file",
			"Nomad does not show the volume's mount flags: they are omitted here",
			"the agent ignores the volume's topology in Nomad: check that this host can reach the storage",
		},
	}}
	docs, err := spec.Read("stdin", []byte(nomadStatus))
	if err != nil || !reflect.DeepEqual(docs, want) {
		t.Errorf("%v\n got %+v\nwant %+v", err, docs, want)
	}
	if _, err := spec.Parse("stdin", []byte(nomadStatus)); err == nil || !strings.Contains(err.Error(), "it can only be registered") {
		t.Errorf("to create it: %v", err)
	}
	docs, err = spec.Read("stdin", []byte(strings.Replace(nomadMinimal, `"ID"`, `"AccessMode": "multi-node-multi-writer", "AttachmentMode": "", "ID"`, 1)))
	if err != nil || !slices.Equal(docs[0].Spec.Capabilities, []api.Capability{{AccessMode: "multi-node-multi-writer", AttachmentMode: "file-system"}}) {
		t.Errorf("a volume without capabilities: %v, %+v", err, docs)
	}
}

// FuzzRead is like FuzzParse, but also covers the foreign formats.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{pv, minimalPV, nomadStatus, nomadMinimal, "kind: [a]", "kind: PersistentVolume\nspec: a", "{\"ID\": []} {}", "{\"ID\": {\"a\": 1}}", "kind: List\nitems: {a: b}", "kind: List\nitems: [[a]]"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		docs, err := spec.Read("f", data)
		var all spec.Errors
		if err != nil && (!errors.As(err, &all) || len(all) == 0 || docs != nil) {
			t.Fatalf("error %#v, documents %v", err, docs)
		}
		for _, e := range all {
			if e.Line < 1 || e.Column < 1 || e.Message == "" {
				t.Fatalf("an error without a place: %#v", e)
			}
		}
		for _, d := range docs {
			if spec.CheckVolumeID(d.Spec.ID) != nil || len(d.Spec.Capabilities) == 0 || d.From != spec.Own && len(d.Warnings) == 0 {
				t.Fatalf("%+v", d)
			}
		}
	})
}
