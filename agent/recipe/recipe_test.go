package recipe_test

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/pluginfile"
	"github.com/volagent/volagent/agent/recipe"
	"github.com/volagent/volagent/agent/spec"
	"github.com/volagent/volagent/volmgr/plugin"
)

var update = flag.Bool("update", false, "rewrite the expected outputs")

// full returns the input with all values and secrets of a recipe.
func full(t *testing.T, r *recipe.Recipe, text string) recipe.Input {
	t.Helper()
	in := recipe.Input{Runtime: "docker", Pull: true, SecretDir: "/etc/volagent/secrets", Values: map[string]string{}, Secrets: map[string][]byte{}}
	for _, v := range r.Values {
		value := text + v.Name
		switch {
		case v.Number:
			value = "7"
		case len(v.Choices) > 0:
			value = v.Choices[len(v.Choices)-1]
		case v.Name == "image":
			value = "registry.example.com/x:v1"
		case v.Name == "path" || v.Name == "directory" || v.Name == "socket":
			value = "/srv/" + v.Name
		}
		if err := r.CheckValue(v.Name, value); err != nil {
			t.Errorf("%s: %s: %v", r.Name, v.Name, err)
		}
		in.Values[v.Name] = value
	}
	for _, s := range r.Secrets {
		clean, err := r.CleanSecret(s.Name, []byte("hunter2\n"))
		if err != nil {
			t.Errorf("%s: %s: %v", r.Name, s.Name, err)
		}
		in.Secrets[s.Name] = clean
	}
	return in
}

func parse(t *testing.T, r *recipe.Recipe, text string) *plugin.Definition {
	t.Helper()
	id, def, err := pluginfile.Parse(r.Name+".yaml", []byte(text))
	if err != nil || id != r.Name {
		t.Fatalf("%s: id %q, %v in\n%s", r.Name, id, err, text)
	}
	return def
}

// TestRecipes checks that each recipe is complete, and that the strict parser accepts its plugin file
// with all values, also after it is enabled.
func TestRecipes(t *testing.T) {
	var groups []string
	for _, g := range recipe.Groups() {
		groups = append(groups, g.Name)
	}
	for _, r := range recipe.All() {
		if r.Title == "" || r.Source.Repository == "" || r.Source.Version == "" || len(r.Volumes) == 0 || !slices.Contains(groups, r.Group) {
			t.Errorf("%s is incomplete: %+v", r.Name, r.Source)
		}
		if !regexp.MustCompile(`^[a-z0-9-]{2,48}$`).MatchString(r.Name) {
			t.Errorf("%s is not a name", r.Name)
		}
		for _, v := range r.Values {
			if v.Note == "" || v.Required && v.Default != "" {
				t.Errorf("%s: value %+v", r.Name, v)
			}
			if v.Default != "" {
				if err := r.CheckValue(v.Name, v.Default); err != nil {
					t.Errorf("%s: the default of %s: %v", r.Name, v.Name, err)
				}
			}
		}

		in := full(t, &r, "x-")
		out, err := r.Render(in)
		if err != nil {
			t.Errorf("%s: %v", r.Name, err)
			continue
		}
		if len(out.MissingValues)+len(out.MissingSecrets) > 0 {
			t.Errorf("%s lacks %q and %q, although all are given", r.Name, out.MissingValues, out.MissingSecrets)
		}
		def := parse(t, &r, out.Plugin)
		if !def.Disabled {
			t.Errorf("%s is enabled", r.Name)
		}
		on, err := pluginfile.SetEnabled(r.Name+".yaml", []byte(out.Plugin), true)
		if err != nil || parse(t, &r, string(on)).Disabled {
			t.Errorf("%s cannot be enabled: %v", r.Name, err)
		}
		if names := r.Empty(def); len(names) > 0 {
			t.Errorf("%s: %q count as empty", r.Name, names)
		}
		checkUses(t, &r, in, out)
		checkListens(t, &r, def, out.Plugin)
		noSecret(t, &r, in, out)
	}
}

