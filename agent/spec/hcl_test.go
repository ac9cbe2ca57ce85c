package spec_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/spec"
)

// nomadSpec is a volume specification with all the syntax of Nomad's own examples: blocks on one
// line, names in quotes, commas, and attributes instead of blocks.
const nomadSpec = `
# as nomad volume init writes it
id        = "ebs_prod_db1"
namespace = "default"
name      = "database"
type      = "csi"
plugin_id = "ebs" // of this host
/* the provider's
   own id */
external_id = "vol/23452345"

capacity_min = "10GiB"
capacity_max = "20 GB"

capability {
  access_mode     = "single-node-writer"
  attachment_mode = "block-device"
}
capability {
  access_mode = "multi-node-reader-only"
}

mount_options {
  fs_type     = "xfs"
  mount_flags = ["noatime",
                 "nodev"]
}
topology_request {
  preferred {
    topology { segments { zone = "a" } }
  }
  required {
    topology { segments { rack = "R1" } }
    topology { segments { rack = "R2", "topology.ebs.csi/zone" = "us-east-1a" } }
  }
}
parameters { skuname = "Premium_LRS" }
context = {
  "csi.storage.k8s.io/fstype" = "xfs",
  csi.storage.name = "a\tb\"\u00e9$${x}%%{y}"
  text = <<-EOT
    two
      lines
  EOT
}
secrets {
  a = { file = "/run/a" }
  b { credential = "b" }
}
reclaim = "delete"
`

func TestParseHCL(t *testing.T) {
	want := []api.VolumeSpec{{
		ID: "ebs_prod_db1", Name: "database", PluginID: "ebs", ExternalID: "vol/23452345", CapacityMin: 10 << 30, CapacityMax: 20e9,
		Capabilities: []api.Capability{
			{AccessMode: "single-node-writer", AttachmentMode: "block-device"},
			{AccessMode: "multi-node-reader-only", AttachmentMode: "file-system"},
		},
		MountOptions: &api.MountOptions{FSType: "xfs", MountFlags: []string{"noatime", "nodev"}},
		Topology: &api.TopologyRequest{
			Required:  []map[string]string{{"rack": "R1"}, {"rack": "R2", "topology.ebs.csi/zone": "us-east-1a"}},
			Preferred: []map[string]string{{"zone": "a"}},
		},
		Parameters: map[string]string{"skuname": "Premium_LRS"},
		Context: map[string]string{
			"csi.storage.k8s.io/fstype": "xfs", "csi.storage.name": "a\tb\"é${x}%{y}", "text": "two\n  lines\n",
		},
		Secrets: map[string]api.Secret{"a": {File: "/run/a"}, "b": {Credential: "b"}},
		Reclaim: "delete",
	}}
	for name, file := range map[string]string{
		"v.hcl": nomadSpec, "V.HCL": nomadSpec,
		"stdin": nomadSpec, "/dev/fd/63": strings.TrimLeft(nomadSpec, "\n"),
		"crlf.hcl": strings.ReplaceAll(nomadSpec, "\n", "\r\n"),
	} {
		got, err := spec.Parse(name, []byte(file))
		if name == "crlf.hcl" && err == nil {
			got[0].Context["text"] = strings.ReplaceAll(got[0].Context["text"], "\r", "")
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v\n got %+v\nwant %+v", name, err, got, want)
		}
	}
}

// TestFormatByContent checks that formatOf recognizes HCL and YAML by their content if the file
// name has no known ending.
func TestFormatByContent(t *testing.T) {
	for file, isHCL := range map[string]bool{
		"id = \"a\"\nplugin_id = \"p\"":                         true,
		"\n# c\n// d\n/* e\n f */ capability { }":               true,
		"\"id\" = \"a\"":                                        true,
		"capability \"x\" {}":                                   true,
		"id: a\nplugin_id: p":                                   false,
		"# id = a\nid: a\nplugin_id: p":                         false,
		"---\nid: a = b\nplugin_id: p":                          false,
		"{\"id\": \"a\", \"plugin_id\": \"p\"}":                 false,
		"- id: a\n  plugin_id: p\n":                             false,
		"\"id\": a\n\"plugin_id\": p\nparameters: {a: 'b = c'}": false,
	} {
		specs, err := spec.Parse("stdin", []byte(file))
		_, atHCL := spec.Parse("x.hcl", []byte(file))
		if isHCL && told(err) != told(atHCL) {
			t.Errorf("%q was not read as HCL: %v, and as HCL %v", file, err, atHCL)
		}
		if !isHCL && (err != nil || len(specs) != 1) {
			t.Errorf("%q: %v", file, err)
		}
	}
	if _, err := spec.Parse("x.yaml", []byte("id = \"a\"")); err == nil || !strings.Contains(err.Error(), "a volume must be a mapping") {
		t.Errorf("HCL in a file that says it is YAML: %v", err)
	}
}

