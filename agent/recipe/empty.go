package recipe

import (
	"strings"

	"github.com/volagent/volagent/agent/pluginfile"
	"github.com/volagent/volagent/volmgr/plugin"
)

// unfilled renders the files of the driver without any value, so each required value is a placeholder.
func (r *Recipe) unfilled() (*plugin.Definition, []File) {
	out, err := r.Render(Input{Runtime: plugin.RuntimePodman, SecretDir: DefaultSecretDir})
	if err != nil {
		return nil, nil
	}
	_, def, err := pluginfile.Parse(r.Name, []byte(out.Plugin))
	if err != nil {
		return nil, nil
	}
	return def, out.Files
}

// Empty returns the names of the required values that are empty in a plugin file, for example because a
// person has removed a placeholder. It finds a value at the place where the recipe has it.
func (r *Recipe) Empty(def *plugin.Definition) []string {
	want, _ := r.unfilled()
	if want == nil {
		return nil
	}

	var names []string
	has := map[string]bool{}
	for _, arg := range arguments(def) {
		has[arg] = true
	}
	for _, arg := range arguments(want) {
		for _, name := range pluginfile.Placeholders(arg) {
			if has[strings.ReplaceAll(arg, pluginfile.Placeholder(name), "")] {
				names = append(names, name)
			}
		}
	}

	for key, value := range want.Env() {
		for _, name := range pluginfile.Placeholders(value.Value) {
			got, given := def.Env()[key]
			without := strings.ReplaceAll(value.Value, pluginfile.Placeholder(name), "")
			if !given || got.Secret == nil && got.Value == without {
				names = append(names, name)
			}
		}
	}

	return names
}

func arguments(def *plugin.Definition) []string {
	switch {
	case def.Container != nil:
		return def.Container.Args
	case def.Exec != nil:
		return def.Exec.Command
	default:
		return nil
	}
}

// EmptyInConfig returns the names of the values and secrets that are not filled in, or are empty, in the
// text of a configuration file. The argument file is the base name of the file.
func (r *Recipe) EmptyInConfig(file, text string) []string {
	names := pluginfile.Placeholders(text)
	_, files := r.unfilled()
	for _, f := range files {
		if !strings.HasSuffix(f.Path, "/"+file) {
			continue
		}
		for line := range strings.Lines(string(f.Content)) {
			for _, name := range pluginfile.Placeholders(line) {
				if emptyLine(line, pluginfile.Placeholder(name), text) {
					names = append(names, name)
				}
			}
		}
	}
	return names
}

// emptyLine reports whether a text has the line of a placeholder with an empty value.
func emptyLine(line, placeholder, text string) bool {
	before, _, _ := strings.Cut(line, placeholder)
	before = strings.TrimRight(strings.TrimSpace(before), `"`)
	for got := range strings.Lines(text) {
		got = strings.TrimRight(strings.TrimSpace(got), `,]"' `)
		if got == strings.TrimSpace(before) {
			return true
		}
	}
	return false
}
