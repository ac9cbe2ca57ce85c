package spec

import (
	"embed"
	"path"
	"slices"
	"strings"
)

//go:embed plugins/*.yaml
var plugins embed.FS

// generalPlugin is the name of the example that shows all keys of a plugin file. It is not for a
// particular driver.
const generalPlugin = "example"

// PluginExample returns a plugin file with comments that the agent accepts. The file runs the
// published image of the named driver. If name is empty, PluginExample returns the general example,
// which shows all keys.
func PluginExample(name string) (text string, ok bool) {
	if name == "" {
		name = generalPlugin
	} else if !slices.Contains(PluginExamples(), name) {
		return "", false
	}
	raw, err := plugins.ReadFile("plugins/" + name + ".yaml")
	return string(raw), err == nil
}

// PluginExamples returns the names of the drivers that have an example.
func PluginExamples() []string {
	var names []string
	files, _ := plugins.ReadDir("plugins") // the directory is embedded, so ReadDir cannot fail
	for _, f := range files {
		if name := strings.TrimSuffix(f.Name(), path.Ext(f.Name())); name != generalPlugin {
			names = append(names, name)
		}
	}
	return names
}

// PluginSummary returns the purpose of an example's driver in one line. It takes the text from the
// first line of the example.
func PluginSummary(name string) string {
	text, _ := PluginExample(name)
	line, _, _ := strings.Cut(text, "\n")
	_, summary, _ := strings.Cut(line, ": ")
	return summary
}