// told returns the text of an error. It replaces the file name, so that the errors for two files
// can be compared.
func told(err error) string {
	if err == nil {
		return ""
	}
	return strings.ReplaceAll(err.Error(), "stdin:", "x.hcl:")
}

// TestParseNomadSpecificationInJSON checks that Parse reads JSON files for Nomad, which contain
// lists instead of blocks.
func TestParseNomadSpecificationInJSON(t *testing.T) {
	check(t, `{
  "id": "a", "plugin_id": "p", "type": "csi",
  "capability": [{"access_mode": "single-node-writer"}, {"attachment_mode": "block-device"}],
  "context": [{"endpoint": "x"}], "mount_options": [{"fs_type": "ext4", "mount_flags": ["ro"]}], "parameters": [{"k": "v"}],
  "secrets": [{"s": {"env": "S"}}],
  "topology_request": {
    "preferred": [{"topology": {"segments": {"rack": "R1"}}}],
    "required": [{"topology": {"segments": {"rack": "R1"}}}, {"topology": [{"segments": {"rack": "R2"}}]}]
  }
}`, []api.VolumeSpec{{
		ID: "a", PluginID: "p",
		Capabilities: []api.Capability{{AccessMode: "single-node-writer", AttachmentMode: "file-system"}, {AccessMode: "single-node-writer", AttachmentMode: "block-device"}},
		Context:      map[string]string{"endpoint": "x"}, Parameters: map[string]string{"k": "v"},
		MountOptions: &api.MountOptions{FSType: "ext4", MountFlags: []string{"ro"}},
		Secrets:      map[string]api.Secret{"s": {Env: "S"}},
		Topology:     &api.TopologyRequest{Required: []map[string]string{{"rack": "R1"}, {"rack": "R2"}}, Preferred: []map[string]string{{"rack": "R1"}}},
	}})
}

