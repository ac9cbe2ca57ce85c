package spec_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/spec"
)

// TestWriteReadsBack checks, for all formats, that Parse returns the same volumes that Write wrote.
func TestWriteReadsBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		specs := rapid.SliceOfNDistinct(rapid.Custom(drawSpec), 1, 3, func(s api.VolumeSpec) string { return s.ID }).Draw(t, "specs")
		for _, format := range []string{spec.FormatYAML, spec.FormatJSON, spec.FormatHCL} {
			want := specs
			if format == spec.FormatHCL {
				want = specs[:1]
			}
			text, err := spec.Write(format, want)
			if err != nil {
				t.Fatalf("%s: %v", format, err)
			}
			for _, name := range []string{"v." + format, "stdin"} {
				got, err := spec.Parse(name, text)
				if err != nil || !reflect.DeepEqual(got, want) {
					t.Fatalf("%s: %v\n got %+v\nwant %+v\n%s", name, err, got, want, text)
				}
			}
		}
	})
}

// drawSpec returns a random spec of the kind that Parse can return.
func drawSpec(t *rapid.T) api.VolumeSpec {
	text := rapid.OneOf(
		rapid.SampledFrom([]string{"a", "yes", "5", "1e3", "~", "null", "a: b", "#x", "${x}", "%{y}", "$${", "$", "\\", "\"", "'", "a\nb", "\tx ", "- a", "[a", "{a}", "é", "e\u0301", "\u2028", "😀", "\u0000", "\u0085", "\ufeff", "2020-01-01", "0x1", "*a", "&a", "!a", "<<", "=", "id = \"a\"", "a {"}),
		rapid.StringN(1, 20, -1),
	)
	id := rapid.OneOf(rapid.StringMatching(`[a-z0-9._\[\]-]{3,12}`), text).Filter(func(s string) bool { return spec.CheckVolumeID(s) == nil })
	maybe := func(label string) string {
		return rapid.OneOf(rapid.Just(""), text).Draw(t, label)
	}
	texts := func(label string) map[string]string {
		return rapid.MapOfN(text, rapid.OneOf(rapid.Just(""), text), 0, 3).Draw(t, label)
	}
	size := rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(1, 1<<40), rapid.Map(rapid.Int64Range(1, 9000), func(n int64) int64 { return n << 40 }), rapid.Map(rapid.Int64Range(1, 9), func(n int64) int64 { return n * 1e9 }))
	s := api.VolumeSpec{
		ID: id.Draw(t, "id"), PluginID: rapid.StringMatching(`[A-Za-z0-9_-]{1,48}`).Draw(t, "plugin"), Name: maybe("name"), ExternalID: maybe("external"),
		CapacityMin: size.Draw(t, "size"), Parameters: texts("parameters"), Mutable: texts("mutable_parameters"), Context: texts("context"),
		Reclaim: rapid.SampledFrom([]string{"", "retain", "delete"}).Draw(t, "reclaim"),
		Boot:    rapid.SampledFrom([]string{"", "wait", "trust-local"}).Draw(t, "boot"), Takeover: rapid.SampledFrom([]string{"", "proven", "never"}).Draw(t, "takeover"),
	}
	if rapid.Bool().Draw(t, "clone") {
		s.CloneID = maybe("source")
	} else {
		s.SnapshotID = maybe("source")
	}
	if s.CapacityMin > 0 && rapid.Bool().Draw(t, "max") {
		s.CapacityMax = s.CapacityMin
	}
	capability := rapid.Custom(func(t *rapid.T) api.Capability {
		return api.Capability{AccessMode: rapid.SampledFrom(spec.AccessModes()).Draw(t, "access"), AttachmentMode: rapid.SampledFrom(spec.AttachmentModes()).Draw(t, "attachment")}
	})
	s.Capabilities = rapid.SliceOfNDistinct(capability, 1, 3, rapid.ID[api.Capability]).Draw(t, "capabilities")
	if rapid.Bool().Draw(t, "options") {
		s.MountOptions = &api.MountOptions{FSType: text.Draw(t, "fs"), MountFlags: rapid.SliceOfN(text, 0, 2).Draw(t, "flags")}
	}
	segments := rapid.SliceOfN(rapid.MapOfN(text, text, 1, 2), 0, 2)
	if rapid.Bool().Draw(t, "topology") {
		s.Topology = &api.TopologyRequest{Required: segments.Draw(t, "required"), Preferred: segments.Draw(t, "preferred")}
	}
	for _, name := range rapid.SliceOfN(text, 0, 3).Draw(t, "secrets") {
		ref := rapid.OneOf(
			rapid.Map(text, func(s string) api.Secret { return api.Secret{File: "/" + s} }),
			rapid.Map(text, func(s string) api.Secret { return api.Secret{Credential: s} }),
			rapid.Map(text, func(s string) api.Secret { return api.Secret{Env: s} }),
			rapid.Just(api.Secret{Sealed: true}),
		).Draw(t, "ref")
		if s.Secrets == nil {
			s.Secrets = map[string]api.Secret{}
		}
		s.Secrets[name] = ref
	}
	return normal(s)
}