// checkUses checks that each value and secret has an effect, and that each file with a secret is used.
func checkUses(t *testing.T, r *recipe.Recipe, in recipe.Input, out recipe.Output) {
	t.Helper()
	written := out.Plugin
	for _, f := range out.Files {
		written += string(f.Content) + "\n"
	}
	for name := range in.Values {
		if !strings.Contains(r.Plugin, "{{"+name+"}}") && !slices.ContainsFunc(r.Configs, func(c recipe.Config) bool {
			return strings.Contains(c.Text, "{{"+name+"}}") || strings.Contains(c.Text, "{{raw."+name+"}}")
		}) {
			t.Errorf("%s does not use the value %s", r.Name, name)
		}
	}
	for _, v := range r.Values {
		if len(v.Choices) == 0 && !v.Number && strings.Count(written, in.Values[v.Name]) == 0 {
			t.Errorf("%s: the value of %s appears nowhere", r.Name, v.Name)
		}
	}

	volumes := r.VolumeFile("/etc/volagent/secrets")
	for _, s := range r.Secrets {
		path := "/etc/volagent/secrets/" + r.Name + "-" + s.Name
		inConfig := slices.ContainsFunc(r.Configs, func(c recipe.Config) bool { return strings.Contains(c.Text, "{{secret."+s.Name+"}}") })
		file := slices.ContainsFunc(out.Files, func(f recipe.File) bool { return f.Path == path })
		switch {
		case s.Volume && (!file || !strings.Contains(volumes, path)):
			t.Errorf("%s: no volume uses the secret %s", r.Name, s.Name)
		case s.Volume || inConfig:
		case !file || !strings.Contains(out.Plugin, path):
			t.Errorf("%s: the plugin file does not use the secret %s", r.Name, s.Name)
		}
	}
	for _, c := range r.Configs {
		if !strings.Contains(r.Plugin, "{{config."+c.Name+"}}") {
			t.Errorf("%s does not mount %s", r.Name, c.Name)
		}
	}
}

// checkListens checks that the plugin learns its socket, and that the runtime and the image are those of
// the input.
func checkListens(t *testing.T, r *recipe.Recipe, def *plugin.Definition, text string) {
	t.Helper()
	fromEnvironment := []string{"hetzner", "linode", "scylla-local"} // scylla-local has the path
	switch c := def.Container; {
	case c == nil && def.Exec == nil:
		t.Errorf("%s runs nothing", r.Name)
	case c == nil:
		if !strings.Contains(strings.Join(def.Exec.Command, " "), `"$CSI_ENDPOINT"`) {
			t.Errorf("%s does not tell its plugin where to listen", r.Name)
		}
	case c.Runtime != "docker" || c.Pull != plugin.PullMissing || !strings.Contains(text, "\n#   docker pull "+r.Image+"\n"):
		t.Errorf("%s: %+v", r.Name, c)
	case !slices.Contains(fromEnvironment, r.Name) && !strings.Contains(strings.Join(c.Args, " "), "=${CSI_ENDPOINT}"):
		t.Errorf("%s does not tell its plugin where to listen: %q", r.Name, c.Args)
	}
	if r.Image != "" && r.Name != "iscsi" && !regexp.MustCompile(`:v?\d+\.\d+\.\d+$`).MatchString(r.Image) {
		t.Errorf("%s: the image %s has no fixed version", r.Name, r.Image)
	}
}

// noSecret checks that a secret appears neither in the plugin file nor in the volume file.
func noSecret(t *testing.T, r *recipe.Recipe, in recipe.Input, out recipe.Output) {
	t.Helper()
	for name, content := range in.Secrets {
		if strings.Contains(out.Plugin+r.VolumeFile("/s"), string(content)) {
			t.Errorf("%s: the plugin file contains the secret %s", r.Name, name)
		}
	}
}

