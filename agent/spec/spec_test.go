package spec_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/spec"
)

var defaults = []api.Capability{{AccessMode: "single-node-writer", AttachmentMode: "file-system"}}

func TestParseReadsEveryField(t *testing.T) {
	const file = `
id: data
name: the data
plugin_id: ebs
external_id: vol/0abc
snapshot_id: snap-1
capacity_min: 10GiB
capacity_max: "20 GB"
capabilities:
  - access_mode: single-node-writer
    attachment_mode: block-device
  - access_mode: multi-node-reader-only
mount_options: {fs_type: xfs, mount_flags: [noatime, nodev]}
topology_request:
  required: [{zone: a}]
  preferred:
    - zone: a
      rack: "1"
parameters: {kind: fast, empty: ""}
context: {share: x}
secrets:
  a: {file: /run/a}
  b: {credential: b}
  c: {env: C}
reclaim: delete
namespace: default
type: csi
`
	want := []api.VolumeSpec{{
		ID: "data", Name: "the data", PluginID: "ebs", ExternalID: "vol/0abc", SnapshotID: "snap-1",
		CapacityMin: 10 << 30, CapacityMax: 20e9,
		Capabilities: []api.Capability{
			{AccessMode: "single-node-writer", AttachmentMode: "block-device"},
			{AccessMode: "multi-node-reader-only", AttachmentMode: "file-system"},
		},
		MountOptions: &api.MountOptions{FSType: "xfs", MountFlags: []string{"noatime", "nodev"}},
		Topology: &api.TopologyRequest{
			Required:  []map[string]string{{"zone": "a"}},
			Preferred: []map[string]string{{"zone": "a", "rack": "1"}},
		},
		Parameters: map[string]string{"kind": "fast", "empty": ""},
		Context:    map[string]string{"share": "x"},
		Secrets:    map[string]api.Secret{"a": {File: "/run/a"}, "b": {Credential: "b"}, "c": {Env: "C"}},
		Reclaim:    "delete",
	}}
	check(t, file, want)
}

func TestParseDocuments(t *testing.T) {
	a := api.VolumeSpec{ID: "a", PluginID: "p", Capabilities: defaults}
	b := api.VolumeSpec{ID: "b[0]", PluginID: "p", Capabilities: defaults, Parameters: map[string]string{"path": "x/😀"}}
	for name, file := range map[string]string{
		"documents":           "id: a\nplugin_id: p\n---\nid: b[0]\nplugin_id: p\nparameters: {path: x/😀}\n---\n",
		"windows line ends":   "id: a\r\nplugin_id: p\r\n---\r\nid: b[0]\r\nplugin_id: p\r\nparameters: {path: x/😀}\r\n",
		"list":                "- {id: a, plugin_id: p}\n- {id: 'b[0]', plugin_id: p, parameters: {path: x/😀}}\n",
		"json with tabs":      "[\n\t{\"id\": \"a\", \"plugin_id\": \"p\", \"name\": null},\n\t{\"id\": \"b[0]\", \"plugin_id\": \"p\", \"parameters\": {\"path\": \"x/😀\"}}\n]",
		"json with escapes":   `[{"id": "a", "plugin_id": "p"}, {"id": "\u0062[0]", "plugin_id": "p", "parameters": {"path": "x\/\ud83d\ude00"}}]`,
		"field without value": "id: a\nplugin_id: p\nname:\nparameters:\n---\n\n---\nid: b[0]\nplugin_id: p\nparameters: {path: x/😀}",
	} {
		t.Run(name, func(t *testing.T) { check(t, file, []api.VolumeSpec{a, b}) })
	}
}

