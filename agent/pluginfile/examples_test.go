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

// generalExample returns the plugin file that shows all keys.
func generalExample(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile("../spec/plugins/example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
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
	text := generalExample(t)
	if id, _, err := Parse("example.yaml", []byte(text)); id != "mine" || err != nil {
		t.Errorf("the example has id %q: %v", id, err)
	}
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
