package pluginfile

import (
	"regexp"

	"go.yaml.in/yaml/v3"
)

// Placeholder returns the text that stands for a value that a person must fill in. Parse refuses a
// file with a placeholder, unless the file has enabled: false.
func Placeholder(name string) string { return "<FILL-IN-" + name + ">" }

var placeholder = regexp.MustCompile(`<FILL-IN-([a-z0-9-]+)>`)

// Placeholders returns the names of the values in a text that are not filled in, in their order. A
// name that appears several times is returned once.
func Placeholders(text string) []string {
	var names []string
	seen := map[string]bool{}
	for _, m := range placeholder.FindAllStringSubmatch(text, -1) {
		if !seen[m[1]] {
			names = append(names, m[1])
		}
		seen[m[1]] = true
	}
	return names
}

// firstPlaceholder returns the first value of a file that contains a placeholder. It ignores comments.
func firstPlaceholder(n *yaml.Node) (line int, name string, found bool) {
	if n.Kind == yaml.ScalarNode {
		if names := Placeholders(n.Value); len(names) > 0 {
			return n.Line, names[0], true
		}
	}
	for _, child := range n.Content {
		if line, name, found = firstPlaceholder(child); found {
			return line, name, true
		}
	}
	return 0, "", false
}