// normal converts a spec to the form that Parse returns, with nil for empty maps and lists.
func normal(s api.VolumeSpec) api.VolumeSpec {
	for _, m := range []*map[string]string{&s.Parameters, &s.Mutable, &s.Context} {
		if len(*m) == 0 {
			*m = nil
		}
	}
	if o := s.MountOptions; o != nil && len(o.MountFlags) == 0 {
		o.MountFlags = nil
	}
	if t := s.Topology; t != nil {
		for _, list := range []*[]map[string]string{&t.Required, &t.Preferred} {
			if len(*list) == 0 {
				*list = nil
			}
		}
	}
	return s
}

func TestWrite(t *testing.T) {
	s := api.VolumeSpec{
		ID: "data", PluginID: "ebs", Name: "5", ExternalID: "vol/1", CapacityMin: 10 << 30, CapacityMax: 1500, Capabilities: defaults,
		MountOptions: &api.MountOptions{FSType: "ext4", MountFlags: []string{"noatime", "nodev"}},
		Topology:     &api.TopologyRequest{Required: []map[string]string{{"zone": "a", "topology.ebs/rack": "r"}, {"zone": "b"}}},
		Parameters:   map[string]string{"type": "gp3"}, Context: map[string]string{"a/b": "${x}"},
		Secrets: map[string]api.Secret{"key": {File: "/k"}, "token": {Credential: "t"}}, Reclaim: "delete",
	}
	for format, want := range map[string]string{
		spec.FormatYAML: `id: data
plugin_id: ebs
name: "5"
external_id: vol/1
capacity_min: 10GiB
capacity_max: 1500B
capabilities:
  - access_mode: single-node-writer
    attachment_mode: file-system
mount_options:
  fs_type: ext4
  mount_flags: [noatime, nodev]
parameters:
  type: gp3
topology_request:
  required:
    - topology.ebs/rack: r
      zone: a
    - zone: b
context:
  a/b: ${x}
secrets:
  key: {file: /k}
  token: {credential: t}
reclaim: delete
`,
		spec.FormatHCL: `id = "data"
plugin_id = "ebs"
name = "5"
external_id = "vol/1"
capacity_min = "10GiB"
capacity_max = "1500B"
capability {
  access_mode = "single-node-writer"
  attachment_mode = "file-system"
}
mount_options {
  fs_type = "ext4"
  mount_flags = ["noatime", "nodev"]
}
parameters {
  type = "gp3"
}
topology_request {
  required {
    topology {
      segments = {
        "topology.ebs/rack" = "r"
        zone = "a"
      }
    }
    topology {
      segments {
        zone = "b"
      }
    }
  }
}
context = {
  "a/b" = "\u0024{x}"
}
secrets {
  key = { file = "/k" }
  token = { credential = "t" }
}
reclaim = "delete"
`,
	} {
		got, err := spec.Write(format, []api.VolumeSpec{s})
		if err != nil || string(got) != want {
			t.Errorf("%s: %v\n%s", format, err, got)
		}
	}
	for format, want := range map[string]string{spec.FormatHCL: "exactly one volume", "toml": "unknown format"} {
		if _, err := spec.Write(format, []api.VolumeSpec{s, s}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("two volumes as %s: %v", format, err)
		}
	}
}

