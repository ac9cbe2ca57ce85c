package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/api"
)

// home is the directory of this package. Tests that change their directory still find files by it.
var home, _ = os.Getwd()

// sample returns the path of a manifest of the tests of agent/manifest.
func sample(name string) string { return filepath.Join(home, "../agent/manifest/testdata", name) }

// expectFiles checks the names of all files in a directory, including hidden ones.
func expectFiles(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s has %q, want %q", dir, got, want)
	}
}

// TestPluginImport checks the screen, the files and the JSON of an import.
func TestPluginImport(t *testing.T) {
	cloud, dir := sample("cloud.yaml"), t.TempDir()
	t.Chdir(dir)
	f := world()
	r := with(t, f)
	got := r.volctl("plugin", "import", cloud)
	golden(t, filepath.Join(home, "testdata/plugin_import.txt"), strings.ReplaceAll(got.stdout, filepath.Dir(cloud), "DIR"))
	if got.code != 0 || got.stderr != "" || strings.Contains(got.stdout, "hunter2") {
		t.Errorf("%+v", got)
	}
	expectSent(t, f, "GET /v1/plugins")
	expectFiles(t, dir, "cloudy-controller.yaml", "cloudy-node.yaml")
	info, err := os.Stat("cloudy-node.yaml")
	text, readErr := os.ReadFile("cloudy-controller.yaml")
	if err != nil || readErr != nil || info.Mode() != 0o644 || !strings.Contains(string(text), "enabled: false\n") {
		t.Errorf("%v, %v, %v, %s", err, readErr, info.Mode(), text)
	}

	// Without an agent, from stdin, into a plugin directory, with all answers.
	none := run{ctx: t.Context(), socket: "/nonexistent"}
	data, err := os.ReadFile(cloud)
	if err != nil {
		t.Fatal(err)
	}
	none.stdin = string(data)
	plugins := filepath.Join(t.TempDir(), "plugins.d")
	if err := os.Mkdir(plugins, 0o755); err != nil {
		t.Fatal(err)
	}
	got = none.volctl("plugin", "import", "-", "--dir", plugins, "--id", "mine", "--runtime", "docker", "--set", "ADDRESS=192.0.2.1", "--set", "CLOUDY_URL=https://x", "--set-secret", "CLOUDY_TOKEN=/root/token", "-o", "json")
	var answer struct {
		ID       string
		Files    []struct{ Path, Type, Container string }
		Required []string
		Secrets  []struct{ Name, Path string }
		Warnings []string
	}
	if err := json.Unmarshal([]byte(got.stdout), &answer); err != nil || got.code != 0 {
		t.Fatalf("%v: %+v", err, got)
	}
	if answer.ID != "mine" || len(answer.Files) != 2 || answer.Files[0].Path != filepath.Join(plugins, "mine-node.yaml") || answer.Files[0].Type != "node" ||
		answer.Files[1].Container != "cloudy-csi-controller/driver" || len(answer.Required) != 0 || answer.Secrets[0].Path != "/root/token" ||
		!strings.Contains(strings.Join(answer.Warnings, "\n"), "the agent could not be asked whether it has a plugin \"mine\" already") {
		t.Errorf("%+v", answer)
	}
	expectFiles(t, plugins, "mine-controller.yaml", "mine-node.yaml")
	expect(t, none.volctl("plugin", "import", sample("managed.json"), "--dir", plugins, "-q"), 0, filepath.Join(plugins, "cloudy.yaml")+"\n", "")
	if got := none.volctl("plugin", "import", sample("directory.yaml"), "--dir", plugins); !strings.Contains(got.stdout, "edit the file, set enabled: true, then: volctl plugin list\n") {
		t.Errorf("%+v", got)
	}
}