func TestHCLMistakes(t *testing.T) {
	const ok = "id = \"a\"\nplugin_id = \"p\"\n"
	for _, tt := range []struct{ name, file, want string }{
		{"unknown field", ok + "\n  capcity_min = \"1GiB\"", `v.hcl:4:3: unknown field "capcity_min" (did you mean "capacity_min"?)`},
		{"unknown block", ok + "capabilty {}", `v.hcl:3:1: unknown field "capabilty" (did you mean "capability"?)`},
		{"unknown field in a block", ok + "mount_options {\n\tfstype = \"ext4\"\n}", `v.hcl:4:2: unknown field "fstype" in mount_options (did you mean "fs_type"?)`},
		{"bad mode", ok + "capability {\n  access_mode = \"single-node-write\"\n}", `v.hcl:4:17: unknown access_mode "single-node-write" (did you mean "single-node-writer"?); it is one of single-node-reader-only, single-node-writer, single-node-single-writer, single-node-multi-writer, multi-node-reader-only, multi-node-single-writer, multi-node-multi-writer`},
		{"capability twice", ok + "capability {}\ncapability {}", `v.hcl:4:1: capability single-node-writer, file-system is given twice`},
		{"field twice", ok + "id = \"b\"", `v.hcl:3:1: "id" is given twice, first in line 1`},
		{"block after a value", ok + "capability = 1\ncapability {}", "v.hcl:3:14: capabilities must be a list, not a number\nv.hcl:4:1: \"capability\" is given twice, first in line 3"},
		{"block twice", ok + "parameters {}\nparameters {}", `v.hcl:4:1: "parameters" is given twice, first in line 3`},
		{"missing plugin", "\nid = \"a\"", `v.hcl:2:1: "plugin_id" is missing`},
		{"number for a text", "id = 5\nplugin_id = \"p\"", `v.hcl:1:6: id must be a text, not a number; put it in quotes`},
		{"true for a text", ok + "parameters { ssd = true }", `v.hcl:3:20: the value of "ssd" in parameters must be a text; put it in quotes`},
		{"size without a unit", ok + "capacity_min = 10", `v.hcl:3:16: capacity_min: bad size "10": a number without a unit counts bytes, and must be at least 1048576; write a number with a unit K, M, G, T or P (1000), or Ki, Mi, Gi, Ti or Pi (1024), as in 20G or 20GiB`},
		{"variable", "id = var.name", `v.hcl:1:6: a text needs quotes, and variables are not supported: write the value itself`},
		{"function", ok + "name = upper(\"x\")", `v.hcl:3:8: functions are not supported: write the value itself`},
		{"template", "é = 1\nid = \"é${name}\"", `v.hcl:2:8: templates are not supported: write the value itself, or $${ and %%{ for a literal ${ and %{`},
		{"template in lines", ok + "name = <<X\na ${b}\nX\n", `v.hcl:4:3: templates are not supported: write the value itself, or $${ and %%{ for a literal ${ and %{`},
		{"sum", ok + "name = 1 + 2", `v.hcl:3:10: a new line or a comma is expected here`},
		{"negative", ok + "capacity_min = -1", `v.hcl:3:16: negative numbers are not allowed here`},
		{"label", ok + "capability \"x\" {}", `v.hcl:3:12: block "capability" takes no label`},
		{"no equals", "id \"a\"", `v.hcl:1:4: "=" or "{" after "id" is expected here`},
		{"colon", "id: \"a\"", `v.hcl:1:3: unexpected colon: "=" or "{" after "id" is expected here, and HCL has "=" before values`},
		{"no value", "id =\nplugin_id = \"p\"", `v.hcl:1:5: the line ends where a value is expected`},
		{"ends early", "id =", `v.hcl:1:5: the file ends where a value is expected`},
		{"not closed", ok + "mount_options {\n  fs_type = \"a\"\n", `v.hcl:3:15: this brace is not closed`},
		{"list not closed", ok + "mount_options { mount_flags = [\"a\",\n", `v.hcl:3:31: this bracket is not closed`},
		{"text not closed", "id = \"a\nplugin_id = \"p\"", `v.hcl:1:6: this text is not closed in its line`},
		{"lines not closed", "id = <<X\nabc\n", `v.hcl:1:6: this text is not closed`},
		{"closed twice", ok + "context {}\n}\n", `v.hcl:4:1: unexpected closing brace: a name is expected here`},
		{"two in a line", "id = \"a\" plugin_id = \"p\"", `v.hcl:1:10: a new line or a comma is expected here`},
		{"single quotes", "id = 'a'", `v.hcl:1:6: a text must be in double quotes`},
		{"bad escape", `id = "a\qb"`, `v.hcl:1:7: an escape in this text is none of \n, \r, \t, \", \\, \uXXXX, \UXXXXXXXX`},
		{"surrogate", `id = "\ud800"`, `v.hcl:1:7: an escape in this text is none of \n, \r, \t, \", \\, \uXXXX, \UXXXXXXXX`},
		{"not UTF-8", "id = \xff", `v.hcl:1:6: the file is not UTF-8`},
		{"nothing", "# empty\n", `v.hcl:1:1: the file contains no volume`},
		{"a list", "[]", `v.hcl:1:1: a name is expected here`},
		{"deep", "a = " + strings.Repeat("[", 100000), `v.hcl:1:37: values are nested more than 32 levels deep`},
		{"deep blocks", strings.Repeat("a {\n", 100000), `v.hcl:33:3: values are nested more than 32 levels deep`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := spec.Parse("v.hcl", []byte(tt.file))
			if err == nil || err.Error() != tt.want || got != nil {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
}

// TestHCLNeverRepeatsASecret checks that no error message contains a secret's value, even if the
// syntax around the secret is wrong.
func TestHCLNeverRepeatsASecret(t *testing.T) {
	const begin = "id = \"a\"\nplugin_id = \"p\"\n"
	for _, secrets := range []string{
		`secrets { p = "hunter2" `, `secrets { p = hunter2 }`, `secrets { p = hunter2() }`, `secrets { p = "${hunter2}" }`, `secrets { p = "hunter2\q" }`, `secrets { p = 'hunter2' }`,
		`secrets { p = "hunter2 }`, `secrets = hunter2`, `secrets "hunter2" {}`, `secrets { p = [hunter2] }`, `secrets { p = ["hunter2"] }`, `secrets { p = { file = "hunter2" } }`,
		`secrets { p = { value = "hunter2" } }`, `secrets { p = <<X` + "\nhunter2\n}", `secrets { p = hunter2.x }`, `secrets { p = 1 hunter2 }`, `secrets { p : "hunter2" }`,
	} {
		_, err := spec.Parse("v.hcl", []byte(begin+secrets+"\n"))
		if err == nil || strings.Contains(err.Error(), "hunter2") || !strings.HasPrefix(err.Error(), "v.hcl:") {
			t.Errorf("%s: %v", secrets, err)
		}
	}
}

func FuzzParseHCL(f *testing.F) {
	example, err := spec.ExampleIn(spec.FormatHCL)
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{
		nomadSpec, example, "a", "a =", "a = \"${", "a = <<-X\n${\"\nX", "a { b = [", "\"", "a = \"\\u12\"", "a = \"$$\\", "\xff", "\x00", "a.b.c = 1", "a = {}}", "/*", "a = [1 2]", "\xef\xbb\xbfid = \"a\"",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		specs, err := spec.Parse("f.hcl", data)
		if err == nil {
			if len(specs) != 1 || spec.CheckVolumeID(specs[0].ID) != nil {
				t.Fatalf("%+v", specs)
			}
			return
		}
		var all spec.Errors
		if !errors.As(err, &all) || len(all) == 0 || specs != nil {
			t.Fatalf("error %#v, specs %v", err, specs)
		}
		for _, e := range all {
			if e.Line < 1 || e.Column < 1 || e.Message == "" {
				t.Fatalf("an error without a place: %#v", e)
			}
		}
	})
}