// TestMissing checks that a plugin file without its required values stays disabled: it has placeholders,
// and the parser refuses it after it is enabled by hand.
func TestMissing(t *testing.T) {
	for _, r := range recipe.All() {
		out, err := r.Render(recipe.Input{Runtime: "podman", SecretDir: "/etc/volagent/secrets"})
		if err != nil {
			t.Errorf("%s: %v", r.Name, err)
			continue
		}
		def := parse(t, &r, out.Plugin)
		if !def.Disabled {
			t.Errorf("%s is enabled", r.Name)
		}

		all := out.Plugin
		for _, f := range out.Files {
			all += string(f.Content)
			base := filepath.Base(f.Path)
			if names := r.EmptyInConfig(base, string(f.Content)); len(pluginfile.Placeholders(string(f.Content))) > 0 && len(names) == 0 {
				t.Errorf("%s: nothing is missing in %s", r.Name, base)
			}
		}
		for _, v := range r.Values {
			missing := slices.Contains(out.MissingValues, v.Name)
			if missing != v.Required || missing != strings.Contains(all, pluginfile.Placeholder(v.Name)) {
				t.Errorf("%s: the value %s is missing: %t", r.Name, v.Name, missing)
			}
		}
		for _, s := range r.Secrets {
			if got := slices.Contains(out.MissingSecrets, s.Name); got != (s.Required && !s.Volume) {
				t.Errorf("%s: the secret %s is missing: %t", r.Name, s.Name, got)
			}
		}

		// Each required value of the plugin file itself is found after its placeholder was removed.
		emptied := regexp.MustCompile(`<FILL-IN-[a-z-]+>`).ReplaceAllString(out.Plugin, "")
		_, empty, err := pluginfile.Parse(r.Name, []byte(emptied))
		if err != nil {
			t.Errorf("%s without its placeholders: %v", r.Name, err)
			continue
		}
		if got, want := r.Empty(empty), pluginfile.Placeholders(out.Plugin); len(got) != len(want) {
			t.Errorf("%s: %q count as empty, want %q", r.Name, got, want)
		}
		if len(pluginfile.Placeholders(out.Plugin)) > 0 {
			on := strings.Replace(out.Plugin, "\nenabled: false", "\nenabled: true", 1)
			if _, _, err := pluginfile.Parse(r.Name, []byte(on)); err == nil || !strings.Contains(err.Error(), "is not filled in") {
				t.Errorf("%s with placeholders can be enabled: %v", r.Name, err)
			}
		}
	}
}

// TestEmptyConfig checks that an emptied value of a configuration file is found.
func TestEmptyConfig(t *testing.T) {
	for _, r := range recipe.All() {
		out, err := r.Render(recipe.Input{Runtime: "podman", SecretDir: "/s"})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range out.Files {
			for _, name := range pluginfile.Placeholders(string(f.Content)) {
				text := string(f.Content)
				for _, other := range pluginfile.Placeholders(text) {
					with := "given"
					if other == name {
						with = ""
					}
					text = strings.ReplaceAll(text, pluginfile.Placeholder(other), with)
				}
				if got := r.EmptyInConfig(filepath.Base(f.Path), text); !slices.Contains(got, name) {
					t.Errorf("%s: without %s, %q is missing in\n%s", r.Name, name, got, text)
				}
			}
		}

		in := full(t, &r, "x-")
		whole, err := r.Render(in)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range whole.Files {
			if got := r.EmptyInConfig(filepath.Base(f.Path), string(f.Content)); len(got) > 0 {
				t.Errorf("%s: %q count as empty in\n%s", r.Name, got, f.Content)
			}
		}
	}
}

