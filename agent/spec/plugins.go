package spec

import (
	"embed"
	"path"
	"slices"
	"strings"
)

//go:embed plugins/*.yaml
var plugins embed.FS

// generalPlugin is the plugin file that is of no driver, with all keys.
const generalPlugin = "example"

// PluginExample is a commented plugin file that an agent accepts as it is: that of
// a known driver's own image, or with no name one that shows all keys.
func PluginExample(name string) (text string, ok bool) {
	if name == "" {
		name = generalPlugin
	} else if !slices.Contains(PluginExamples(), name) {
		return "", false
	}
	raw, err := plugins.ReadFile("plugins/" + name + ".yaml")
	return string(raw), err == nil
}

// PluginExamples names the drivers that there is a plugin file of.
func PluginExamples() []string {
	var names []string
	files, _ := plugins.ReadDir("plugins") // it is part of the program
	for _, f := range files {
		if name := strings.TrimSuffix(f.Name(), path.Ext(f.Name())); name != generalPlugin {
			names = append(names, name)
		}
	}
	return names
}

// PluginSummary says in a line what the driver of an example is for, as the first
// line of its file does.
func PluginSummary(name string) string {
	text, _ := PluginExample(name)
	line, _, _ := strings.Cut(text, "\n")
	_, summary, _ := strings.Cut(line, ": ")
	return summary
}