// TestPluginImportRefused checks that a refused import writes nothing, and suggests the next step.
func TestPluginImportRefused(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	f := world()
	r := with(t, f)
	write := func(name, text string) {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	other := t.TempDir()
	write(other+"/template.yaml", "kind: DaemonSet\nmetadata: {name: \"{{ .Values.name }}\"}\n")
	write(other+"/two.yaml", "kind: DaemonSet\nmetadata: {name: d}\nspec: {template: {spec: {containers: [{name: a, image: a, args: [--endpoint=unix:///x]}, {name: b, image: b, args: [--endpoint=unix:///x]}]}}}\n")
	for _, tt := range []struct {
		args   []string
		code   int
		stderr string
	}{
		{[]string{other + "/template.yaml"}, 2, "template.yaml:2: this is a template, with {{ in it\nhint: render it first, with helm template or kubectl kustomize, and import the result\n"},
		{[]string{other + "/two.yaml"}, 2, "several containers that may be the CSI driver: \"d/a\", \"d/b\"\nhint: volctl plugin import " + other + "/two.yaml --container NAME\n"},
		{[]string{sample("mountpods.yaml")}, 4, "the driver needs the API of Kubernetes, which a host without a cluster does not have."},
		{[]string{sample("mountpods.yaml")}, 4, "mountpods.yaml --without-kubernetes\n"},
		{[]string{sample("argument.yaml")}, 4, "takes the secret of the variable \"ACCESS_TOKEN\" in the argument \"--token\""},
		{[]string{sample("cloud.yaml"), "--id", "ebs"}, 4, "the agent has a plugin \"ebs\" already\nhint: volctl plugin import " + sample("cloud.yaml") + " --id ANOTHER-ID\n"},
		{[]string{sample("cloud.yaml"), "--set", "X=y"}, 2, "no required value has the name \"X\"; the required values are: ADDRESS, CLOUDY_URL"},
		{[]string{sample("cloud.yaml"), "--set", "X"}, 2, "--set needs KEY=VALUE"},
		{[]string{sample("cloud.yaml"), "--set-secret", "CLOUDY_TOKEN=hunter2"}, 2, "--set-secret CLOUDY_TOKEN needs the absolute path of a file; a secret itself is refused"},
		{[]string{sample("cloud.yaml"), "--runtime", "crio"}, 2, "podman, docker"},
		{[]string{sample("cloud.yaml"), "--dir", other + "/none"}, 1, "cannot write \"" + other + "/none\": no such file or directory"},
		{[]string{other + "/absent.yaml"}, 2, "no such file or directory"},
		{nil, 2, "FILE"},
	} {
		got := r.volctl(append([]string{"plugin", "import"}, tt.args...)...)
		if got.code != tt.code || got.stdout != "" || !strings.Contains(got.stderr, tt.stderr) || strings.Contains(got.stderr, "hunter2") {
			t.Errorf("%q: %+v, want exit %d, %s", tt.args, got, tt.code, tt.stderr)
		}
		expectFiles(t, dir)
	}

	// A file defines the id, also one with a mistake under another name.
	write("a.yaml", "id: cloudy\nbad: x\n")
	expect(t, r.volctl("plugin", "import", sample("cloud.yaml")), 4, "", "plugin \"cloudy\" exists already, in a.yaml\nhint: volctl plugin import ")
	expectFiles(t, dir, "a.yaml")

	// The first of both names is free, and the second one is not: neither is written.
	write("a.yaml", "")
	write("cloudy-controller.yaml", "mine")
	expect(t, r.volctl("plugin", "import", sample("cloud.yaml")), 4, "", "cloudy-controller.yaml exists; nothing was written\n")
	expectFiles(t, dir, "a.yaml", "cloudy-controller.yaml")
	if text, err := os.ReadFile("cloudy-controller.yaml"); err != nil || string(text) != "mine" {
		t.Errorf("%q, %v", text, err)
	}

	// The agent refuses the question.
	f.on["GET /v1/plugins"] = refuses(api.Error{Code: api.CodePermission, Message: "no"})
	if got := r.volctl("plugin", "import", sample("directory.yaml")); got.code != 0 || !strings.Contains(got.stdout, "the agent could not be asked") {
		t.Errorf("%+v", got)
	}
}
