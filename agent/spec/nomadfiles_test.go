package spec_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/spec"
)

// TestNomadFiles reads files in the forms of Nomad's documentation and of the demos of drivers.
func TestNomadFiles(t *testing.T) {
	one := func(access, attachment string) []api.Capability {
		return []api.Capability{{AccessMode: access, AttachmentMode: attachment}}
	}
	writer := one("single-node-writer", "file-system")
	shared := one("multi-node-multi-writer", "file-system")
	literal := func(s string) api.Secret { return api.Secret{Literal: api.NewLiteral(s)} }

	for _, tt := range []struct {
		name, file string
		want       []api.VolumeSpec
	}{
		{"a cloud disk, decimal sizes", `
id = "orders"
namespace = "default"
name = "orders"
type = "csi"
plugin_id = "ebs"
capacity_max = "40G"
capacity_min = "20G"
capability {
  access_mode = "single-node-reader-only"
  attachment_mode = "file-system"
}
capability {
  access_mode = "single-node-writer"
  attachment_mode = "file-system"
}
mount_options {
  fs_type = "ext4"
  mount_flags = ["noatime"]
}
snapshot_id = "snap-1" # or clone_id
topology_request {
  required {
    topology { segments { "rack" = "A" } }
    topology { segments { "rack" = "B", "zone" = "z1" } }
    topology { segments { "rack" = "A" } }
  }
  preferred { topology { segments { rack = "B" } } }
}
secrets { token = "t0" }
parameters { tier = "fast" }
`, []api.VolumeSpec{{
			ID: "orders", Name: "orders", PluginID: "ebs", SnapshotID: "snap-1", CapacityMin: 20e9, CapacityMax: 40e9,
			Capabilities: []api.Capability{{AccessMode: "single-node-reader-only", AttachmentMode: "file-system"}, {AccessMode: "single-node-writer", AttachmentMode: "file-system"}},
			MountOptions: &api.MountOptions{FSType: "ext4", MountFlags: []string{"noatime"}},
			Topology:     &api.TopologyRequest{Required: []map[string]string{{"rack": "A"}, {"rack": "B", "zone": "z1"}}, Preferred: []map[string]string{{"rack": "B"}}},
			Secrets:      map[string]api.Secret{"token": literal("t0")}, Parameters: map[string]string{"tier": "fast"},
		}}},
		{"a registered disk of an old release", "# volume registration\ntype = \"csi\"\nid = \"mysql\"\nname = \"mysql\"\nexternal_id = \"vol-0123\"\naccess_mode = \"multi-node-reader-only\"\nattachment_mode = \"file-system\"\nplugin_id = \"aws-ebs0\"\n",
			[]api.VolumeSpec{{ID: "mysql", Name: "mysql", ExternalID: "vol-0123", PluginID: "aws-ebs0", Capabilities: one("multi-node-reader-only", "file-system")}}},
		{"old modes beside a capability", "type = \"csi\"\nid = \"a\"\nplugin_id = \"p\"\naccess_mode = \"single-node-writer\"\nattachment_mode = \"file-system\"\ncapability {\n access_mode = \"multi-node-multi-writer\"\n attachment_mode = \"file-system\"\n}\n",
			[]api.VolumeSpec{{ID: "a", PluginID: "p", Capabilities: shared}}},
		{"iscsi with block device and binary sizes", "type = \"csi\"\nid = \"scratch\"\nname = \"scratch\"\nplugin_id = \"org.demo.iscsi\"\ncapacity_min = \"1Gib\"\ncapacity_max = \"12.0 GiB\"\ncapability {\n  access_mode     = \"single-node-writer\"\n  attachment_mode = \"block-device\"\n}\n",
			[]api.VolumeSpec{{ID: "scratch", Name: "scratch", PluginID: "org.demo.iscsi", CapacityMin: 1 << 30, CapacityMax: 12 << 30, Capabilities: one("single-node-writer", "block-device")}}},
		{"ceph with secrets and per_alloc id", "id = \"web[0]\"\nname = \"web\"\ntype = \"csi\"\nplugin_id = \"ceph-rbd\"\ncapacity_min = \"1G\"\ncapacity_max = \"2g\"\nclone_id = \"0001-x\"\ncapability { access_mode = \"single-node-writer\"\n attachment_mode = \"file-system\" }\nsecrets {\n  userID  = \"admin\"\n  userKey = \"k==\"\n}\nparameters {\n  clusterID = \"c\"\n  pool = \"rbd\"\n  imageFeatures = \"layering\"\n}\n",
			[]api.VolumeSpec{{ID: "web[0]", Name: "web", PluginID: "ceph-rbd", CloneID: "0001-x", CapacityMin: 1e9, CapacityMax: 2e9, Capabilities: writer,
				Secrets: map[string]api.Secret{"userID": literal("admin"), "userKey": literal("k==")}, Parameters: map[string]string{"clusterID": "c", "pool": "rbd", "imageFeatures": "layering"}}}},
		{"nfs with a context, registered", "type = \"csi\"\nid = \"media\"\nname = \"media\"\nexternal_id = \"media\"\nplugin_id = \"nfs\"\ncapability {\n access_mode = \"multi-node-multi-writer\"\n attachment_mode = \"file-system\"\n}\ncontext {\n  server = \"10.0.0.1\"\n  share = \"/export\"\n}\nmount_options {\n  fs_type = \"nfs\"\n  mount_flags = [ \"vers=4\", \"nolock\" ]\n}\n",
			[]api.VolumeSpec{{ID: "media", Name: "media", ExternalID: "media", PluginID: "nfs", Capabilities: shared, Context: map[string]string{"server": "10.0.0.1", "share": "/export"},
				MountOptions: &api.MountOptions{FSType: "nfs", MountFlags: []string{"vers=4", "nolock"}}}}},
		{"numbers as parameters and sizes", "id = \"n\"\ntype = \"csi\"\nplugin_id = \"juice\"\ncapacity_min = 10737418240\nparameters {\n  capacity=2\n}\nsecrets { pin = 1234 }\ncapability {\n access_mode = \"multi-node-multi-writer\"\n attachment_mode = \"file-system\"\n}\n",
			[]api.VolumeSpec{{ID: "n", PluginID: "juice", CapacityMin: 10 << 30, Capabilities: shared, Parameters: map[string]string{"capacity": "2"}, Secrets: map[string]api.Secret{"pin": literal("1234")}}}},
		{"repeated segments and required blocks", "id = \"z\"\ntype = \"csi\"\nplugin_id = \"p\"\ntopology_request {\n required {\n  topology {\n   segments { zone = \"a\" }\n   segments { rack = \"1\" }\n  }\n }\n required { topology { segments { \"topology.demo/zone\" = \"b\" } } }\n}\n",
			[]api.VolumeSpec{{ID: "z", PluginID: "p", Capabilities: writer, Topology: &api.TopologyRequest{Required: []map[string]string{{"zone": "a", "rack": "1"}, {"topology.demo/zone": "b"}}}}}},
		{"a file in JSON", `{"id": "j", "type": "csi", "namespace": "default", "name": "j", "plugin_id": "p", "capacity_min": "50MB", "capacity_max": 100000000,
 "capability": [{"access_mode": "single-node-writer", "attachment_mode": "file-system"}], "mount_options": [{"fs_type": "ext4"}]}`,
			[]api.VolumeSpec{{ID: "j", Name: "j", PluginID: "p", CapacityMin: 50e6, CapacityMax: 100e6, Capabilities: writer, MountOptions: &api.MountOptions{FSType: "ext4"}}}},
		{"a request to create volumes", `{"Volumes": [{"ID": "r", "Name": "r", "Namespace": "default", "PluginID": "p", "RequestedCapacityMin": 20000000000, "RequestedCapacityMax": 0, "CloneID": "c-1",
 "RequestedCapabilities": [{"AccessMode": "single-node-writer", "AttachmentMode": "file-system"}], "Secrets": {"key": "s"}, "Parameters": {"a": "b"},
 "RequestedTopologies": {"Required": [{"Segments": {"zone": "a"}}, {"Segments": {"zone": "a"}}]}},
 {"ID": "r2", "PluginID": "p", "RequestedCapabilities": [{"AccessMode": "multi-node-multi-writer", "AttachmentMode": "file-system"}]}]}`,
			[]api.VolumeSpec{{ID: "r", Name: "r", PluginID: "p", CloneID: "c-1", CapacityMin: 20e9, Capabilities: writer, Secrets: map[string]api.Secret{"key": literal("s")}, Parameters: map[string]string{"a": "b"},
				Topology: &api.TopologyRequest{Required: []map[string]string{{"zone": "a"}}}}, {ID: "r2", PluginID: "p", Capabilities: shared}}},
		{"a plain object without an external id", `{"ID": "o", "ExternalID": "", "PluginID": "p", "RequestedCapabilities": [{"AccessMode": "single-node-writer", "AttachmentMode": "file-system"}]}`,
			[]api.VolumeSpec{{ID: "o", PluginID: "p", Capabilities: writer}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := spec.Parse("stdin", []byte(tt.file))
			if err != nil || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("%v\n got %+v\nwant %+v", err, got, tt.want)
			}
		})
	}
}