// TestVolumes checks that the volume files of all recipes are valid.
func TestVolumes(t *testing.T) {
	for _, r := range recipe.All() {
		text := r.VolumeFile("/etc/volagent/secrets")
		docs, err := spec.Read("volume.yaml", []byte(text))
		if err != nil || len(docs) != 1 || docs[0].Spec.PluginID != r.Name || (docs[0].Spec.ExternalID == "") != r.Creates() {
			t.Errorf("%s: %v, %+v in\n%s", r.Name, err, docs, text)
		}
		// A comment shows every further volume, and every optional key.
		uncommented := regexp.MustCompile(`(?m)^( *)# ([A-Za-z][A-Za-z0-9./_-]*: .*)$`).ReplaceAllString(text, "$1$2")
		uncommented = regexp.MustCompile(`(?m)^# (parameters|context|secrets):$`).ReplaceAllString(uncommented, "$1:")
		if _, err := spec.Read("volume.yaml", []byte(firstVolume(uncommented))); err != nil {
			t.Errorf("%s with its optional keys: %v in\n%s", r.Name, err, uncommented)
		}
		for i, v := range volumesIn(text) {
			if _, err := spec.Read("volume.yaml", []byte(v)); err != nil {
				t.Errorf("%s, volume %d: %v in\n%s", r.Name, i, err, v)
			}
		}
	}
}

// firstVolume returns a volume file without the volumes in its comments.
func firstVolume(text string) string {
	before, _, _ := strings.Cut(text, "\n# A volume, ")
	if !strings.Contains(before, "\nid: ") {
		_, after, _ := strings.Cut(text, "\nid: ")
		before = "id: " + after
	}
	if at := strings.Index(before, "\n# "); at > 0 && strings.HasPrefix(before, "id: ") {
		before = before[:at]
	}
	return before
}

// volumesIn returns the volumes in the comments of a file.
func volumesIn(text string) (volumes []string) {
	volume := ""
	for line := range strings.Lines(text + "\n") {
		indented, ok := strings.CutPrefix(line, "#   ")
		switch {
		case ok && (volume != "" || strings.HasPrefix(indented, "id: ")):
			volume += indented
		case volume != "":
			volumes, volume = append(volumes, volume), ""
		}
	}
	return volumes
}