func check(t *testing.T, file string, want []api.VolumeSpec) {
	t.Helper()
	got, err := spec.Parse("volume.yaml", []byte(file))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestExampleParses(t *testing.T) {
	check(t, spec.Example(), []api.VolumeSpec{{ID: "data", PluginID: "local", CapacityMin: 1 << 30, Capabilities: defaults}})
}

// TestExampleParsesUncommented checks that Parse also accepts the example if its commented-out
// fields are made active.
func TestExampleParsesUncommented(t *testing.T) {
	var lines []string
	for line := range strings.Lines(spec.Example()) {
		bare, commented := strings.CutPrefix(line, "# ")
		name, _, hasColon := strings.Cut(strings.TrimSpace(bare), ":")
		isField := hasColon && !strings.Contains(strings.TrimPrefix(name, "- {"), " ")
		switch {
		case !commented:
			lines = append(lines, line)
		case strings.HasPrefix(bare, "clone_id"), strings.HasPrefix(bare, "class:"), strings.HasPrefix(bare, "access_mode"), strings.HasPrefix(bare, "attachment_mode"), strings.HasPrefix(bare, "type: directory"):
		case isField || strings.HasPrefix(bare, "    - "):
			lines = append(lines, bare)
		}
	}
	got, err := spec.Parse("example.yaml", []byte(strings.Join(lines, "")))
	if err != nil {
		t.Fatal(err)
	}
	s := got[0]
	if s.Name == "" || s.ExternalID == "" || s.CapacityMax == 0 || s.MountOptions == nil || s.Parameters["type"] != "image" || s.SnapshotID == "" ||
		len(s.Topology.Preferred) != 1 || s.Context["share"] == "" || len(s.Secrets) != 4 || s.Reclaim != "retain" {
		t.Errorf("not every field of the example was tried: %+v", s)
	}
}

func TestParseMistakes(t *testing.T) {
	const ok = "id: a\nplugin_id: p\n"
	long := strings.Repeat("x", 129)
	for _, tt := range []struct{ name, file, want string }{
		{"unknown field", ok + "  \ncapcity_min: 1GiB", `volume.yaml:4:1: unknown field "capcity_min" (did you mean "capacity_min"?)`},
		{"unknown nested field", ok + "mount_options:\n    fstype: ext4", `volume.yaml:4:5: unknown field "fstype" in mount_options (did you mean "fs_type"?)`},
		{"unknown field like none", ok + "zzz: 1", `volume.yaml:3:1: unknown field "zzz"`},
		{"number for a text", "id: 5\nplugin_id: p", `volume.yaml:1:5: id must be a text, not a number; put it in quotes`},
		{"yes for a text", ok + "parameters: {ssd: true}", `volume.yaml:3:19: the value of "ssd" in parameters must be a text; put it in quotes`},
		{"list for a text", ok + "name: [a]", `volume.yaml:3:7: name must be a text, not a list`},
		{"text for a mapping", ok + "mount_options: ext4", `volume.yaml:3:16: mount_options must be a mapping of names to values, not a text`},
		{"text for a list", ok + "capabilities: single-node-writer", `volume.yaml:3:15: capabilities must be a list, not a text`},
		{"missing id", "\nplugin_id: p", `volume.yaml:2:1: "id" is missing`},
		{"id without value", "id:\nplugin_id: p", `volume.yaml:1:1: "id" is missing`},
		{"empty id", "id: ''\nplugin_id: p", `volume.yaml:1:5: id is empty`},
		{"missing plugin", "id: a", `volume.yaml:1:1: "plugin_id" is missing`},
		{"two mistakes", "name: 1", "volume.yaml:1:7: name must be a text, not a number; put it in quotes\nvolume.yaml:1:1: \"id\" is missing\nvolume.yaml:1:1: \"plugin_id\" is missing"},
		{"two sources", ok + "clone_id: a\nsnapshot_id: b", `volume.yaml:4:14: "snapshot_id" and "clone_id" are both given: a volume is filled from one source`},
		{"size without unit", ok + "capacity_min: 10", `volume.yaml:3:15: capacity_min: bad size "10": a number without a unit counts bytes, and must be at least 1048576; write a number with a unit K, M, G, T or P (1000), or Ki, Mi, Gi, Ti or Pi (1024), as in 20G or 20GiB`},
		{"size with another unit", ok + "capacity_max: 10Q", `volume.yaml:3:15: capacity_max: bad size "10Q": there is no unit "Q"; write a number with a unit K, M, G, T or P (1000), or Ki, Mi, Gi, Ti or Pi (1024), as in 20G or 20GiB`},
		{"size that is a list", ok + "capacity_max: [1GiB]", `volume.yaml:3:15: capacity_max must be a size such as 10GiB, not a list`},
		{"min above max", ok + "capacity_max: 1GiB\ncapacity_min: 2GiB", `volume.yaml:4:15: "capacity_min" is more than "capacity_max" in line 3`},
		{"bad access mode", ok + "capabilities: [{access_mode: single-node-write}]", `volume.yaml:3:30: unknown access_mode "single-node-write" (did you mean "single-node-writer"?); it is one of single-node-reader-only, single-node-writer, single-node-single-writer, single-node-multi-writer, multi-node-reader-only, multi-node-single-writer, multi-node-multi-writer`},
		{"bad attachment mode", ok + "capabilities: [{attachment_mode: nfs}]", `volume.yaml:3:34: unknown attachment_mode "nfs"; it is one of file-system, block-device`},
		{"capability twice", ok + "capabilities:\n- {}\n- {access_mode: single-node-writer}", `volume.yaml:5:3: capability single-node-writer, file-system is given twice`},
		{"no capability", ok + "capabilities: []", `volume.yaml:3:15: capabilities is empty: leave it out for single-node-writer, file-system`},
		{"id with a slash", "id: a/b\nplugin_id: p", `volume.yaml:1:5: bad volume id "a/b": it contains a slash`},
		{"id of dots", "id: ..\nplugin_id: p", `volume.yaml:1:5: volume id ".." is not allowed`},
		{"long id", "id: " + long + "\nplugin_id: p", `volume.yaml:1:5: volume id "` + long[:40] + `…" is 129 bytes long, more than 128`},
		{"unprintable id", "id: \"a\\eb\"\nplugin_id: p", `volume.yaml:1:5: bad volume id "a\x1bb": only printable characters are allowed`},
		{"bad plugin id", "id: a\nplugin_id: a b", `volume.yaml:2:12: bad plugin id "a b": letters, digits, ".", "_" and "-" are allowed`},
		{"id twice", ok + "---\n" + ok, `volume.yaml:4:5: volume "a" is in this file twice, first in line 1`},
		{"field twice", ok + "id: b", `volume.yaml:3:1: "id" is given twice, first in line 1`},
		{"reclaim", ok + "reclaim: keep", `volume.yaml:3:10: unknown reclaim "keep"; it is one of retain, delete`},
		{"type", ok + "type: host", "volume.yaml:3:7: " + hostVolume},
		{"nothing", "# empty\n", `volume.yaml:1:1: the file contains no volume`},
		{"a text", "hello", `volume.yaml:1:1: a volume must be a mapping of names to values, not a text`},
		{"anchor", "id: &x a\nplugin_id: *x", "volume.yaml:1:5: anchors and aliases are not supported\nvolume.yaml:2:12: anchors and aliases are not supported"},
		{"tag", ok + "name: !!str 5", `volume.yaml:3:7: a tag is not supported here`},
		{"syntax", ok + "name: [a\nx: y: z", `volume.yaml:3:1: did not find expected ',' or ']'`},
		{"syntax at the end", "id: [a,\nb", `volume.yaml:2:1: did not find expected ',' or ']'`},
		{"syntax in one line", "id: a: b", `volume.yaml:1:1: mapping values are not allowed in this context`},
		{"syntax in the first line", "{id: a]", `volume.yaml:1:1: did not find expected ',' or '}'`},
		{"two json objects", "{\"id\": \"a\", \"plugin_id\": \"p\"}\n{\"id\": \"b\"}", `volume.yaml:2:1: "plugin_id" is missing`},
		{"two json objects in a line", "{\"id\": \"a\", \"plugin_id\": \"p\"} {\"id\": \"a\", \"plugin_id\": \"p\"}", `volume.yaml:1:38: volume "a" is in this file twice, first in line 1`},
		{"two json objects of which one is none", "{\"id\": \"a\", \"plugin_id\": \"p\"}\n{\"id\": }}", `volume.yaml:2:1: did not find expected <document start>`},
		{"capability twice named", ok + "capability: {}\ncapabilities: [{}]", `volume.yaml:3:13: "capability" and "capabilities" are both given: they are two names of one field`},
		{"topology of no segments", ok + "topology_request: {required: {topology: {segment: {a: b}}}}", `volume.yaml:3:42: unknown field "segment" in topology (did you mean "segments"?)`},
		{"json", "{\n \"id\": \"a\",\n \"plugin\": \"p\",\n \"plugin_id\": \"p\"\n}", `volume.yaml:3:2: unknown field "plugin" (did you mean "plugin_id"?)`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := spec.Parse("volume.yaml", []byte(tt.file))
			if err == nil || err.Error() != tt.want {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
			if got != nil {
				t.Errorf("with an error no specs are expected, got %+v", got)
			}
			var first *spec.Error
			if !errors.As(err, &first) || first.File != "volume.yaml" || first.Line < 1 || first.Column < 1 {
				t.Errorf("the error has no place: %#v", first)
			}
		})
	}
	if _, err := spec.Parse("v.yaml", make([]byte, spec.MaxFileSize+1)); err == nil || !strings.Contains(err.Error(), "larger than 1 MiB") {
		t.Errorf("large file: %v", err)
	}
}

// TestParseSecret checks that Parse reads a secret as a text or as a reference.
func TestParseSecret(t *testing.T) {
	for text, want := range map[string]api.Secret{
		"hunter2":               {Literal: api.NewLiteral("hunter2")},
		"'7707077'":             {Literal: api.NewLiteral("7707077")},
		"file:/run/key":         {Literal: api.NewLiteral("file:/run/key")},
		"\n    |\n    a\n    b": {Literal: api.NewLiteral("a\nb\n")},
		"''":                    {Literal: api.NewLiteral("")},
		"{file: /run/key}":      {File: "/run/key"},
		"{credential: key}":     {Credential: "key"},
		"{env: KEY}":            {Env: "KEY"},
		"{sealed: true}":        {Sealed: true},
	} {
		specs, err := spec.Parse("volume.yaml", []byte("id: a\nplugin_id: p\nsecrets:\n  p: "+text+"\n"))
		if err != nil || !reflect.DeepEqual(specs[0].Secrets["p"], want) {
			t.Errorf("%s: %+v, %v", text, specs, err)
		}
	}
}

// TestParseNeverRepeatsASecret checks that Parse refuses an invalid secret in any field, and that
// no error message contains the secret.
func TestParseNeverRepeatsASecret(t *testing.T) {
	const refusal = "a secret is a text, in quotes"
	for _, tt := range []struct{ name, secrets, want string }{
		{"sealed with a value", "secrets: {p: {sealed: hunter2}}", refusal},
		{"sealed and not", "secrets: {p: {sealed: false}}", refusal},
		{"number", "secrets: {p: 7707077}", refusal},
		{"list", "secrets: {p: [hunter2]}", refusal},
		{"unknown reference", "secrets: {p: {value: hunter2}}", refusal},
		{"as a key", "secrets: {p: {hunter2: x}}", refusal},
		{"two references", "secrets: {p: {env: hunter2, file: /hunter2}}", refusal},
		{"nothing", "secrets: {p: }", refusal},
		{"empty reference", "secrets: {p: {env: ''}}", refusal},
		{"number as reference", "secrets: {p: {env: 7707077}}", refusal},
		{"literal as file", "secrets: {p: {file: hunter2}}", "must be an absolute path"},
		{"tagged", "secrets: {p: !x hunter2}", refusal},
		{"anchored", "secrets: {p: {env: &hunter2 hunter2}}", "anchors and aliases"},
		{"reads as an alias", "secrets: {p: *hunter2}", "anchors and aliases"},
		{"reads as an alias, later line", "secrets:\n  p: *hunter2\n", "volume.yaml:"},
		{"reads as a directive", "secrets: {p: %hunter2}", "volume.yaml:"},
		{"misspelt block", "secret: {p: hunter2}", `unknown field "secret" (did you mean "secrets"?)`},
		{"not a mapping", "secrets: hunter2", "must be a mapping"},
		{"broken quotes", "secrets: {p: 'hunter2}", "volume.yaml:"},
		{"block text", "secrets:\n  p: |hunter2", "volume.yaml:"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := spec.Parse("volume.yaml", []byte("id: a\nplugin_id: p\n"+tt.secrets+"\n"))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("got %v, want %q", err, tt.want)
			}
			if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "7707077") {
				t.Errorf("the secret is in the error: %v", err)
			}
		})
	}
}