// TestNomadAnswer checks a request to register a volume, whose secrets Nomad does not hide.
func TestNomadAnswer(t *testing.T) {
	docs, err := spec.Read("stdin", []byte(`{"Volumes": [{"ID": "v", "ExternalID": "x", "PluginID": "p", "RequestedCapabilities": null, "Secrets": {"k": "s"}}]}`))
	if err != nil || len(docs) != 1 || docs[0].From != spec.Nomad || len(docs[0].Warnings) != 1 || !reflect.DeepEqual(docs[0].Spec.Secrets, map[string]api.Secret{"k": {Literal: api.NewLiteral("s")}}) {
		t.Errorf("%v, %+v", err, docs)
	}
}

func TestNomadFileMistakes(t *testing.T) {
	const begin = "id = \"a\"\ntype = \"csi\"\nplugin_id = \"p\"\n"
	for _, tt := range []struct{ name, file, want string }{
		{"host volume", "name = \"h\"\ntype = \"host\"\nplugin_id = \"mkdir\"\nnode_pool = \"x\"\ncapacity_max = \"12.0 GiB\"\nconstraint {\n  attribute = \"$${attr.kernel.name}\"\n}\n", "stdin:2:8: " + hostVolume},
		{"unknown unit", begin + `capacity_min = "10Q"`, `stdin:4:16: capacity_min: bad size "10Q": there is no unit "Q"; write a number with a unit`},
		{"two values of a segment", begin + "topology_request {\nrequired { topology {\nsegments { z = \"a\" }\nsegments { z = \"b\" }\n} }\n}", `stdin:7:1: segment "z" has two values in one topology: write a topology block for each`},
		{"octal", begin + "parameters { mode = 0755 }", `stdin:4:21: the value of "mode" in parameters must be a text; put it in quotes`},
		{"hidden secret", `{"ID": "o", "PluginID": "p", "RequestedCapabilities": null, "Secrets": {"k": "[REDACTED]"}}`, `stdin:1:8: Nomad hides secrets or mount flags of this volume ([REDACTED]): write the values into the file`},
		{"list of storage", `{"Volumes": [{"ExternalID": "x", "CapacityBytes": 1}]}`, `stdin:1:14: "ID" is missing: a list of the storage of a plugin does not describe volumes of Nomad`},
	} {
		if got, err := spec.Parse("stdin", []byte(tt.file)); err == nil || got != nil || !strings.HasPrefix(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v\nwant %s", tt.name, err, tt.want)
		}
	}
}