// TestGoldens compares the files of some recipes with the expected ones.
func TestGoldens(t *testing.T) {
	for name, values := range map[string]map[string]string{
		"hetzner":                    {"location": "nbg1"},
		"cinder":                     nil,
		"democratic-csi-truenas-nfs": {"host": "nas", "dataset": "tank/v", "snapshots": "tank/s", "network": "192.0.2.0/24", "insecure": "true"},
		"digitalocean":               nil,
		"nfs":                        nil,
	} {
		r, ok := recipe.Find(name)
		if !ok {
			t.Fatalf("no recipe %s", name)
		}
		in := recipe.Input{Runtime: "podman", SecretDir: "/etc/volagent/secrets", Values: values}
		if values != nil {
			in.Secrets = map[string][]byte{"token": []byte("hunter2"), "api-key": []byte("hunter2")}
		}
		out, err := r.Render(in)
		if err != nil {
			t.Fatal(err)
		}
		text := out.Plugin
		for _, f := range out.Files {
			text += "\n--- " + f.Path + "\n" + string(f.Content)
		}
		text += "\n--- volume init\n" + r.VolumeFile("/etc/volagent/secrets")

		path := filepath.Join("testdata", name+".txt")
		if *update {
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil || string(want) != text {
			t.Errorf("%s differs from %s (%v); with -update the test writes it:\n%s", name, path, err, text)
		}
	}
}

// TestQuoting checks that no value can add a key, an argument or a mount.
func TestQuoting(t *testing.T) {
	for _, text := range []string{`a: b`, `a #b`, `"`, `\`, `'x'`, `- y`, `{a}`, `[a]`, `null`, `true`, `*a`, `&a`, `!!x`, `%`, `@`, "`", `é ü`, `a, b`, `a}`} {
		for _, name := range []string{"scaleway", "cinder", "azuredisk", "synology", "linstor", "seaweedfs"} {
			r, _ := recipe.Find(name)
			plain, err := r.Render(full(t, r, "x-"))
			if err != nil {
				t.Fatal(err)
			}
			in := full(t, r, text)
			out, err := r.Render(in)
			if err != nil {
				t.Errorf("%s with %q: %v", name, text, err)
				continue
			}
			a, b := parse(t, r, plain.Plugin), parse(t, r, out.Plugin)
			if len(a.Container.Args) != len(b.Container.Args) || len(a.Container.Mounts) != len(b.Container.Mounts) || len(a.Env()) != len(b.Env()) {
				t.Errorf("%s with %q: %+v", name, text, b.Container)
			}
			if name == "scaleway" && b.Env()["SCW_DEFAULT_PROJECT_ID"].Value != text+"project" {
				t.Errorf("%q became %q", text, b.Env()["SCW_DEFAULT_PROJECT_ID"].Value)
			}
		}
	}
	r, _ := recipe.Find("scaleway")
	in := full(t, r, "x-")
	in.Values["prefix"] = "${HOME}"
	if _, err := r.Render(in); err == nil || !strings.Contains(err.Error(), "unknown variable ${HOME}") {
		t.Errorf("an unknown variable: %v", err)
	}
}

// TestCheck checks the values and secrets that are refused. No error contains the content.
func TestCheck(t *testing.T) {
	r, _ := recipe.Find("democratic-csi-truenas-iscsi")
	for _, tt := range []struct{ name, value, words string }{
		{"host", "nas", ""},
		{"host", "", "the value is empty"},
		{"host", "a\nb", "control characters"},
		{"host", "a\x00", "control characters"},
		{"host", "\xff", "control characters"},
		{"host", strings.Repeat("x", 5000), "more than 4096 bytes"},
		{"port", "443", ""},
		{"port", "443 ", "a whole number"},
		{"protocol", "ftp", "can be http, https"},
		{"hots", "x", "no such value; its values are host, "},
		{"api-key", "x", "it is a secret"},
	} {
		if err := r.CheckValue(tt.name, tt.value); (err == nil) != (tt.words == "") || err != nil && !strings.Contains(err.Error(), tt.words) {
			t.Errorf("%s=%.20q: %v, want %q", tt.name, tt.value, err, tt.words)
		}
	}

	rclone, _ := recipe.Find("rclone")
	for _, tt := range []struct {
		r             *recipe.Recipe
		name, content string
		words         string
	}{
		{r, "api-key", "planted-1=x2", ""},
		{r, "api-key", "planted==", ""},
		{r, "api-key", "planted\n", ""},
		{r, "api-key", "planted\r\n", ""},
		{r, "api-key", "", "is empty"},
		{r, "api-key", " \n", "is empty"},
		{r, "api-key", "planted\nplanted\n", "several lines"},
		{r, "api-key", "planted\x01", "control characters"},
		{r, "api-key", "API_KEY=planted", "NAME=VALUE"},
		{r, "api-key", "export KEY = planted", "NAME=VALUE"},
		{r, "api-key", "api-key=planted", "NAME=VALUE"},
		{r, "token", "planted", "no such secret; its secrets are api-key"},
		{r, "api-key", strings.Repeat("planted", 20000), "more than 65536 bytes"},
		{rclone, "config", "[remote]\ntype = s3\nsecret_access_key = planted\n", ""},
		{rclone, "config", "\n\n", "is empty"},
		{rclone, "config", "planted\x00", "control characters"},
	} {
		clean, err := tt.r.CleanSecret(tt.name, []byte(tt.content))
		if (err == nil) != (tt.words == "") || err != nil && (!strings.Contains(err.Error(), tt.words) || strings.Contains(err.Error(), "planted")) {
			t.Errorf("%.40q: %v, want %q", tt.content, err, tt.words)
		}
		if err == nil && tt.name == "api-key" && strings.ContainsAny(string(clean), "\r\n") {
			t.Errorf("%q was stored as %q", tt.content, clean)
		}
	}
}

// TestFences checks that only those recipes have a fence whose maker documents it, and that the
// documentation lists the same fences.
func TestFences(t *testing.T) {
	page, err := os.ReadFile("../../docs/failover.md")
	if err != nil {
		t.Fatal(err)
	}
	var fenced []string
	for _, r := range recipe.All() {
		out, err := r.Render(full(t, &r, "x-"))
		if err != nil {
			t.Fatal(err)
		}
		def := parse(t, &r, out.Plugin)
		if string(def.Fence) != r.Fence.Value {
			t.Errorf("%s: the file has fence %q, the recipe %q", r.Name, def.Fence, r.Fence.Value)
		}
		if r.Fence.Value == "" {
			continue
		}
		if !regexp.MustCompile(`(?m)^#   https://\S+\nfence: `).MatchString(out.Plugin) {
			t.Errorf("the fence of %s has no source", r.Name)
		}
		if !regexp.MustCompile("(?m)^\\| `" + r.Name + "`: .* \\| `" + r.Fence.Value + "` \\|").Match(page) {
			t.Errorf("docs/failover.md does not list %s with fence: %s", r.Name, r.Fence.Value)
		}
		fenced = append(fenced, r.Name)
	}
	if !slices.Equal(fenced, []string{"ebs", "gcepd"}) {
		t.Errorf("recipes with a fence: %q", fenced)
	}
}

// TestUnsupported checks that each driver without a recipe has a reason, a source and alternatives that
// exist.
func TestUnsupported(t *testing.T) {
	for _, name := range []string{"vsphere", "csi-proxmox", "openebs-zfs", "openebs-lvm", "mountpoint-s3", "rawfile"} {
		if _, ok := recipe.FindUnsupported(name); !ok {
			t.Errorf("%s is not known", name)
		}
		if _, ok := recipe.Find(name); ok {
			t.Errorf("%s also has a recipe", name)
		}
	}
	for _, u := range recipe.AllUnsupported() {
		if u.Reason == "" || u.Source.Version == "" || len(u.Source.Read) == 0 || len(u.Alternatives) == 0 {
			t.Errorf("%+v is incomplete", u)
		}
		for _, a := range u.Alternatives {
			if strings.Contains(a, " ") {
				continue
			}
			if _, ok := recipe.Find(a); !ok {
				t.Errorf("%s: the alternative %s has no recipe", u.Name, a)
			}
		}
	}
}

// TestPage checks the tables of recipes in docs/drivers.md. With -update, it writes them.
func TestPage(t *testing.T) {
	const path, begin, end = "../../docs/drivers.md", "<!-- recipes: written by go test ./agent/recipe -update -->\n", "<!-- end of recipes -->"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(page), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the recipes", path)
	}

	want := before + begin + tables() + end + after
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want != string(page) {
		t.Errorf("the tables in %s are not current; with -update the test writes them", path)
	}
}

// tables returns the tables of the page.
func tables() string {
	var b strings.Builder
	for _, g := range recipe.Groups() {
		b.WriteString("\n**" + g.Title + "**\n\n| NAME | volumes are | driver and version | run by this project |\n|---|---|---|---|\n")
		for _, r := range recipe.All() {
			if r.Group != g.Name {
				continue
			}
			ran := "no, only read"
			if r.Ran {
				ran = "yes"
			}
			b.WriteString("| `" + r.Name + "` | " + r.Title + " | [" + strings.TrimPrefix(r.Source.Repository, "https://github.com/") + "](" + r.Source.Repository + ") " + r.Source.Version + " | " + ran + " |\n")
		}
	}
	b.WriteString("\n**Drivers without a recipe**\n\n| NAME | volumes are | reason | source |\n|---|---|---|---|\n")
	for _, u := range recipe.AllUnsupported() {
		b.WriteString("| `" + u.Name + "` | " + u.Title + " | " + u.Reason + " | [" + strings.TrimPrefix(u.Source.Repository, "https://github.com/") + "](" + u.Source.Repository + ") " + u.Source.Version + ": `" + strings.Join(u.Source.Read, "`, `") + "` |\n")
	}
	b.WriteString("\n")
	return b.String()
}