// TestWriteSecrets checks that a written file never contains a secret's value, but does show that
// the agent has a value.
func TestWriteSecrets(t *testing.T) {
	s := api.VolumeSpec{ID: "a", PluginID: "p", Secrets: map[string]api.Secret{"key": {Sealed: true}}}
	const comment = " # not shown: the agent keeps it while the volume is registered; after that, set it again\n"
	for format, want := range map[string]string{spec.FormatYAML: "  key: {sealed: true}" + comment, spec.FormatHCL: "  key = { sealed = true }" + comment, spec.FormatJSON: "\"sealed\": true\n"} {
		got, err := spec.Write(format, []api.VolumeSpec{s})
		if err != nil || !strings.Contains(string(got), want) {
			t.Errorf("%s: %v\n%s", format, err, got)
		}
	}
	s.Secrets["key"] = api.Secret{Literal: api.NewLiteral("hunter2")}
	got, err := spec.Write(spec.FormatYAML, []api.VolumeSpec{s})
	if got != nil || err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "not a reference") {
		t.Errorf("%v\n%s", err, got)
	}
}

// TestExamplesShowEveryField checks that each example shows every field, and that all examples
// describe the same volume.
func TestExamplesShowEveryField(t *testing.T) {
	hcl, err := spec.ExampleIn(spec.FormatHCL)
	if err != nil {
		t.Fatal(err)
	}
	fields := reflect.TypeFor[api.VolumeSpec]()
	for i := range fields.NumField() {
		name, _, _ := strings.Cut(fields.Field(i).Tag.Get("json"), ",")
		if !mentions(spec.Example(), name+":") {
			t.Errorf("the example in YAML does not show %s", name)
		}
		if name == "capabilities" {
			name = "capability"
		}
		if !mentions(hcl, name+" = ") && !mentions(hcl, name+" {") {
			t.Errorf("the example in HCL does not show %s", name)
		}
	}
	asYAML, err := spec.Parse("e.yaml", []byte(spec.Example()))
	if err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{spec.FormatHCL, spec.FormatJSON} {
		text, err := spec.ExampleIn(format)
		if err != nil {
			t.Fatal(err)
		}
		got, err := spec.Parse("e."+format, []byte(text))
		if err != nil || !reflect.DeepEqual(got, asYAML) {
			t.Errorf("%s: %v, %+v", format, err, got)
		}
	}
}

func mentions(example, begin string) bool {
	return slices.ContainsFunc(strings.Split(example, "\n"), func(line string) bool {
		return strings.HasPrefix(strings.TrimPrefix(line, "# "), begin)
	})
}

// TestExampleInHCLParsesUncommented checks that Parse also accepts the HCL example if its
// commented-out fields are made active.
func TestExampleInHCLParsesUncommented(t *testing.T) {
	text, err := spec.ExampleIn(spec.FormatHCL)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(text) {
		bare, commented := strings.CutPrefix(line, "# ")
		switch {
		case !commented, strings.HasPrefix(bare, "clone_id"), strings.HasPrefix(bare, "class "):
			lines = append(lines, line)
		case strings.Contains(bare, " = ") || strings.HasSuffix(bare, "{\n") || strings.TrimSpace(bare) == "}" || strings.Contains(bare, " { "):
			lines = append(lines, bare)
		}
	}
	got, err := spec.Parse("example.hcl", []byte(strings.Join(lines, "")))
	if err != nil {
		t.Fatalf("%v\n%s", err, strings.Join(lines, ""))
	}
	s := got[0]
	if s.Name == "" || s.ExternalID == "" || s.CapacityMax == 0 || s.MountOptions == nil || s.Parameters["type"] != "image" || s.Mutable["iops"] != "4000" || s.SnapshotID == "" ||
		s.Topology == nil || len(s.Topology.Preferred) != 1 || s.Context["share"] == "" || len(s.Secrets) != 4 || s.Reclaim != "retain" {
		t.Errorf("not every field of the example was tried: %+v", s)
	}
}