func TestCheckIDs(t *testing.T) {
	for _, id := range []string{"a", "data[0]", "a%2Fb", ".hidden", "...", "a b", "日本", strings.Repeat("x", 128)} {
		if err := spec.CheckVolumeID(id); err != nil {
			t.Errorf("%q: %v", id, err)
		}
	}
	for id, want := range map[string]string{
		"": "alloc is empty", ".": "not allowed", "..": "not allowed", "../x": "it contains a slash", "a\nb": "printable", "a\xff": "printable", "a\u202eb": "printable",
		strings.Repeat("x", 129): "more than 128",
	} {
		if err := spec.CheckAlloc(id); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", id, err, want)
		}
	}
	for _, id := range []string{"", ".", "..", "a/b", "a b", "ä", strings.Repeat("x", 49)} {
		if spec.CheckPluginID(id) == nil {
			t.Errorf("plugin id %q is accepted", id)
		}
	}
	if err := spec.CheckPluginID("Local_1.2-x"); err != nil {
		t.Error(err)
	}
}

func TestNear(t *testing.T) {
	all := []string{"data", "data2", "database", "web", "logs[0]", "logs[1]"}
	for word, want := range map[string]string{
		"dta": "data", "adta": "data", "DATA": "data,data2,database", "dat": "data,data2,database", "logs": "logs[0],logs[1]", "datas": "data,data2", "web": "", "zzz": "", "": "", "x": "", "wbe": "web",
	} {
		if got := strings.Join(spec.Near(word, all), ","); got != want {
			t.Errorf("%q: got %q, want %q", word, got, want)
		}
	}
	if got := spec.Near(strings.Repeat("x", 5000), []string{strings.Repeat("y", 5000)}); len(got) != 0 {
		t.Errorf("long texts: %d", len(got))
	}
}

