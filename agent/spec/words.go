package spec

import (
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// kind describes the type of a node for an error message. The description never contains the node's
// value.
func kind(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	}

	switch n.ShortTag() {
	case "!!str":
		return "a text"
	case "!!int", "!!float":
		return "a number"
	case "!!bool":
		return "true or false"
	case "!!null":
		return "nothing"
	case "!!timestamp":
		return "a date"
	}

	return "something else"
}

// in returns the end of an error message, which names the place of the mistake, such as " in
// metadata". It returns "" for "a volume", because " in a volume" would not help the user.
func in(what string) string {
	if what == "a volume" {
		return ""
	}
	return " in " + what
}

// meant returns a suggestion with the candidate nearest to word, for the end of an error message.
// It returns "" if no candidate is similar.
func meant(word string, candidates []string) string {
	near := Near(word, candidates)
	if len(near) == 0 {
		return ""
	}
	return " (did you mean " + strconv.Quote(near[0]) + "?)"
}

func joined(choices []string) string { return strings.Join(choices, ", ") }
