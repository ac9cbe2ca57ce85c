package pluginfile

import (
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// unset stands for a value that a disabled file does not have yet. It is an absolute path, so that
// the checks of mounts accept it.
const unset = "/unset"

// isValueName matches the name of a variable that a plugin file defines itself.
var isValueName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,63}$`).MatchString

// valuesNode returns the value of the key values, or nil if the file does not have the key.
func valuesNode(root *yaml.Node) *yaml.Node {
	if root.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(root.Content); i += 2 {
		if root.Content[i].Value == "values" {
			return root.Content[i+1]
		}
	}

	return nil
}

// readValues reads the variables that the file defines itself. The other keys of the file may use
// these variables, so readValues is called before any other key is read.
func (r reader) readValues(root *yaml.Node) error {
	n := valuesNode(root)
	if n == nil {
		return nil
	}

	return r.pairs(n, "values", func(key, value *yaml.Node) error {
		name := key.Value
		_, twice := r.values[name]
		switch {
		case !isValueName(name):
			return r.errorf(key, "value %.64q is not 1 to 64 letters, digits and _, with a letter or _ first", name)
		case slices.Contains(variables, name):
			return r.errorf(key, "value %s has the name of a variable that the agent sets", name)
		case twice:
			return r.errorf(key, "key %q stands twice in values", name)
		}

		text, err := r.scalar(value, name)
		r.values[name] = text
		return err
	})
}

// checkValues returns an error for a value that is missing, unless the file is disabled.
func (r reader) checkValues(root *yaml.Node, disabled bool) error {
	n := valuesNode(root)
	if n == nil || disabled {
		return nil
	}

	return r.pairs(n, "values", func(key, _ *yaml.Node) error {
		if r.values[key.Value] == "" {
			return r.errorf(key, "value %s is missing: set it, or set enabled: false", key.Value)
		}
		return nil
	})
}

// fill replaces ${NAME} in s by the file's own value of that name. It leaves other variables and
// "$${" as they are, because Expand handles them when the plugin starts.
func (r reader) fill(s string) string {
	if len(r.values) == 0 {
		return s
	}

	var b strings.Builder
	for {
		at := strings.Index(s, "${")
		if at < 0 {
			b.WriteString(s)
			return b.String()
		}

		escaped := at > 0 && s[at-1] == '$'
		name, rest, closed := strings.Cut(s[at+2:], "}")
		text, own := r.values[name]
		if escaped || !closed || !own {
			b.WriteString(s[:at+2])
			s = s[at+2:]
			continue
		}

		if text == "" {
			text = unset
		}
		b.WriteString(s[:at] + text)
		s = rest
	}
}