// FuzzParse checks that Parse returns for any input, that each returned spec satisfies the rules
// for ids and modes, and that each error has a position.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		spec.Example(),
		"id: a\nplugin_id: p\n---\nid: b\nplugin_id: p\n",
		`{"id": "a", "plugin_id": "p", "secrets": {"x": {"file": "/x"}}, "capacity_min": "1GiB"}`,
		`[{"id":"\u0061\/","plugin_id":"p"}]`, "id: &a b\nplugin_id: *a", "? [x]\n: y", "- - - a", "<<: {id: a}", "id: !!binary aGk=", "%YAML 9\n---\na", "\xef\xbb\xbfid: a",
		"capabilities: [{}, {access_mode: multi-node-multi-writer}]\nid: a\nplugin_id: p", "topology_request: {required: [{a: b}], preferred: []}\nid: a\nplugin_id: p", "\xff\xfei\x00d\x00", "a: |\n b\n\n\tc",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		specs, err := spec.Parse("f.yaml", data)
		if err != nil {
			var all spec.Errors
			if !errors.As(err, &all) || len(all) == 0 || specs != nil {
				t.Fatalf("error %#v, specs %v", err, specs)
			}
			for _, e := range all {
				if e.Line < 1 || e.Column < 1 || e.Message == "" {
					t.Fatalf("an error without a place: %#v", e)
				}
			}
			return
		}
		seen := map[string]bool{}
		for _, s := range specs {
			if spec.CheckVolumeID(s.ID) != nil || spec.CheckPluginID(s.PluginID) != nil || seen[s.ID] || len(s.Capabilities) == 0 ||
				s.CapacityMin < 0 || s.CapacityMax < 0 || (s.SnapshotID != "" && s.CloneID != "") {
				t.Fatalf("a spec that breaks the rules: %+v", s)
			}
			seen[s.ID] = true
		}
	})
}
