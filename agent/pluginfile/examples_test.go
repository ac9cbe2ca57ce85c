package pluginfile

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// exampleFiles returns the plugin files that volctl plugin init writes.
func exampleFiles(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob("../spec/plugins/*.yaml")
	if err != nil || len(paths) < 7 {
		t.Fatalf("%d examples, %v", len(paths), err)
	}
	texts := map[string]string{}
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		texts[strings.TrimSuffix(filepath.Base(path), ".yaml")] = string(raw)
	}
	return texts
}

// TestExamples checks that Parse accepts the output of volctl plugin init unchanged.
func TestExamples(t *testing.T) {
	for name, text := range exampleFiles(t) {
		id, def, err := Parse(name+".yaml", []byte(text))
		switch {
		case err != nil:
			t.Error(err)
		case name == "example":
		case id != name || def.Container == nil:
			t.Errorf("%s: id %q, %+v", name, id, def)
		case !strings.Contains(strings.Join(def.Container.Args, " "), "--endpoint=${CSI_ENDPOINT}"):
			t.Errorf("%s does not tell its plugin where to listen: %q", name, def.Container.Args)
		}
	}
}

// TestExampleFences checks that only those examples have a fence whose comment names a document of the
// driver's maker, and that the documentation lists the same fences.
func TestExampleFences(t *testing.T) {
	page, err := os.ReadFile("../../docs/failover.md")
	if err != nil {
		t.Fatal(err)
	}
	var fenced []string
	for name, text := range exampleFiles(t) {
		_, def, err := Parse(name+".yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		shown := regexp.MustCompile("(?m)^\\| `" + name + "`: .* \\| `" + string(def.Fence) + "` \\|").Match(page)
		switch {
		case def.Fence == "":
		case !regexp.MustCompile(`(?m)^#   https://\S+\nfence: `).MatchString(text):
			t.Errorf("the fence of %s has no source", name)
		case !shown:
			t.Errorf("docs/failover.md does not list %s with fence: %s", name, def.Fence)
		default:
			fenced = append(fenced, name)
		}
	}
	if slices.Sort(fenced); !slices.Equal(fenced, []string{"ebs", "gcepd"}) {
		t.Errorf("examples with a fence: %q", fenced)
	}
}

// uncommented returns the keys that an example file shows in comments. It maps each key to the
// lines of the key, without the comment characters.
func uncommented(text string) map[string]string {
	blocks, key := map[string]string{}, ""
	starts := regexp.MustCompile(`^# ([a-z_]+):( |$)`)
	for line := range strings.Lines(text) {
		if m := starts.FindStringSubmatch(strings.TrimSuffix(line, "\n")); m != nil {
			key = m[1]
		} else if !strings.HasPrefix(line, "#   ") {
			key = ""
		}
		if key != "" {
			blocks[key] += strings.TrimPrefix(line, "# ")
		}
	}
	return blocks
}

// TestGeneralExample checks that Parse accepts each key that the example shows in a comment. It
// also checks that the example shows all keys.
func TestGeneralExample(t *testing.T) {
	text := exampleFiles(t)["example"]
	blocks := uncommented(text)
	shown := []string{"id", "exec"}
	for key, block := range blocks {
		shown = append(shown, key)
		file := "id: x\n" + block
		if !slices.Contains([]string{"container", "unit", "socket", "builtin"}, key) {
			file += "socket: /x\n"
		}
		if _, _, err := Parse(key, []byte(file)); err != nil {
			t.Errorf("%v in\n%s", err, file)
		}
	}
	known := slices.Sorted(maps.Keys(reader{}.topLevel(defaults(), nil)))
	if slices.Sort(shown); !slices.Equal(shown, known) {
		t.Errorf("it shows %q of %q", shown, known)
	}
	env := regexp.MustCompile(`(?m)^  # `).ReplaceAllString(text, "  ")
	if _, def, err := Parse("env", []byte(strings.Replace(env, "  A value is", "  # A value is", 1))); err != nil || len(def.Exec.Env) != 4 {
		t.Errorf("with its env: %v, %+v", err, def)
	}
}

// TestDocumentedFiles checks that Parse accepts the plugin files in the documentation unchanged.
func TestDocumentedFiles(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	tried := map[string]int{}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("(?ms)^```yaml\n(.*?)^```").FindAllStringSubmatch(string(text), -1) {
			if !regexp.MustCompile(`(?m)^id: `).MatchString(m[1]) || !regexp.MustCompile(`(?m)^(exec|container|unit|socket|builtin):`).MatchString(m[1]) {
				continue // the block is a volume file, or only a fragment of a plugin file
			}
			tried[filepath.Base(page)]++
			if _, _, err := Parse("docs.yaml", []byte(m[1])); err != nil {
				t.Errorf("%s: %v in\n%s", page, err, m[1])
			}
		}
	}
	for _, page := range []string{"plugin-files.md", "from-nomad.md", "from-swarm.md"} {
		if tried[page] == 0 {
			t.Errorf("%s has none: %v", page, tried)
		}
	}
}
